"""`gpuslice node devices` and `gpuslice agent` where NVML is good, missing, mismatched or old, as processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from nvml_world import Hardware, command, environment, machine

SEVEN = "[1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]"


def test_eight_gpus_are_listed_as_nvidia_smi_does(library: Path, tmp_path: Path) -> None:
    """The layout of the AKS article, whose container sees one GPU with one MIG device."""
    text = f"{{gpus: [{{model: A100-40, mig: {SEVEN}}}, {{model: A100-40, count: 7, mig: [3g.20gb]}}]}}"
    hardware = Hardware(tmp_path, machine(text))
    done = command("node", "devices", env=environment(library, hardware))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 8 + 7 + 7
    assert lines[0] == f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {hardware.uuid(0)})"
    for number in range(7):
        assert lines[1 + number].startswith(f"  MIG 1g.5gb      Device  {number}: (UUID: MIG-")
        assert lines[1 + number].endswith(")")
    assert lines[9].startswith("  MIG 3g.20gb     Device  0: (UUID: MIG-")


def test_a_machine_on_paper_is_listed_without_a_driver() -> None:
    done = command("node", "devices", "--devices", "8xa100-40", "--node", "n1", env=dict(os.environ))
    assert [line.split(" (")[0] for line in done.stdout.splitlines()] == [
        f"GPU {index}: NVIDIA A100-SXM4-40GB" for index in range(8)
    ]


def test_json_says_everything(library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("{gpus: [{model: A100-40, mig: [3g.20gb@4]}, {model: T4}]}"))
    hardware.now("lost 1")
    done = command("node", "devices", "-o", "json", env=environment(library, hardware))
    report = json.loads(done.stdout)
    assert (report["driverVersion"], report["cudaVersion"]) == ("550.163.01", "12.4")
    (gpu,) = report["gpus"]
    assert (gpu["memoryMiB"], gpu["reservedMiB"], gpu["pciBusId"]) == (40960, 424, "00000000:10:00.0")
    assert (gpu["migCapable"], gpu["migMode"], gpu["migModePending"]) == (True, True, True)
    (mig,) = gpu["migDevices"]
    assert (mig["profile"], mig["placement"], mig["gpuInstance"], mig["memoryMiB"]) == (
        "3g.20gb", "4:4", 2, 19968,
    )  # fmt: skip
    assert report["silent"] == [{"index": 1, "reason": "the GPU has fallen off the bus or does not answer"}]


def test_a_gpu_that_does_not_answer_is_said_beside_the_list(library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("2xT4"))
    hardware.now("lost 0")
    done = command("node", "devices", env=environment(library, hardware))
    assert done.returncode == 0
    assert done.stdout == f"GPU 1: Tesla T4 (UUID: {hardware.uuid(1)})\n"
    assert done.stderr == ("warning: GPU 0 is left out: the GPU has fallen off the bus or does not answer\n")


def test_no_gpus_are_no_error(library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("P100"))
    hardware.now("gone 0")
    done = command("node", "devices", env=environment(library, hardware))
    assert (done.returncode, done.stdout) == (0, "No devices found.\n")


def test_an_old_driver_is_good_enough_to_list(old_library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("K80"))
    done = command("node", "devices", env=environment(old_library, hardware))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Tesla K80") == 2


LISTED, SERVED = ("node", "devices"), ("agent", "--node", "n1")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (LISTED, 18, "error: NVIDIA's library and kernel module are of different versions"),
        (SERVED, 18, "error: NVIDIA's library and kernel module are of different versions"),
        (LISTED, 9, "error: NVIDIA's library is here, but its kernel module does not answer"),
        (LISTED, 4, "error: the driver does not let this user call nvmlInitWithFlags: run as root"),
        (
            LISTED,
            12,
            "error: NVIDIA's library cannot be loaded (it does not find another library of the driver): ",
        ),
        (LISTED, 19, "error: the GPU or its instance is in use: end the programs on it, monitoring included"),
        (LISTED, 999, "error: NVIDIA's driver answers nvmlInitWithFlags with: "),
    ],
)
def test_a_driver_that_cannot_be_asked_is_one_sentence(
    words: tuple[str, ...], code: int, sentence: str, library: Path, tmp_path: Path
) -> None:
    hardware = Hardware(tmp_path, machine("2xT4"))
    hardware.now(f"init {code}")
    done = command(*words, env=environment(library, hardware))
    assert done.returncode == 1
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [LISTED, SERVED], ids=lambda words: words[0])
def test_a_library_that_cannot_be_loaded_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    done = command(*words, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: NVIDIA's library cannot be loaded ({tmp_path / 'libnvidia-ml.so.1'}: file too short): install"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [LISTED, SERVED], ids=lambda words: words[0])
def test_a_library_that_was_cut_short_is_one_sentence(
    words: tuple[str, ...], library: Path, tmp_path: Path
) -> None:
    """An interrupted update of the driver: to load it ends a process without a word (SIGBUS)."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(library.read_bytes()[:4096])
    done = command(*words, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: NVIDIA's library cannot be loaded (loading it ends a process with SIGBUS: the file is damaged): "
    )
    assert done.stderr.count("\n") == 1


def test_a_wrong_list_of_xids_names_the_variable(library: Path, tmp_path: Path) -> None:
    hardware = Hardware(tmp_path, machine("2xT4"))
    env = environment(library, hardware) | {"DP_DISABLE_HEALTHCHECKS": "48,foo"}
    done = command("agent", "--node", "n1", env=env)
    assert done.returncode == 2
    assert done.stderr.startswith("error: DP_DISABLE_HEALTHCHECKS: 'foo' is no XID")
