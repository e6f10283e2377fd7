"""What the image is made of, and what is known against it: tools/sbom.py and tools/audit.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chart_world import ROOT

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """A module of tools/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return load


def package(name: str, *known: str, **more: str) -> dict[str, Any]:
    if more:
        return {"name": name, **more}
    vulns = [{"id": one, "aliases": ["CVE-" + one], "fix_versions": ["2.0"]} for one in known]
    return {"name": name, "version": "1.0", "vulns": vulns}


def test_a_known_vulnerability_fails_and_says_what_mends_it(load: Load) -> None:
    answer = {"dependencies": [package("good"), package("bad", "PYSEC-1")]}
    code, lines = load("audit").verdict(answer, "")
    assert code == 1
    assert lines[:2] == [
        "bad 1.0: PYSEC-1 CVE-PYSEC-1; mended in 2.0",
        "2 packages of uv.lock checked, 1 vulnerabilities",
    ]


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-PYSEC-1"])
def test_one_with_a_reason_does_not(load: Load, name: str) -> None:
    answer = {"dependencies": [package("bad", "PYSEC-1")]}
    code, lines = load("audit").verdict(answer, "", {name: "we parse nothing with it"})
    assert code == 0
    assert "accepted: we parse nothing with it" in lines[0]
    assert load("audit").verdict(answer, "", {"PYSEC-2": "another"})[0] == 1


def test_what_could_not_be_checked_is_named_and_fails_nothing(load: Load) -> None:
    skipped = package("unknown", skip_reason="Dependency not found on PyPI: unknown (1.0)")
    code, lines = load("audit").verdict({"dependencies": [package("good"), skipped]}, "")
    assert code == 0
    assert "NOT CHECKED (Dependency not found on PyPI): unknown" in lines
    code, lines = load("audit").verdict({}, "Traceback\nno route to pypi.org")
    assert code == 0
    assert "NOT CHECKED: all of uv.lock, for there is no answer: no route to pypi.org" in lines


def test_the_bill_of_materials_has_the_packages_of_the_image_and_no_other(load: Load) -> None:
    assert (ROOT / ".venv-uv" / "bin" / "uv").exists(), "there is no uv; `make test` installs it"
    bom = load("sbom").of_lock(ROOT)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    found = {one["name"]: one for one in bom["components"]}
    assert {"msgspec", "lightkube", "cryptography", "h11"} <= found.keys()
    assert not {"pytest", "mypy", "azure-identity"} & found.keys()
    assert found["msgspec"]["purl"] == f"pkg:pypi/msgspec@{found['msgspec']['version']}"
    assert found["msgspec"]["externalReferences"][0]["hashes"]
    assert bom == load("sbom").of_lock(ROOT), "two runs differ"


def test_it_has_the_debian_packages_that_the_image_names(load: Load, tmp_path: Path) -> None:
    image = load("image")
    root = tmp_path / "root"
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    (folder / "libc6").write_text(
        "Package: libc6\nVersion: 2.36-9+deb12u10\nArchitecture: amd64\nStatus: x\n"
    )
    image.write(tmp_path / "image.tar", "gpuslice:dev", [image.layer(root, 0)], 0)
    (one,) = load("sbom").of_image(tmp_path / "image.tar")
    assert (one["name"], one["version"]) == ("libc6", "2.36-9+deb12u10")
    assert one["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"
