"""What the chart starts exists: every container's arguments are ones that our commands take."""

from __future__ import annotations

from typing import Any

import click
import pytest
from chart_world import CASES, objects, render

from gpuslice.cli.main import main
from gpuslice.cli.run.extender import extender


def ours(name: str) -> list[list[str]]:
    """The arguments of all containers with our image."""
    found = []
    for one in objects(render(CASES[name])):
        pod: dict[str, Any] = one.get("spec", {}).get("template", {}).get("spec", {})
        found += [c["args"] for c in pod.get("containers", ()) if "args" in c]
    return found


@pytest.mark.parametrize("name", CASES)
def test_our_commands_take_the_arguments(name: str) -> None:
    assert len(ours(name)) == 3
    for command, *arguments in ours(name):
        found = main.get_command(click.Context(main), command)
        assert found is not None
        # kubelet puts the values in; every $(NAME) stands for a word.
        words = [word.replace("$(", "").replace(")", "") for word in arguments]
        found.make_context(command, words, resilient_parsing=False)


def test_an_argument_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        extender.make_context("extender", ["--listens=:1"])
