"""The kubeconfig of a local cluster: written at start, removed at the end, never over a foreign file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpuslice.errors import InputError

NAME = "gpuslice"
"""What `apiserver.serve` calls cluster, user and context."""


@contextmanager
def reserved(path: Path) -> Iterator[Path]:
    """A place for the kubeconfig while the block runs; what is there at the end, if it is ours, is removed.

    Raises InputError if the place holds a file that is not ours or whose cluster still runs, or if it cannot
    be written.
    """
    found = _read(path)
    if found is not None:
        server = _server(found)
        if server is None:
            raise InputError(
                f"{path} exists and was not written by gpuslice; choose another --kubeconfig or remove it"
            )
        if _answers(server):
            raise InputError(
                f"{path} belongs to a cluster that runs at {server}; choose another --kubeconfig"
            )
    made = _make_folder(path)
    try:
        yield path
    finally:
        if _server(_read(path)) is not None:
            path.unlink(missing_ok=True)
        for folder in made:
            with suppress(OSError):  # somebody has put something there
                folder.rmdir()


def _make_folder(path: Path) -> list[Path]:
    """Make the file's folder; returns what was made, innermost first. Raises InputError."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; choose another --kubeconfig"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: the folder is read-only; choose another --kubeconfig")
    return missing


def _read(path: Path) -> object:
    """The file's content; None if there is no file."""
    try:
        return yaml.safe_load(path.read_text()) or {}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}


def _server(content: Any) -> str | None:
    """The URL in a kubeconfig that we wrote; None for any other content."""
    try:
        (cluster,) = content["clusters"]
        (context,) = content["contexts"]
        server = cluster["cluster"]["server"]
    except (KeyError, TypeError, ValueError):
        return None
    ours = cluster.get("name") == context.get("name") == content.get("current-context") == NAME
    return server if ours and urlsplit(str(server)).hostname == "127.0.0.1" else None


def _answers(server: str) -> bool:
    address = urlsplit(server)
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((address.hostname or "", address.port or 443)) == 0
