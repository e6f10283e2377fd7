"""Machines on paper: those that come with gpuslice, and what a file may say about one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.cluster import ClusterFile
from gpuslice.config.devices import DevicesFile, machines
from gpuslice.devices.machine import PaperMachine
from gpuslice.errors import InputError

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: "


def machine(spec: str) -> PaperMachine:
    return DevicesFile.parse(HEAD + spec).machine("n1")


@pytest.mark.parametrize(
    ("name", "count", "model", "usable_mib", "with_mig"),
    [
        ("8xA100-40", 8, "NVIDIA A100-SXM4-40GB", 40536, True),
        ("8xA100-80", 8, "NVIDIA A100-SXM4-80GB", 81251, True),
        ("8xH100-80", 8, "NVIDIA H100 80GB HBM3", 81008, True),
        ("8xH200", 8, "NVIDIA H200", 143178, True),
        ("4xA30", 4, "NVIDIA A30", 24064, True),
        ("2xT4", 2, "Tesla T4", 15109, False),
        ("P100", 1, "Tesla P100-PCIE-16GB", 16280, False),
        ("K80", 2, "Tesla K80", 11441, False),
        ("rtx pro 6000", 1, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97249, True),
    ],
)
def test_the_promised_machines_are_there(
    name: str, count: int, model: str, usable_mib: int, with_mig: bool
) -> None:
    gpus = DevicesFile.load(Path(name)).machine("n1").gpus
    assert [(one.gpu.index, one.gpu.name, one.gpu.usable_mib) for one in gpus] == [
        (index, model, usable_mib) for index in range(count)
    ]
    assert all((one.mig is not None) == with_mig for one in gpus)


def test_every_ready_made_machine_is_right() -> None:
    assert len(machines()) == 9
    for name in machines():
        assert DevicesFile.load(Path(name)).inventory("n1").gpus


def test_a_file_wins_over_a_ready_made_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "K80").write_text(HEAD + "{gpus: [{model: T4}]}")
    assert [one.gpu.name for one in DevicesFile.load(Path("K80")).machine("n1").gpus] == ["Tesla T4"]


def test_instances_lie_where_they_are_told_or_where_the_driver_likes() -> None:
    (one,) = machine("{gpus: [{model: A100-40, mig: [3g.20gb@4, 1g.5gb, 1g.5gb]}]}").gpus
    assert one.mig is not None
    assert (one.mig.enabled, one.mig.needs_reset) == (True, True)
    assert str(one.mig.layout) == "1g.5gb at 0:1, 1g.5gb at 1:1, 3g.20gb at 4:4"


def test_mig_is_off_unless_the_file_says_otherwise() -> None:
    off, on = machine("{gpus: [{model: H100-80}, {model: H100-80, mig: []}]}").gpus
    assert off.mig is not None
    assert on.mig is not None
    assert [(one.enabled, one.needs_reset) for one in (off.mig, on.mig)] == [(False, False), (True, False)]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{model: T4, mig: []}", "spec.gpus[0].mig: Tesla T4 cannot be partitioned; leave mig out"),
        ("{model: A30, mig: [3g.20gb]}", "spec.gpus[0].mig: 3g.20gb does not exist on A30; it has 1g.6gb,"),
        ("{model: A100-40, mig: [3g.20gb@2]}", "spec.gpus[0].mig: 3g.20gb cannot begin at memory slice 2"),
        (
            "{model: A100-40, mig: [7g.40gb, 1g.5gb]}",
            "spec.gpus[0].mig: there is no room for 1g.5gb beside 7g",
        ),
        ("{model: A100-40, mig: [4g.20gb@0, 3g.20gb@0]}", "spec.gpus[0].mig: 3g.20gb at 0:4 overlaps with"),
        ("{model: A100-40, mig: [1c.3g.20gb]}", "'1c.3g.20gb' is a part of a GPU instance; write 3g.20gb"),
        (
            "{model: A100-40, mig: [1g.5gb@x]}",
            "'1g.5gb@x': write PROFILE or PROFILE@START, such as 3g.20gb@4",
        ),
        ("{model: A100-40, mig: [foo]}", "spec.gpus[0].mig: 'foo' is not a MIG profile"),
        ("{model: T4, xids: [-1]}", "spec.gpus[0].xids[0]: write a whole number of at least 0"),
        ("{model: T4, numaNode: -1}", "spec.gpus[0].numaNode: write a whole number of at least 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(entry: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        machine(f"{{gpus: [{entry}]}}")
    assert sentence in str(caught.value)


def test_a_name_that_is_nothing_lists_the_machines() -> None:
    with pytest.raises(
        InputError, match=r"9xA100: there is no such file, .* use one of 2xT4, 4xA30, 8xA100-40"
    ):
        DevicesFile.load(Path("9xA100"))


def test_a_cluster_names_machines() -> None:
    head = "apiVersion: gpuslice.io/v1alpha1\nkind: Cluster\nspec: "
    plan = ClusterFile.parse(head + "{nodes: [{namePrefix: dgx, count: 2, machine: 8xa100-40}]}").plan()
    assert [[gpu.model for gpu in node.gpus.gpus] for node in plan.nodes] == [
        ["NVIDIA A100-SXM4-40GB"] * 8
    ] * 2
    for entry, sentence in (
        ("machine: 9xA100", r"spec.nodes\[0\].machine: there is no machine '9xA100'; use one of 2xT4, "),
        ("machine: K80, gpus: [{model: T4}]", r"spec.nodes\[0\]: give either machine or gpus"),
    ):
        with pytest.raises(InputError, match=sentence):
            ClusterFile.parse(f"{head}{{nodes: [{{name: a, {entry}}}]}}").plan()
