"""docs/discovery.md shows what is true."""

from __future__ import annotations

import re
from pathlib import Path

import click.testing
import pytest

from gpuslice.cli.main import main
from gpuslice.config.devices import DevicesFile, machines
from gpuslice.node.discovery import nvmlcalls
from gpuslice.node.discovery.health import GONE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "discovery.md").read_text()


def test_the_listing_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    match = re.search(r"```console\n\$ gpuslice ([^\n]*)\n(.*?)```", TEXT, re.DOTALL)
    assert match is not None
    result = click.testing.CliRunner().invoke(main, match[1].split())
    assert result.exit_code == 0
    assert result.stdout + result.stderr == match[2]


def test_the_description_is_the_example() -> None:
    match = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert match is not None
    example = DevicesFile.load(ROOT / "examples" / "devices" / "mig.yaml")
    assert DevicesFile.parse(match[1]) == example


def test_every_machine_and_every_sentence_is_named() -> None:
    assert [name for name in machines() if name not in TEXT] == []
    told = [re.split(r"[:,]| \(", sentence)[0] for sentence in nvmlcalls.SENTENCES.values()]
    assert [sentence for sentence in told if sentence.replace("{name}", "NAME") not in TEXT] == []
    assert GONE in TEXT
