"""CRI-O's files: /etc/crio/crio.conf and what is in /etc/crio/crio.conf.d; the later wins (crio.conf.d(5)).

CDI is on since 1.23, unless there is no folder for its specifications.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuslice.doctor.host.engines import CARE, Engine
from gpuslice.doctor.host.root import Root
from gpuslice.doctor.host.runtime import CDI_FOLDERS, Runtime, is_nvidia

DROP_INS: Final = "/etc/crio/crio.conf.d"
UNREAD: Final = "/etc/crio/conf.d"
"""Where nvidia-ctk 1.18 writes; CRI-O does not look there."""


class Handler(msgspec.Struct, frozen=True):
    runtime_path: str = ""


class Section(msgspec.Struct, frozen=True):
    default_runtime: str = ""
    runtimes: dict[str, Handler] | None = None
    cdi_spec_dirs: tuple[str, ...] | None = None


class Crio(msgspec.Struct, frozen=True):
    runtime: Section = Section()


class ConfigFile(msgspec.Struct, frozen=True):
    crio: Crio = Crio()


def read(root: Root) -> Runtime | None:
    """CRI-O as this host's files tell it; None if it has none. What is broken is left out."""
    main = CARE[Engine.CRIO].file
    paths = [path for path in (main, *root.files(DROP_INS)) if root.exists(path)]
    unread = root.files(UNREAD)
    if not paths and not unread:
        return None
    default, handlers = "", dict[str, str]()
    folders: tuple[str, ...] = CDI_FOLDERS
    for path in paths:
        one = root.toml(path, ConfigFile)
        if one is None:
            continue
        section = one.crio.runtime
        default = section.default_runtime or default
        folders = folders if section.cdi_spec_dirs is None else section.cdi_spec_dirs
        for name, handler in (section.runtimes or {}).items():
            handlers[name] = handler.runtime_path
    known = any(map(is_nvidia, handlers.values()))
    return Runtime(
        Engine.CRIO,
        tuple(paths),
        # What CRI-O 1.31 and newer start with.
        default or "crun",
        handlers,
        cdi=bool(folders),
        cdi_folders=folders,
        unread="" if known else next((path for path in unread if _speaks_of_nvidia(root, path)), ""),
    )


def _speaks_of_nvidia(root: Root, path: str) -> bool:
    one = root.toml(path, ConfigFile)
    handlers = one.crio.runtime.runtimes if one else None
    return any(is_nvidia(handler.runtime_path) for handler in (handlers or {}).values())
