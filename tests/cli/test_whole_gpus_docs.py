"""docs/whole-gpus.md shows what the commands say, and manifests that are in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuslice.cli.main import main

TEXT = (Path(__file__).resolve().parents[2] / "docs/whole-gpus.md").read_text()
FILES = dict(re.findall(r"```yaml\n# ([a-z0-9-]+\.yaml)\n(.*?)```", TEXT, re.DOTALL))
SHOWN = dict(re.findall(r"\$ gpuslice validate ([a-z0-9-]+\.yaml)\n(.*?)(?=\$ |```)", TEXT, re.DOTALL))


def validate(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / name).write_text(FILES[name])
    monkeypatch.chdir(folder)
    return CliRunner().invoke(main, ["validate", name]).output


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_said_of_a_manifest_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = validate(name, tmp_path, monkeypatch)
    assert sorted(told.splitlines()) == sorted(SHOWN[name].splitlines())


@pytest.mark.parametrize("name", sorted(FILES.keys() - SHOWN.keys()))
def test_the_other_manifests_are_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert validate(name, tmp_path, monkeypatch) == "1 pod: nothing is wrong\n"


def test_there_is_something_to_look_at() -> None:
    assert SHOWN.keys() == {"unequal.yaml", "pod-of-2017.yaml"}
    assert FILES.keys() > SHOWN.keys()
