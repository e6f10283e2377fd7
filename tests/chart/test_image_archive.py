"""The archive that tools/image.py writes: what containerd and docker look for is there, byte for byte the same."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from chart_world import ROOT


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "image", raising=False)
    import image

    return image


def _tree(root: Path, order: str) -> Path:
    root.mkdir()
    (root / "usr").mkdir()
    for name in order:
        (root / "usr" / name).write_text(name)
    (root / "usr" / "b").chmod(0o700)
    (root / "bin").symlink_to("usr")
    return root


def test_a_layer_depends_on_nothing_but_its_files(image: ModuleType, tmp_path: Path) -> None:
    """Not on the order in which they came, not on dates, owners or the umask."""
    one, two = _tree(tmp_path / "one", "abc"), _tree(tmp_path / "two", "cab")
    layers = [image.layer(root, 7) for root in (one, two)]
    assert layers[0].digest == layers[1].digest
    with tarfile.open(fileobj=io.BytesIO(layers[0].data)) as tar:
        found = {m.name: (oct(m.mode), m.uid, m.gid, m.mtime, m.linkname) for m in tar}
    assert found == {
        "bin": ("0o777", 0, 0, 7, "usr"),
        "usr": ("0o755", 0, 0, 7, ""),
        "usr/a": ("0o644", 0, 0, 7, ""),
        "usr/b": ("0o755", 0, 0, 7, ""),
        "usr/c": ("0o644", 0, 0, 7, ""),
    }


def test_one_archive_is_an_oci_layout_and_a_docker_archive(image: ModuleType, tmp_path: Path) -> None:
    """Every digest is that of the blob under its name; both formats mean the same image."""
    layers = [image.layer(_tree(tmp_path / "root", "ab"), 0)]
    image.write(tmp_path / "image.tar", "gpuslice:dev", layers, 0)
    with tarfile.open(tmp_path / "image.tar") as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    for name in files:
        if name.startswith("blobs/"):
            assert hashlib.sha256(files[name]).hexdigest() == name.rpartition("/")[2]
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/gpuslice:dev"
    manifest = json.loads(files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")])
    (docker,) = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == ["gpuslice:dev"]
    assert docker["Config"].endswith(manifest["config"]["digest"].removeprefix("sha256:"))
    assert [f"blobs/sha256/{one['digest'][7:]}" for one in manifest["layers"]] == docker["Layers"]
    config = json.loads(files[docker["Config"]])
    assert config["rootfs"]["diff_ids"] == [one["digest"] for one in manifest["layers"]]
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["gpuslice"]


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("gpuslice:dev", "docker.io/library/gpuslice:dev"),
        ("team/gpuslice:dev", "docker.io/team/gpuslice:dev"),
        ("registry.example/gpuslice:1", "registry.example/gpuslice:1"),
        ("localhost:5000/gpuslice:1", "localhost:5000/gpuslice:1"),
        ("localhost/gpuslice:1", "localhost/gpuslice:1"),
    ],
)
def test_the_name_is_the_one_that_kubelet_asks_for(image: ModuleType, tag: str, name: str) -> None:
    assert image.full_name(tag) == name


def test_the_containerfile_installs_with_the_tool_that_make_uses() -> None:
    pinned = re.search(r"^UV_VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert pinned is not None
    assert f"uv=={pinned[1]}\n" in (ROOT / "Containerfile").read_text()
