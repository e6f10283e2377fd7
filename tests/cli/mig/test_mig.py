"""`gpuslice mig` as people type it, on one machine on paper that lives from command to command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import click.testing
import pytest
import yaml

from gpuslice.cli.main import main
from gpuslice.config.devices import DevicesFile
from gpuslice.node.discovery.simulated import SimulatedDriver

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: "
TWO = "{gpus: [{model: A100-40, mig: [3g.20gb@4, 1g.5gb@0]}, {model: A100-40, mig: [1g.5gb@6]}]}"
GOLDEN = {
    "Version": "v1",
    "MigState": {
        "Devices": [
            {
                "UUID": "GPU-0",
                "MigMode": 1,
                "GpuInstances": [
                    {
                        "ProfileID": 0,
                        "Placement": {"Start": 0, "Size": 1},
                        "ComputeInstances": [{"ProfileID": 0, "EngProfileID": 0}],
                    },
                    {
                        "ProfileID": 2,
                        "Placement": {"Start": 4, "Size": 4},
                        "ComputeInstances": [{"ProfileID": 2, "EngProfileID": 0}],
                    },
                ],
            },
            {"UUID": "GPU-1", "MigMode": 0, "GpuInstances": None},
        ]
    },
}
"""mig-parted's form: its numbers are NVML's enumeration, not the ids of nvidia-smi (19 and 9)."""


class Lab:
    """A machine, and the command line on it."""

    def __init__(self, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = SimulatedDriver(DevicesFile.parse(HEAD + text).machine("n1"))
        self.folder = folder
        monkeypatch.setattr("gpuslice.node.mig.standalone.driver_of", lambda devices, node: self.driver)

    def layouts(self) -> list[str]:
        return [
            str(self.driver.layout(gpu.uuid)) if gpu.mig and gpu.mig.current else "off"
            for gpu in self.driver.query().gpus
        ]

    def run(self, *words: str, stdin: str | None = None) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, ["mig", *words], input=stdin)

    def file(self, *entries: str) -> str:
        path = self.folder / "mig.yaml"
        path.write_text(
            "version: v1\nmig-configs: {custom: [" + ", ".join(f"{{{e}}}" for e in entries) + "]}\n"
        )
        return str(path)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Lab]:
    return lambda text=TWO: Lab(text, tmp_path, monkeypatch)


def custom(devices: str, which: str = "all") -> str:
    return f"devices: {which}, mig-enabled: true, mig-devices: {{{devices}}}"


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (custom("1g.5gb: 8"), "8 x 1g.5gb are too many: A100-40 takes at most 7"),
        (custom("4g.20gb: 1, 3g.20gb: 1, 1g.5gb: 1"), "take 8 compute slices; A100-40 has 7"),
        (custom("1g.24gb: 1"), "1g.24gb does not exist on A100-40; it has 1g.5gb"),
        (custom("1g.5gb: 1, 1g.10gb+gfx: 1"), "1g.10gb+gfx does not exist on A100-40"),
        (custom("1g.5gb: 7", "[7]"), "GPU 7 does not exist: the node has 2, numbered 0, 1"),
        ("device-filter: '0x233010DE', " + custom("1g.5gb: 7"), "it matches no GPU of this node"),
    ],
)
@pytest.mark.parametrize("command", ["apply", "plan", "assert", "assert --valid-config", "apply --mode-only"])
def test_what_these_gpus_cannot_be_is_refused_and_running_instances_stay(
    command: str, entry: str, sentence: str, lab: Callable[..., Lab]
) -> None:
    """mig-parted 0.15.0, C.2: `assert --valid-config` calls all of these valid; `apply` empties GPUs (1-3), or
    does nothing and calls that success (2, 4)."""
    machine = lab()
    before = machine.driver.query()
    result = machine.run(*command.split(), "-f", machine.file(entry), "-c", "custom")
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.startswith("error: mig-configs.custom[0]") or "mig-configs.custom: " in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert machine.driver.query() == before


def test_a_configuration_for_one_gpu_counts_as_applied(lab: Callable[..., Lab]) -> None:
    """mig-parted 0.15.0, defect 5: it asserts that every GPU is in the configuration."""
    machine = lab()
    file = machine.file(custom("1g.5gb: 7", "[0]"))
    asked = ("assert", "-f", file, "-c", "custom")
    result = machine.run(*asked)
    assert (result.exit_code, result.stderr) == (
        1,
        "error: Assertion failure: selected configuration not currently applied: "
        "GPU 0 has 1 x 1g.5gb and 1 x 3g.20gb; it is to have 7 x 1g.5gb\n",
    )
    assert machine.run("apply", "-f", file, "-c", "custom").exit_code == 0
    result = machine.run(*asked)
    assert (result.exit_code, result.stdout) == (0, "Selected MIG configuration currently applied\n")
    assert machine.layouts()[1] == "1g.5gb at 6:1"


def test_a_refusal_half_way_leaves_both_gpus_as_they_were(lab: Callable[..., Lab]) -> None:
    """mig-parted 0.15.0, defect 3: GPU 0 is empty then, and GPU 1 has its old layout."""
    machine = lab()
    gpus = machine.driver.query().gpus
    machine.driver.use(gpus[1].uuid, gpus[1].mig_devices[0].gpu_instance)
    before = machine.driver.query()
    result = machine.run("apply", "-c", "all-3g.20gb")
    assert result.exit_code == 1
    assert "GPU 1: destroy compute instance 1g.5gb in 1g.5gb at 6:1 was refused" in result.stderr
    assert "everything is as it was before" in result.stderr
    assert machine.driver.query() == before


def test_plan_shows_every_place_and_changes_nothing(lab: Callable[..., Lab]) -> None:
    machine = lab()
    before = machine.driver.query()
    result = machine.run("plan", "-c", "all-balanced")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "GPU 0 (NVIDIA A100-SXM4-40GB)\n"
        "  keep     1g.5gb       at 0:1\n"
        "  keep     3g.20gb      at 4:4\n"
        "  create   2g.10gb      at 2:2\n"
        "  create   1g.5gb       at 1:1\n"
        "GPU 1 (NVIDIA A100-SXM4-40GB)\n"
        "  destroy  1g.5gb       at 6:1\n"
        "  create   3g.20gb      at 4:4\n"
        "  create   2g.10gb      at 0:2\n"
        "  create   1g.5gb       at 2:1\n"
        "  create   1g.5gb       at 3:1\n"
    )
    told = json.loads(machine.run("plan", "-c", "all-disabled", "-o", "json").stdout)["gpus"][1]
    assert told["migMode"] is True
    assert told["migModeWanted"] is False
    assert told["resets"] is True
    assert told["destroy"] == [{"profile": "1g.5gb", "placement": "6:1"}]
    assert machine.driver.query() == before


def test_gpus_with_which_the_same_is_done_are_told_once(lab: Callable[..., Lab]) -> None:
    machine = lab("{gpus: [{model: A100-40, count: 3}]}")
    result = machine.run("plan", "-c", "all-7g.40gb")
    assert result.stdout == (
        "GPU 0,1,2 (NVIDIA A100-SXM4-40GB): MIG off -> on, by a reset\n  create   7g.40gb      at 0:8\n"
    )
    assert machine.run("apply", "-c", "all-7g.40gb").exit_code == 0
    assert (
        "GPU 0,1,2 (NVIDIA A100-SXM4-40GB): nothing to do\n"
        in machine.run("plan", "-c", "all-7g.40gb").stdout
    )


def test_compute_instances_are_told_as_devices(lab: Callable[..., Lab]) -> None:
    machine = lab("{gpus: [{model: A100-40, mig: []}]}")
    file = machine.file(custom("1c.4g.20gb: 2, 2c.4g.20gb: 1"))
    assert machine.run("apply", "-f", file).stdout == (
        "GPU 0 (NVIDIA A100-SXM4-40GB)\n"
        "  create   2c.4g.20gb   at 0:4\n"
        "  create   1c.4g.20gb   at 0:4\n"
        "  create   1c.4g.20gb   at 0:4\n"
        "MIG configuration applied successfully\n"
    )


def test_the_standard_configurations_are_a_file_that_is_read_again(lab: Callable[..., Lab]) -> None:
    machine = lab()
    written = machine.run("generate-config")
    assert written.exit_code == 0
    assert machine.run("apply", "-f", "-", "-c", "all-2g.10gb", stdin=written.stdout).exit_code == 0
    assert machine.layouts()[0].count("2g.10gb") == 3
    as_json = machine.run("generate-config", "-o", "json", "-f", str(machine.folder / "made.json"))
    assert (as_json.exit_code, as_json.stdout) == (0, "")
    assert yaml.safe_load(written.stdout) == json.loads((machine.folder / "made.json").read_text())


def test_apply_reads_standard_input_and_mig_parteds_environment(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = lab()
    text = Path(machine.file(custom("7g.40gb: 1"))).read_text()
    assert machine.run("apply", "-f", "-", stdin=text).exit_code == 0
    assert machine.layouts() == ["7g.40gb at 0:8"] * 2
    monkeypatch.setenv("MIG_PARTED_CONFIG_FILE", machine.file(custom("1g.5gb: 7", "[1]")))
    monkeypatch.setenv("MIG_PARTED_SELECTED_CONFIG", "custom")
    monkeypatch.setenv("MIG_PARTED_HOOKS_FILE", "/hooks.yaml")
    result = machine.run("apply")
    assert result.exit_code == 0
    assert result.stderr == "warning: the hooks file /hooks.yaml is not read: no hooks are run here\n"
    assert machine.layouts()[0] == "7g.40gb at 0:8"
    monkeypatch.setenv("MIG_PARTED_MODE_CHANGE_ONLY", "true")
    assert machine.run("assert").stdout == "Selected MIG mode settings from configuration currently applied\n"
    monkeypatch.setenv("MIG_PARTED_VALID_CONFIG", "true")
    assert machine.run("assert").stdout == "Selected MIG configuration is valid\n"
    monkeypatch.setenv("MIG_PARTED_OUTPUT_FORMAT", "json")
    monkeypatch.setenv("MIG_PARTED_CONFIG_LABEL", "mine")
    assert list(json.loads(machine.run("export").stdout)["mig-configs"]) == ["mine"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["apply", "-f", "/nowhere.yaml"], "error: /nowhere.yaml: there is no such file\n"),
        (
            ["plan", "-c", "nosuch"],
            "error: selected mig-config not present: nosuch; there are all-disabled, all",
        ),
        (["plan"], "error: --selected-config: name one of all-disabled, all-enabled, all-1g.5gb"),
        (["restore"], "Missing option '-f'"),
        (["restore", "-f", "/nowhere.json"], "error: /nowhere.json: there is no such file\n"),
        (["checkpoint", "-f", "/nowhere/x.json"], "error: /nowhere/x.json: cannot be written: No such file"),
        (["plan", "-f", "-"], "error: standard input: unable to parse with missing 'version' field"),
    ],
)
def test_what_is_typed_wrong_ends_with_2(words: list[str], sentence: str, lab: Callable[..., Lab]) -> None:
    result = lab().run(*words, stdin="{}")
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_reset_is_skipped_when_asked(lab: Callable[..., Lab]) -> None:
    machine = lab("{gpus: [{model: A100-40}, {model: A100-40, mig: [1g.5gb@6]}]}")
    result = machine.run("apply", "-c", "all-7g.40gb", "--skip-reset")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: MIG's mode waits for a reset of GPU 0: ")
    assert machine.layouts() == ["off", "1g.5gb at 6:1"]
    result = machine.run("apply", "-c", "all-7g.40gb", "--skip-reset", "--mode-only")
    assert result.exit_code == 0
    assert (
        result.stderr == "warning: MIG's mode waits for a reset: nvidia-smi --gpu-reset -i 0, or a reboot\n"
    )
    result = machine.run("assert", "-c", "all-7g.40gb", "--mode-only")
    assert result.exit_code == 1
    assert "GPU 0: MIG is off, it is to be on" in result.stderr
    result = machine.run(
        "assert", "-c", "all-disabled", "--mode-only", "-f", machine.file("devices: [0], mig-enabled: false")
    )
    assert result.exit_code == 2
    result = machine.run("assert", "--mode-only", "-f", machine.file("devices: [0], mig-enabled: false"))
    assert (result.exit_code, "GPU 0: MIG will be on when the GPU is reset" in result.stderr) == (1, True)
    back = machine.file("devices: [0], mig-enabled: false")
    for outcome in ("MIG stays off after a reset", "nothing to do"):
        assert machine.run("plan", "-f", back).stdout == f"GPU 0 (NVIDIA A100-SXM4-40GB): {outcome}\n"
        assert machine.run("apply", "-f", back).exit_code == 0
    assert machine.run("apply", "-c", "all-7g.40gb").exit_code == 0
    assert machine.layouts() == ["7g.40gb at 0:8"] * 2


def test_an_instance_without_a_device_is_not_applied(lab: Callable[..., Lab]) -> None:
    """A GPU instance whose making was cut short: no count of devices shows it."""
    machine = lab("{gpus: [{model: A100-40, mig: []}]}")
    machine.driver.create_gpu_instance(machine.driver.query().gpus[0].uuid, 9, 4)
    result = machine.run("assert", "-c", "all-enabled")
    assert result.exit_code == 1
    assert "GPU 0: 3g.20gb at 4:4 has no compute instance" in result.stderr
    result = machine.run("apply", "-c", "all-enabled")
    assert result.stdout.splitlines()[1] == "  destroy  3g.20gb      at 4:4"
    assert machine.run("assert", "-c", "all-enabled").exit_code == 0


def test_export_is_what_apply_reads(lab: Callable[..., Lab], tmp_path: Path) -> None:
    machine = lab()
    exported = machine.run("export").stdout
    assert list(yaml.safe_load(exported)["mig-configs"]) == ["current"]
    machine.run("apply", "-c", "all-7g.40gb")
    assert machine.run("export").stdout != exported
    (tmp_path / "saved.yaml").write_text(exported)
    assert machine.run("apply", "-f", str(tmp_path / "saved.yaml")).exit_code == 0
    assert machine.run("export").stdout == exported
    assert machine.run("assert", "-f", str(tmp_path / "saved.yaml"), "-c", "current").exit_code == 0


PAIR = "{gpus: [{model: A100-40, uuid: GPU-0, mig: [3g.20gb@4, 1g.5gb@0]}, {model: A100-40, uuid: GPU-1}, {model: T4}]}"


def test_a_checkpoint_is_in_mig_parteds_form_and_brings_every_place_back(
    lab: Callable[..., Lab], tmp_path: Path
) -> None:
    machine = lab(PAIR)
    file = tmp_path / "mig.json"
    result = machine.run("checkpoint", "-f", str(file))
    assert (result.exit_code, result.stdout) == (0, "MIG configuration checkpointed successfully\n")
    assert json.loads(file.read_text()) == GOLDEN
    assert [path.name for path in tmp_path.iterdir()] == ["mig.json"]
    before = machine.driver.query()
    machine.run("apply", "-c", "all-1g.5gb")
    assert machine.driver.query() != before
    result = machine.run("restore", "-f", str(file))
    assert result.stdout.endswith("MIG configuration restored successfully\n")
    assert machine.driver.query() == before


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        (("v1", "v2"), 2, "Version: unknown version: v2; write v1"),
        (('"UUID"', '"Uuid"'), 2, "unknown key 'Uuid'"),
        (("GPU-1", "GPU-0"), 2, "MigState.Devices[1].UUID: GPU-0 is there twice"),
        (('"MigMode": 0', '"MigMode": 2'), 2, "MigState.Devices[1].MigMode: 2 is neither 0 nor 1"),
        (('"MigMode": 1', '"MigMode": 0'), 2, "MigState.Devices[0].GpuInstances: instances although MIG is off"),
        (('"Version"', "Version"), 2, "not JSON"),
        (("GPU-1", "GPU-7"), 1, "there is no GPU GPU-7 that answers; nothing was changed"),
        (('"Start": 4', '"Start": 2'), 1, "3g.20gb cannot begin at memory slice 2 of A100-40"),
        (('"Size": 4', '"Size": 2'), 1, "the checkpoint has 3g.20gb of 2 memory slices; here it has 4"),
        (('"ProfileID": 0, "Placement"', '"ProfileID": 17, "Placement"'), 1, "NVML's profile 17, which A100-40 does not have"),
        (('{"ProfileID": 2, "EngProfileID": 0}', '{"ProfileID": 4, "EngProfileID": 0}'), 1, "a compute instance (4, 0) in 3g.20gb"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_restored_changes_nothing(
    change: tuple[str, str], code: int, sentence: str, lab: Callable[..., Lab], tmp_path: Path
) -> None:
    machine = lab(PAIR)
    before = machine.driver.query()
    text = json.dumps(GOLDEN)
    assert change[0] in text
    (tmp_path / "mig.json").write_text(text.replace(*change))
    result = machine.run("restore", "-f", str(tmp_path / "mig.json"))
    assert result.exit_code == code
    assert sentence in result.stderr
    assert machine.driver.query() == before


def test_a_restore_spares_what_is_in_its_place(lab: Callable[..., Lab], tmp_path: Path) -> None:
    """mig-parted clears the GPU first; with a program in one instance that fails, and the others are gone."""
    machine = lab(PAIR)
    (tmp_path / "mig.json").write_text(json.dumps(GOLDEN))
    machine.driver.use("GPU-0", 2)
    machine.driver.destroy_compute_instance("GPU-0", 7, 0)
    machine.driver.destroy_gpu_instance("GPU-0", 7)
    result = machine.run("restore", "-f", str(tmp_path / "mig.json"))
    assert result.exit_code == 0, result.stderr
    assert machine.layouts() == ["1g.5gb at 0:1, 3g.20gb at 4:4", "off", "off"]


def test_what_the_kubelet_says_pods_hold_stays(
    lab: Callable[..., Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that holds a MIG device and runs nothing on it: the driver would not mind."""
    machine = lab()
    first = machine.driver.query().gpus[0].mig_devices[0]
    (tmp_path / "pod-resources").mkdir()
    (tmp_path / "pod-resources" / "kubelet.sock").touch()

    async def held(socket: Path, gpus: object) -> frozenset[str]:
        assert socket == tmp_path / "pod-resources" / "kubelet.sock"
        return frozenset({first.uuid})

    monkeypatch.setattr("gpuslice.node.mig.standalone.held_by_pods", held)
    before = machine.driver.query()
    for command in ("plan", "apply"):
        result = machine.run(command, "-c", "all-1g.5gb", "--kubelet-dir", str(tmp_path))
        assert result.exit_code == 1
        assert "GPU 0 (NVIDIA A100-SXM4-40GB): 1 x 3g.20gb in use would have to go" in result.stderr
        assert machine.driver.query() == before
    assert machine.run("apply", "-c", "all-3g.20gb", "--kubelet-dir", str(tmp_path)).exit_code == 0


