"""A scoring policy is found by its name everywhere: chart, command line, cluster file, decisions, `explain`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
import pytest
from chart_world import CHART, ROOT, Case, Refused, objects, render
from click.testing import CliRunner

from gpuslice.cli.main import main
from gpuslice.config.cluster import ClusterFile
from gpuslice.placement.policies import KNOWN
from gpuslice.placement.policies.binpack import Binpack


class Third(Binpack):
    name = "third"
    summary = "as a test likes it"


THIRD = Third()


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> Third:
    monkeypatch.setitem(KNOWN, THIRD.name, THIRD)
    return THIRD


def context(command: str, words: list[str]) -> click.Context:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    return found.make_context(command, words)


def schema(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "manifests", raising=False)
    import manifests

    return manifests.schema()


def test_the_charts_choices_are_the_policies_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (CHART / "values.schema.json").read_text() == schema(monkeypatch), "run `make manifests`"


def test_the_chart_lets_a_new_policy_through_to_a_command_that_takes_it(
    third: Third, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = tmp_path / "gpuslice"
    shutil.copytree(CHART, chart)
    case = Case({"policy": third.name})
    with pytest.raises(Refused, match="at '/policy': value must be one of 'binpack', 'spread'"):
        render(case, chart)
    (chart / "values.schema.json").write_text(schema(monkeypatch))
    commands = [
        container["args"]
        for one in objects(render(case, chart))
        for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
        if f"--policy={third.name}" in container.get("args", ())
    ]
    assert commands
    for command, *arguments in commands:
        words = [word.replace("$(", "").replace(")", "") for word in arguments]
        assert context(command, words).params["policy"] is third


@pytest.mark.parametrize("command", ["extender", "scheduler", "explain"])
def test_the_command_line_takes_it(third: Third, command: str) -> None:
    arguments = ["--policy=third", *(["pod"] if command == "explain" else [])]
    assert context(command, arguments).params["policy"] is third
    with pytest.raises(click.BadParameter, match="'x' is not one of the policies binpack, spread, third"):
        context(command, ["--policy=x", *arguments[1:]])


def test_the_help_says_what_each_policy_does() -> None:
    shown = " ".join(CliRunner().invoke(main, ["explain", "--help"]).output.split())
    assert f"[{'|'.join(KNOWN)}]" in shown
    assert all(f"{policy.name}: {policy.summary}" in shown for policy in KNOWN.values())


def test_a_clusters_file_takes_it(third: Third) -> None:
    file = "{apiVersion: gpuslice.io/v1alpha1, kind: Cluster, spec: {policy: third, nodes: [{name: a}]}}"
    assert ClusterFile.parse(file).plan().policy is third
