"""Watches: sends each change to its watchers, cheaply.

An event is encoded once per type and shared by everyone. Watchers stand in an index by the one thing
that narrows them most (an indexed field such as spec.nodeName, a name, a namespace), so that a hundred
kubelets watching their own pods cost one dictionary look-up per event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from gpuslice.local.apiserver.api.entries import Entry, Event, Type
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.selectors import FieldSelector, LabelSelector

BACKLOG = 65536
"""Events that may wait for a slow client; beyond that its watch ends and it resumes from its version."""


Render = Callable[[str, bytes], bytes]
"""From an event's type and object to the line on the wire, for tables and other versions of a kind."""


class Watcher:
    """One open watch. Fed by the hub, drained by whoever serves it."""

    __slots__ = (
        "_closed",
        "_lines",
        "_wake",
        "bookmark_at",
        "bookmarks",
        "deadline",
        "fields",
        "index",
        "kind",
        "labels",
        "namespace",
        "on_close",
        "render",
        "tables",
        "version",
    )

    def __init__(
        self,
        kind: Kind,
        namespace: str,
        labels: LabelSelector,
        fields: FieldSelector,
        *,
        indexed: str = "",
        render: Render | None = None,
        bookmarks: bool = False,
        tables: bool = False,
    ) -> None:
        self.kind = kind
        self.tables = tables
        self.namespace = namespace
        self.labels = labels
        self.fields = fields
        self.render = render
        self.bookmarks = bookmarks
        self.version = 0
        self.deadline = float("inf")
        self.bookmark_at = float("inf")
        self.on_close: Callable[[Watcher], None] | None = None
        self.index: tuple[str, str] = ("", "")
        if indexed and (value := fields.exact(indexed)) is not None:
            self.index = ("field", value)
        elif (name := fields.exact("metadata.name")) is not None:
            self.index = ("name", name)
        elif namespace:
            self.index = ("namespace", namespace)
        self._lines: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    def selects(self, entry: Entry | None) -> bool:
        """Whether the watcher is to see this version of an object."""
        return (
            entry is not None
            and (not self.namespace or entry.key[0] == self.namespace)
            and (not self.labels.clauses or self.labels.matches(entry.labels))
            and (not self.fields.clauses or self.fields.matches(entry.field))
        )

    def offer(self, event: Event) -> None:
        """Take one event, if it concerns this watcher."""
        was, is_ = self.selects(event.before), self.selects(event.after)
        if not was and not is_:
            return
        type_: Type = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
        self.version = event.version
        if self.render is None:
            self.send(event.frame(type_))
        else:
            self.send(self.render(type_, event.raw(type_)))

    def send(self, line: bytes) -> None:
        """Queue a line."""
        if self._closed:
            return
        self._lines.append(line)
        if len(self._lines) > BACKLOG:
            self.close()
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def batch(self) -> list[bytes]:
        """The lines queued since last time, waiting for at least one; empty once the watch has ended."""
        while not self._lines and not self._closed:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def close(self) -> None:
        """End the watch; what is queued may still be read. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if self.on_close is not None:
            self.on_close(self)


class Hub:
    """The watchers of one collection."""

    def __init__(self, indexed_field: str = "") -> None:
        self.indexed_field = indexed_field
        self._by_index: dict[tuple[str, str], dict[Watcher, None]] = {}

    def __len__(self) -> int:
        return sum(len(group) for group in self._by_index.values())

    def watchers(self) -> Iterable[Watcher]:
        """Everyone, as a copy."""
        return [watcher for group in self._by_index.values() for watcher in group]

    def add(self, watcher: Watcher) -> None:
        """Tell this watcher of changes from now on, until it is closed."""
        self._by_index.setdefault(watcher.index, {})[watcher] = None
        watcher.on_close = self._remove

    def publish(self, event: Event) -> None:
        """Tell everyone whom the event may concern."""
        groups = self._by_index
        if not groups:
            return
        namespace, name = event.key
        keys = {("", ""), ("name", name), ("namespace", namespace)}
        if self.indexed_field:
            for entry in (event.before, event.after):
                if entry is not None:
                    keys.add(("field", entry.selectable.get(self.indexed_field, "")))
        for key in keys:
            group = groups.get(key)
            if group:
                for watcher in tuple(group):
                    watcher.offer(event)

    def _remove(self, watcher: Watcher) -> None:
        group = self._by_index.get(watcher.index)
        if group is not None:
            group.pop(watcher, None)
            if not group:
                del self._by_index[watcher.index]
