"""containerd's files, also those that k3s and RKE2 write: config.toml and what it imports.

The CRI plugin's section has another name from version to version of the file: `cri` in 1,
`io.containerd.grpc.v1.cri` in 2, `io.containerd.cri.v1.runtime` from 3 on. Version 3 came with containerd
2.0, version 4 with 2.3 (RELEASES.md); an older file is brought up to date in memory, with its sections. CDI
came with 1.7, is on by default from 2.0 and always from 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

import msgspec

from gpuslice.doctor.host.engines import CARE, Engine
from gpuslice.doctor.host.root import Root
from gpuslice.doctor.host.runtime import CDI_FOLDERS, Runtime, is_nvidia

CDI_BY_DEFAULT: Final = 3
"""The version of the file with which containerd 2.0 came."""
NEWEST: Final = 4
DROP_INS: Final = "/etc/containerd/conf.d/*.toml"
"""Where nvidia-ctk writes since 1.18; read if the main file imports it, from 2.2 on also without one."""
_READ_FROM: Final = {2: "2.0", 3: "2.3"}
"""Version of a file -> the first containerd that also reads the section's other name in it: for 2.0 the newer
name is its own, and 2.3 brings version 3 up to date (seen with 2.4.2)."""


class Options(msgspec.Struct, frozen=True):
    binary_name: str = msgspec.field(name="BinaryName", default="")


class Handler(msgspec.Struct, frozen=True):
    options: Options | None = None


class Handlers(msgspec.Struct, frozen=True):
    default_runtime_name: str = ""
    runtimes: dict[str, Handler] | None = None


class Cri(msgspec.Struct, frozen=True):
    containerd: Handlers = Handlers()
    enable_cdi: bool | None = None
    cdi_spec_dirs: tuple[str, ...] | None = None


class Plugins(msgspec.Struct, frozen=True):
    first: Cri | None = msgspec.field(name="cri", default=None)
    second: Cri | None = msgspec.field(name="io.containerd.grpc.v1.cri", default=None)
    third: Cri | None = msgspec.field(name="io.containerd.cri.v1.runtime", default=None)


class ConfigFile(msgspec.Struct, frozen=True):
    """`version` is 0 where it is not said: in a main file that means 1, in a drop-in any."""

    version: int = 0
    imports: tuple[str, ...] = ()
    plugins: Plugins = Plugins()


@dataclass
class _Merged:
    """What containerd makes of several files."""

    default: str = ""
    handlers: dict[str, str] = field(default_factory=dict)
    cdi: bool | None = None
    folders: tuple[str, ...] = CDI_FOLDERS

    def add(self, section: Cri) -> None:
        """A later file changes what it names."""
        self.default = section.containerd.default_runtime_name or self.default
        for name, handler in (section.containerd.runtimes or {}).items():
            self.handlers[name] = handler.options.binary_name if handler.options else ""
        self.cdi = self.cdi if section.enable_cdi is None else section.enable_cdi
        self.folders = self.folders if section.cdi_spec_dirs is None else section.cdi_spec_dirs

    @property
    def has_nvidia(self) -> bool:
        return any(map(is_nvidia, self.handlers.values()))


def read(root: Root, engine: Engine = Engine.CONTAINERD) -> Runtime | None:
    """containerd as this host's files tell it; None if it has none. What is broken is left out."""
    main = CARE[engine].file
    starts, version = [main], 0
    if not root.exists(main):
        starts, version = root.glob(DROP_INS) if engine is Engine.CONTAINERD else [], NEWEST
    if not starts:
        return None
    found = dict(_loaded(root, starts))
    if main in found:
        version = found[main].version
    merged, last, overridden, misplaced, needs = _Merged(), _Merged(), "", "", ""
    for path, one in found.items():
        sections = _sections(one, version)
        for section in sections:
            merged.add(section)
        if sections:
            had, last = last.has_nvidia, _Merged()
            for section in sections:
                last.add(section)
            overridden = path if had and not last.has_nvidia else "" if last.has_nvidia else overridden
        if not misplaced and _speaks_of_nvidia(one.plugins) and not any(map(_names_nvidia, sections)):
            misplaced, needs = path, _READ_FROM.get(one.version or version, "")
    default = merged.default or "runc"
    return Runtime(
        engine,
        tuple(found) or (main,),
        default,
        merged.handlers,
        version >= CDI_BY_DEFAULT or None if merged.cdi is None else merged.cdi,
        merged.folders,
        unread="" if merged.has_nvidia else _unread(root, engine, frozenset(found)),
        misplaced="" if merged.has_nvidia else misplaced,
        misplaced_until=needs,
        overridden=overridden if version < CDI_BY_DEFAULT else "",
    )


def _loaded(root: Root, starts: list[str]) -> Iterator[tuple[str, ConfigFile]]:
    """These files and what they import, in containerd's order; each once."""
    pending, seen = list(starts), set[str]()
    while pending:
        path = pending.pop(0)
        real = root.real(path)
        if real in seen:
            continue
        seen.add(real)
        one = root.toml(path, ConfigFile)
        if one is None:
            continue
        yield path, one
        for pattern in one.imports:
            pending.extend(root.glob(normpath(PurePosixPath(path).parent / pattern)))


def _sections(one: ConfigFile, main_version: int) -> list[Cri]:
    """Those parts of a file that containerd takes for the CRI plugin's."""
    plugins, version = one.plugins, one.version or main_version
    if version >= CDI_BY_DEFAULT and one.version:
        wanted = [plugins.third]
    elif version >= CDI_BY_DEFAULT:
        # A drop-in without a version is brought up to date from the first one on.
        wanted = [plugins.second, plugins.third]
    else:
        wanted = [plugins.first, plugins.second] if version < 2 else [plugins.second]
    return [section for section in wanted if section is not None]


def _names_nvidia(section: Cri | None) -> bool:
    handlers = section.containerd.runtimes if section else None
    return any(
        one.options is not None and is_nvidia(one.options.binary_name) for one in (handlers or {}).values()
    )


def _speaks_of_nvidia(plugins: Plugins) -> bool:
    return any(map(_names_nvidia, (plugins.first, plugins.second, plugins.third)))


def _unread(root: Root, engine: Engine, read_files: frozenset[str]) -> str:
    """A file that somebody wrote for NVIDIA's runtime where this containerd does not look.

    nvidia-ctk writes below /etc/containerd; k3s and RKE2 never read that.
    """
    elsewhere = root.glob(DROP_INS)
    if engine is not Engine.CONTAINERD:
        elsewhere = [CARE[Engine.CONTAINERD].file, *elsewhere]
    for path in elsewhere:
        one = root.toml(path, ConfigFile) if path not in read_files else None
        if one is not None and _speaks_of_nvidia(one.plugins):
            return path
    return ""
