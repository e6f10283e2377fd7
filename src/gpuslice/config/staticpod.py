"""Changes a static pod on a control-plane host in such a way that it cannot be left half changed.

kubelet runs every file of its manifests folder whose name does not begin with a dot, so copies lie elsewhere
and new content comes in by one rename.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuslice.config.kubescheduler import (
    Json,
    Wiring,
    check_manifest,
    config_argument,
    configuration,
    host_path,
    is_wired,
    kubeconfig_argument,
    unwired,
    wired,
)
from gpuslice.errors import InputError


@dataclass(frozen=True, slots=True)
class Change:
    """The two files as they should be."""

    config: str
    manifest: str


def render(wiring: Wiring, kubeconfig: str | None) -> Json:
    """The configuration for a scheduler of which nothing else is known."""
    return configuration(wiring, kubeconfig=kubeconfig or "/etc/kubernetes/scheduler.conf")


def text_of(config: Json, wiring: Wiring) -> str:
    """As kube-scheduler reads it: YAML, and JSON for the Policy of old."""
    if wiring.uses_policy:
        return json.dumps(config, indent=2) + "\n"
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


class StaticPod:
    """One kube-scheduler's manifest, the configuration of ours, and where copies are kept."""

    def __init__(self, manifest: Path, config: Path, backups: Path) -> None:
        self._manifest = manifest
        self._config = config
        self._backups = backups
        if backups.absolute() == manifest.absolute().parent:
            raise InputError(
                "kubelet would run the copies in it; choose another folder", field="--backup-dir"
            )
        if not config.is_absolute():
            raise InputError("must be absolute: the container mounts it", field="--config-file")

    def plan(self, wiring: Wiring, kubeconfig: str | None) -> Change:
        """Read what there is and say what there should be. Raises InputError naming the file."""
        manifest = self._read()
        original = unwired(manifest)
        base = self._base(original)
        try:
            config = configuration(wiring, kubeconfig=kubeconfig or kubeconfig_argument(original), base=base)
        except InputError as error:
            raise InputError(str(error), field=config_argument(original) or "") from error
        return Change(text_of(config, wiring), _dump(wired(manifest, wiring, str(self._config))))

    def apply(self, change: Change) -> list[str]:
        """Write both files, the configuration first; says what was done. Repeating it does nothing."""
        done: list[str] = []
        before = self._manifest.read_text()
        if _text(self._config) != change.config:
            self._config.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._config, change.config, mode=0o600)
            done.append(f"wrote {self._config}")
        if yaml.safe_load(before) != yaml.safe_load(change.manifest):
            if not is_wired(yaml.safe_load(before)):
                done.append(f"kept a copy of {self._manifest} as {self._back_up()}")
            _replace(self._manifest, change.manifest)
            done.append(f"changed {self._manifest}; kubelet restarts kube-scheduler now")
        elif done:
            done.append("kube-scheduler reads it when it is started anew")
        return done

    def without_us(self) -> str:
        """The manifest without what we put in; "" if there is nothing."""
        manifest = self._read()
        return _dump(unwired(manifest)) if is_wired(manifest) else ""

    def undo(self) -> list[str]:
        """Take out what was put in; says what was done."""
        text = self.without_us()
        if not text:
            return []
        _replace(self._manifest, text)
        done = [f"changed {self._manifest}; kubelet restarts kube-scheduler now"]
        if self._config.exists():
            self._config.unlink()
            done.append(f"removed {self._config}")
        return done

    def _read(self) -> Json:
        try:
            return check_manifest(_parse(self._manifest))
        except InputError as error:
            raise InputError(str(error), field=str(self._manifest)) from error

    def _base(self, manifest: Json) -> dict[str, Any] | None:
        """The configuration that it reads without us."""
        inside = config_argument(manifest)
        if inside is None:
            return None
        outside = host_path(manifest, inside)
        if outside is None:
            raise InputError(
                f"reads {inside}, which no hostPath volume brings; add the extender to it by hand"
            )
        document = _parse(Path(outside))
        if not isinstance(document, dict):
            raise InputError("is not a configuration of kube-scheduler", field=outside)
        return document

    def _back_up(self) -> Path:
        self._backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = 0
        while (path := self._backups / f"{self._manifest.stem}-{number}{self._manifest.suffix}").exists():
            number += 1
        shutil.copy2(self._manifest, path)
        return path


def _parse(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise InputError("there is no such file", field=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"is not YAML: {' '.join(str(error).split())}", field=str(path)) from error


def _dump(document: Json) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _replace(path: Path, text: str, mode: int | None = None) -> None:
    """New content in one step, with the old file's owner and mode."""
    temporary = path.with_name(f".{path.name}.gpuslice")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    if path.exists():
        shutil.copystat(path, temporary)
        status = path.stat()
        if os.geteuid() == 0:
            os.chown(temporary, status.st_uid, status.st_gid)
    elif mode is not None:
        temporary.chmod(mode)
    temporary.replace(path)
