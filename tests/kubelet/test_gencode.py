"""The committed protobuf code is what the committed .proto files give."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc_tools import protoc

import gpuslice

SRC = Path(gpuslice.__file__).parents[1]
PROTO = SRC / "gpuslice/node/kubelet/proto"


@pytest.mark.parametrize("name", ["deviceplugin", "podresources"])
def test_regenerating_gives_no_diff(name: str, tmp_path: Path) -> None:
    """Nobody edited the generated code, and nobody edited a .proto without regenerating."""
    source = f"gpuslice/node/kubelet/proto/{name}.proto"
    failed = protoc.main(["protoc", f"-I{SRC}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", source])
    assert not failed
    for suffix in ("_pb2.py", "_pb2.pyi"):
        fresh = (tmp_path / f"gpuslice/node/kubelet/proto/{name}{suffix}").read_text()
        assert fresh == (PROTO / f"{name}{suffix}").read_text()
