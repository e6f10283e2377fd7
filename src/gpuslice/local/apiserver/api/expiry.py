"""Events live for an hour, as in Kubernetes; a cluster that runs for days must not drown in them."""

from __future__ import annotations

from collections import deque

from gpuslice.local.apiserver.api.entries import Key
from gpuslice.local.apiserver.api.reading import Reader
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.status import Json

EVENT_SECONDS = 3600
STORAGE = ("", "events")


class Expiry:
    """Removes events an hour after they were last written."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._due: deque[tuple[float, Key, str]] = deque()

    def note(self, kind: Kind, _before: Json | None, after: Json | None) -> None:
        """A commit: remember when an event's hour is over."""
        if after is not None and kind.storage == STORAGE:
            self._remember(after)

    def adopt(self) -> None:
        """Give events that a database restored another hour."""
        for entry in self._reader.store.collection(STORAGE).in_order():
            self._remember(entry.decode())

    def _remember(self, event: Json) -> None:
        meta = event["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        self._due.append((self._reader.clock.monotonic() + EVENT_SECONDS, key, meta["resourceVersion"]))

    def sweep(self) -> None:
        """Remove what is due and has not been written again since."""
        moment = self._reader.clock.monotonic()
        events = self._reader.store.collection(STORAGE)
        while self._due and self._due[0][0] <= moment:
            _, key, version = self._due.popleft()
            entry = events.get(*key)
            if entry is not None and str(entry.version) == version:
                events.drop(key, entry.decode())