def test_a_kubelet_that_does_not_answer_is_warned_of(lab: Callable[..., Lab], tmp_path: Path) -> None:
    """As at boot, when its socket of last time lies there still."""
    machine = lab()
    (tmp_path / "pod-resources").mkdir()
    (tmp_path / "pod-resources" / "kubelet.sock").touch()
    result = machine.run("apply", "-c", "all-7g.40gb", "--kubelet-dir", str(tmp_path))
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: the kubelet does not say what pods hold (")
    assert result.stderr.endswith("; only running programs count as in use\n")


def test_on_paper_the_file_stays_and_the_outcome_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(HEAD + TWO)
    text = file.read_text()
    result = click.testing.CliRunner().invoke(
        main, ["mig", "apply", "-c", "all-7g.40gb", "--devices", str(file), "--node", "n1"]
    )
    assert result.exit_code == 0
    assert "The GPUs on paper would then be (the file is not changed):\nGPU 0: NVIDIA A100" in result.stdout
    assert result.stdout.count("  MIG 7g.40gb     Device  0: (UUID: MIG-") == 2
    assert file.read_text() == text


def test_a_gpu_that_does_not_answer_is_left_out_aloud(lab: Callable[..., Lab]) -> None:
    machine = lab()
    machine.driver.lose(machine.driver.query().gpus[1].uuid)
    result = machine.run("apply", "-c", "all-7g.40gb")
    assert result.exit_code == 0
    assert result.stderr == "warning: GPU 1 is left out: the GPU has fallen off the bus or does not answer\n"


def test_a_node_without_mig_says_so(lab: Callable[..., Lab]) -> None:
    machine = lab("{gpus: [{model: T4, count: 2}]}")
    assert machine.run("apply", "-c", "all-disabled").exit_code == 0
    result = machine.run("apply", "-f", machine.file(custom("1g.5gb: 1", "[0]")))
    assert result.exit_code == 1
    assert "GPU 0 (Tesla T4) cannot be made so: it does not support MIG; nothing was changed" in result.stderr


# --- docs/mig.md --------------------------------------------------------------------------------------
TEXT = (Path(__file__).parents[3] / "docs" / "mig.md").read_text()


def test_the_page_shows_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("devices.yaml", "mig.yaml"):
        block = re.search(rf"```yaml\n# {name}\n(.*?)```", TEXT, re.DOTALL)
        assert block is not None
        Path(name).write_text(block[1])
    shown = re.findall(r"^\$ gpuslice ([^\n]*)\n(.*?)(?=^\$|^```)", TEXT, re.DOTALL | re.MULTILINE)
    assert len(shown) > 6
    for words, printed in shown:
        assert click.testing.CliRunner().invoke(main, words.split()).output == printed, words
