"""docker's /etc/docker/daemon.json, the file that gpushare's installation asks to change.

CDI came with docker 25 and is on from 28.2; before that `features.cdi` switches it on. kubelet reaches docker
through cri-dockerd, which passes CDI devices on only in its newest versions, so nothing is taken for granted:
CDI counts only where the file says so.
"""

from __future__ import annotations

import msgspec

from gpuslice.doctor.host.engines import CARE, Engine
from gpuslice.doctor.host.root import Root
from gpuslice.doctor.host.runtime import CDI_FOLDERS, Runtime


class Handler(msgspec.Struct, frozen=True):
    path: str = ""


class ConfigFile(msgspec.Struct, frozen=True, rename="kebab"):
    default_runtime: str = ""
    runtimes: dict[str, Handler] | None = None
    features: dict[str, bool] | None = None
    cdi_spec_dirs: tuple[str, ...] | None = None


def read(root: Root) -> Runtime | None:
    """docker as this host's file tells it; None if it has none."""
    path = CARE[Engine.DOCKER].file
    if not root.exists(path):
        return None
    one = root.json(path, ConfigFile) or ConfigFile()
    return Runtime(
        Engine.DOCKER,
        (path,),
        one.default_runtime or "runc",
        {name: handler.path for name, handler in (one.runtimes or {}).items()},
        (one.features or {}).get("cdi"),
        one.cdi_spec_dirs or CDI_FOLDERS,
    )
