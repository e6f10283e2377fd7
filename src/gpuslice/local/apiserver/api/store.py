"""The objects: one collection per kind, one version counter, one history to watch from.

An object is kept as its JSON bytes, encoded once for every reader and watcher; whoever wants to change
it decodes a private copy. So nothing stored can be changed by accident, a LIST joins bytes, and ten
thousand pods cost their text and little more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

from gpuslice.local.apiserver.api.entries import Entry, Event, Key
from gpuslice.local.apiserver.api.watch import Hub
from gpuslice.local.apiserver.schema import fields
from gpuslice.local.apiserver.schema.objects import encode
from gpuslice.local.apiserver.schema.status import Json, expired

HISTORY = 4096
"""Events kept per collection; a watch from before the oldest gets 410 and lists again."""
SNAPSHOTS = 64
"""Paged LISTs that may be under way at once; the least recently used one expires."""


class Collection:
    """All objects of one kind."""

    def __init__(self, store: Store, storage: tuple[str, str]) -> None:
        self.storage = storage
        self.selectable: Callable[[Json], dict[str, str]] = fields.reader(storage)
        self.hub = Hub(fields.INDEXED.get(storage, ""))
        self._store = store
        self._entries: dict[Key, Entry] = {}
        self._spaces: dict[str, dict[str, Entry]] = {}
        self._order: dict[str, list[Entry]] = {}
        self._history: deque[Event] = deque()
        self._forgotten = max(store.floor, store.version)
        """The version up to which history is lost: a watch must start at or after it."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, namespace: str, name: str) -> Entry | None:
        """The current version of an object."""
        return self._entries.get((namespace, name))

    def in_order(self, namespace: str = "") -> list[Entry]:
        """The objects of a namespace ("" for all), sorted by namespace and name. Do not change the list."""
        order = self._order.get(namespace)
        if order is None:
            entries: Iterable[Entry]
            entries = self._spaces.get(namespace, {}).values() if namespace else self._entries.values()
            order = self._order[namespace] = sorted(entries, key=lambda entry: entry.key)
        return order

    def as_of(self, version: int, namespace: str = "") -> list[Entry]:
        """The objects as they were at an older version. Raises 410 if that is too long ago."""
        self._check(version)
        state = dict(self._entries)
        for event in reversed(self._history):
            if event.version <= version:
                break
            if event.before is None:
                state.pop(event.key, None)
            else:
                state[event.key] = event.before
        return sorted(
            (entry for entry in state.values() if not namespace or entry.key[0] == namespace),
            key=lambda entry: entry.key,
        )

    def put(self, obj: Json) -> Entry:
        """Store a new version of an object; sets metadata.resourceVersion and tells the watchers."""
        version = self._store.next_version()
        obj["metadata"]["resourceVersion"] = str(version)
        return self._commit(Entry(encode(obj), obj, version, self.selectable(obj)))

    def _commit(self, entry: Entry) -> Entry:
        key = entry.key
        before = self._entries.get(key)
        self._entries[key] = entry
        self._spaces.setdefault(key[0], {})[key[1]] = entry
        self._order.pop("", None)
        self._order.pop(key[0], None)
        self._publish(Event(key, entry.version, before, entry))
        self._store.changed(self.storage, key, entry)
        return entry

    def drop(self, key: Key, last: Json) -> Entry:
        """Remove an object; `last` is the state that watchers see in DELETED."""
        version = self._store.next_version()
        last["metadata"]["resourceVersion"] = str(version)
        tomb = Entry(encode(last), last, version, self.selectable(last))
        before = self._entries.pop(key)
        space = self._spaces[key[0]]
        del space[key[1]]
        if not space:
            del self._spaces[key[0]]
        self._order.pop("", None)
        self._order.pop(key[0], None)
        self._publish(Event(key, version, before, None, tomb))
        self._store.changed(self.storage, key, None)
        return tomb

    def restore(self, obj: Json) -> None:
        """Put an object back from the database, unseen by watchers."""
        entry = Entry(encode(obj), obj, int(obj["metadata"]["resourceVersion"]), self.selectable(obj))
        self._entries[entry.key] = entry
        self._spaces.setdefault(entry.key[0], {})[entry.key[1]] = entry
        self._order.clear()

    def since(self, version: int) -> Iterator[Event]:
        """The events after a version, oldest first. Raises 410 if some of them are forgotten."""
        self._check(version)
        start = len(self._history)
        while start and self._history[start - 1].version > version:
            start -= 1
        for index in range(start, len(self._history)):
            yield self._history[index]

    def _check(self, version: int) -> None:
        if version < self._forgotten or version > self._store.version:
            # A version from the future is one of another life of this server: its client must list again too.
            raise expired(f"too old resource version: {version} ({self._forgotten})")

    def _publish(self, event: Event) -> None:
        self._history.append(event)
        if len(self._history) > HISTORY:
            self._forgotten = self._history.popleft().version
        self.hub.publish(event)


class Store:
    """Every collection and the version that counts all writes."""

    def __init__(self) -> None:
        self.version = 1
        self.floor = 0
        """The version that a restart began with: of what was before, no history is left."""
        self.dirty: dict[tuple[tuple[str, str], Key], Entry | None] | None = None
        """What a database has still to write; None where there is no database."""
        self._collections: dict[tuple[str, str], Collection] = {}
        self._snapshots: OrderedDict[int, list[Entry]] = OrderedDict()
        self._snapshot_ids = 0

    def next_version(self) -> int:
        """Count one write."""
        self.version += 1
        return self.version

    def collection(self, storage: tuple[str, str]) -> Collection:
        """The objects of a kind; an empty collection the first time."""
        found = self._collections.get(storage)
        if found is None:
            found = self._collections[storage] = Collection(self, storage)
        return found

    def collections(self) -> list[Collection]:
        """All collections there are."""
        return list(self._collections.values())

    def changed(self, storage: tuple[str, str], key: Key, entry: Entry | None) -> None:
        """Note a write for the database."""
        if self.dirty is not None:
            self.dirty[storage, key] = entry

    def keep_snapshot(self, rest: list[Entry]) -> int:
        """Keep the rest of a paged LIST; returns the id that its continue token carries."""
        self._snapshot_ids += 1
        self._snapshots[self._snapshot_ids] = rest
        while len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return self._snapshot_ids

    def snapshot(self, number: int) -> list[Entry]:
        """The rest of a paged LIST. Raises 410 if it is too long ago."""
        rest = self._snapshots.get(number)
        if rest is None:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. You can "
                "start a new list without the continue parameter."
            )
        self._snapshots.move_to_end(number)
        return rest
