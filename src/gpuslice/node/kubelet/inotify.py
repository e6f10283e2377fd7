"""Folder changes within milliseconds: a small wrapper around Linux' inotify, without it a slow poll.

A kubelet that restarts deletes every socket of its folder and makes its own anew; a plugin that is not back
at once costs running pods. All watchers of one process share one inotify instance, since a user may have
only 128 of them (fs.inotify.max_user_instances).

Constants: linux/inotify.h.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

POLL_SECONDS: Final = 0.2

_CREATE: Final = 0x100
_DELETE: Final = 0x200
_MOVED: Final = 0x40 | 0x80
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_IGNORED: Final = 0x8000
_MASK: Final = _CREATE | _DELETE | _MOVED | _DELETE_SELF | _MOVE_SELF
_HEADER: Final = struct.Struct("iIII")
_BUFFER: Final = 65536


class FolderWatch:
    """Calls `changed` soon after one of `names` appeared in a folder or vanished from it. `close` ends it.

    A kubelet writes its checkpoint into the same folder at every start of a container.
    """

    def __init__(self, folder: Path, names: Collection[str], changed: Callable[[], None]) -> None:
        self._names = frozenset(map(os.fsencode, names))
        self._changed = changed
        self._hub: _Hub | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch = -1
        hub = _hub()
        if hub is not None:
            self._watch = hub.add(folder, self)
        if self._watch >= 0:
            self._hub = hub
        else:
            self._poll()

    @property
    def instant(self) -> bool:
        """True if the kernel tells us; False if we look every POLL_SECONDS."""
        return self._hub is not None

    def notify(self, names: Collection[bytes]) -> None:
        """These files of the folder appeared or vanished; an empty set: nobody knows which."""
        if not names or not self._names.isdisjoint(names):
            self._changed()

    def lost(self) -> None:
        """The folder itself is gone: from now on look whether it is back."""
        self._hub = None
        self._poll()
        self._changed()

    def close(self) -> None:
        if self._hub is not None:
            self._hub.remove(self._watch, self)
            self._hub = None
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self) -> None:
        # The loop's own time and not a Clock: this stands in for the kernel, not for a decision.
        self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._check)

    def _check(self) -> None:
        self._changed()
        self._poll()


class _Hub:
    """One inotify instance, and the listeners of each of its watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, libc: ctypes.CDLL, descriptor: int) -> None:
        self._loop = loop
        self._libc = libc
        self._descriptor = descriptor
        self._watchers: dict[int, list[FolderWatch]] = {}
        loop.add_reader(descriptor, self._read)

    def add(self, folder: Path, watcher: FolderWatch) -> int:
        """Listen to a folder: the watch's number, or -1 if the kernel refuses."""
        watch: int = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK)
        if watch >= 0:
            self._watchers.setdefault(watch, []).append(watcher)
        elif not self._watchers:
            self._close()
        return watch

    def remove(self, watch: int, watcher: FolderWatch) -> None:
        watchers = self._watchers.get(watch, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers and self._watchers.pop(watch, None) is not None:
            self._libc.inotify_rm_watch(self._descriptor, watch)
        if not self._watchers:
            self._close()

    def _close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        _hubs.pop(self._loop, None)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _BUFFER)
        except BlockingIOError:
            return
        touched: dict[int, set[bytes]] = {}
        gone: set[int] = set()
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            touched.setdefault(watch, set()).add(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            if mask & (_IGNORED | _MOVE_SELF):
                gone.add(watch)
        if touched.pop(-1, None) is not None:
            # The kernel's queue overflowed: anything may have happened, so every listener looks.
            touched = {watch: set() for watch in self._watchers}
        for watch in gone:
            for watcher in self._watchers.pop(watch, []):
                watcher.lost()
        for watch, files in touched.items():
            for watcher in list(self._watchers.get(watch, ())):
                watcher.notify(files)
        if not self._watchers and _hubs.get(self._loop) is self:
            self._close()


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()


def _hub() -> _Hub | None:
    """The loop's inotify instance; None where there is none."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None and sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0:
            hub = _hubs[loop] = _Hub(loop, libc, descriptor)
    return hub
