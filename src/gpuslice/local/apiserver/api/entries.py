"""One version of an object, and one change: what the store keeps and watchers receive."""

from __future__ import annotations

from typing import Literal

from gpuslice.local.apiserver.schema.objects import decode, encode
from gpuslice.local.apiserver.schema.status import Json

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""

Type = Literal["ADDED", "MODIFIED", "DELETED"]


class Entry:
    """One version of one object. Immutable."""

    __slots__ = ("key", "labels", "raw", "selectable", "uid", "version")

    def __init__(self, raw: bytes, obj: Json, version: int, selectable: dict[str, str]) -> None:
        meta = obj["metadata"]
        self.raw = raw
        self.key: Key = (meta.get("namespace", ""), meta["name"])
        self.uid: str = meta.get("uid", "")
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.version = version
        self.selectable = selectable

    def field(self, path: str) -> str:
        """The value of a selectable field, "" where the object has none."""
        if path == "metadata.name":
            return self.key[1]
        if path == "metadata.namespace":
            return self.key[0]
        return self.selectable.get(path, "")

    def decode(self) -> Json:
        """A private copy of the object."""
        obj: Json = decode(self.raw)
        return obj


class Event:
    """One committed change: `before` and `after` are None where the object did not exist."""

    __slots__ = ("_frames", "after", "before", "key", "tomb", "version")

    def __init__(
        self,
        key: Key,
        version: int,
        before: Entry | None,
        after: Entry | None,
        tomb: Entry | None = None,
    ) -> None:
        self.key = key
        self.version = version
        self.before = before
        self.after = after
        self.tomb = tomb
        self._frames: dict[Type, bytes] = {}

    def raw(self, type_: Type) -> bytes:
        """The object that a watcher sees in an event of this type."""
        if type_ != "DELETED":
            assert self.after is not None
            return self.after.raw
        if self.tomb is not None:
            return self.tomb.raw
        # The object left the watcher's selection: it sees the last state that was in it, at this version.
        assert self.before is not None
        last = self.before.decode()
        last["metadata"]["resourceVersion"] = str(self.version)
        return encode(last)

    def frame(self, type_: Type) -> bytes:
        """The line on the wire, encoded once."""
        found = self._frames.get(type_)
        if found is None:
            found = self._frames[type_] = frame(type_, self.raw(type_))
        return found


def frame(type_: str, raw: bytes) -> bytes:
    """One line of a watch stream."""
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), raw)
