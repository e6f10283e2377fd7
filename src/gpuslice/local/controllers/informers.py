"""Shared caches: one reflector per kind, however many controllers read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from gpuslice.clock import Clock
from gpuslice.kube.client import Client
from gpuslice.kube.reflector import Reflector
from gpuslice.local.controllers.objects import Managed

M = TypeVar("M", bound=Managed)

Listener = Callable[[M | None, M | None], None]
"""Called with (before, after): (None, x) appeared, (x, y) changed, (x, None) vanished."""


class Informer(Generic[M]):
    """The last known state of every object of one kind, findable by key, uid, namespace and controller."""

    def __init__(self, kind: type[M]) -> None:
        self.kind = kind
        self.items: dict[str, M] = {}
        self.listeners: list[Listener[M]] = []
        self._by_uid: dict[str, str] = {}
        self._by_namespace: dict[str, set[str]] = {}
        self._by_controller: dict[str, set[str]] = {}
        self._free: dict[str, set[str]] = {}  # namespace -> keys of those that nobody controls

    def get(self, key: str) -> M | None:
        """By `namespace/name`."""
        return self.items.get(key)

    def latest(self, item: M) -> M:
        """The known state of the same object; itself if it is not known (any more)."""
        return self.by_uid(item.uid) or item

    def by_uid(self, uid: str) -> M | None:
        """The object with that uid, whatever its name."""
        key = self._by_uid.get(uid)
        return None if key is None else self.items[key]

    def controlled_by(self, uid: str) -> list[M]:
        """Those whose controlling owner has that uid."""
        return [self.items[key] for key in self._by_controller.get(uid, ())]

    def count_controlled_by(self, uid: str) -> int:
        """How many those are."""
        return len(self._by_controller.get(uid, ()))

    def free_in(self, namespace: str) -> list[M]:
        """Those of the namespace that have no controller: candidates for adoption."""
        return [self.items[key] for key in self._free.get(namespace, ())]

    def in_namespace(self, namespace: str) -> Iterator[M]:
        """All objects of a namespace."""
        return (self.items[key] for key in list(self._by_namespace.get(namespace, ())))

    def put(self, item: M) -> None:
        """Take in an object's new state and tell the listeners."""
        key = item.key
        before = self.items.get(key)
        if before is not None:
            self._unindex(before)
        self.items[key] = item
        self._by_uid[item.uid] = key
        self._by_namespace.setdefault(item.namespace, set()).add(key)
        self._index_of(item).setdefault(item.controller_uid or item.namespace, set()).add(key)
        for listener in self.listeners:
            listener(before, item)

    def observe(self, item: M) -> None:
        """Take in the answer to a write of ours before the watch tells of it.

        Otherwise the next reconciliation would act on the state before the write and fail its precondition.
        """
        known = self.items.get(item.key)
        if known is not None and known.uid == item.uid and _version(item) > _version(known):
            self.put(item)

    def drop(self, item: M) -> None:
        """Forget an object and tell the listeners, with the fullest state that is known of it."""
        before = self.items.pop(item.key, None)
        if before is None:
            return
        self._unindex(before)
        for listener in self.listeners:
            listener(before, None)

    def _unindex(self, item: M) -> None:
        key = item.key
        self._by_uid.pop(item.uid, None)
        _discard(self._by_namespace, item.namespace, key)
        _discard(self._index_of(item), item.controller_uid or item.namespace, key)

    def _index_of(self, item: M) -> dict[str, set[str]]:
        return self._by_controller if item.controller_uid else self._free


class Informers:
    """The informers of all controllers; `run` follows them for ever."""

    def __init__(self, client: Client, *, clock: Clock, random: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._random = random
        self._informers: dict[type[Managed], Informer[Any]] = {}
        self._synced: dict[type[Managed], asyncio.Event] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def of(self, kind: type[M]) -> Informer[M]:
        """The one informer of a kind. It starts with `run`, or at once if that is under way."""
        informer = self._informers.get(kind)
        if informer is None:
            informer = self._informers[kind] = Informer(kind)
            self._start(informer)
        return cast("Informer[M]", informer)

    def kinds(self) -> list[type[Managed]]:
        """Every kind that has an informer."""
        return list(self._informers)

    async def run(self) -> None:
        """Follow every kind, for ever."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for informer in self._informers.values():
                self._start(informer)
            await asyncio.Event().wait()

    async def wait_synced(self, kinds: Iterable[type[Managed]]) -> None:
        """Wait until these kinds are completely known."""
        for kind in kinds:
            await self._synced.setdefault(kind, asyncio.Event()).wait()

    def _start(self, informer: Informer[M]) -> None:
        if self._tasks is None:
            return
        reflector = Reflector(
            self._client,
            informer.kind,
            on_set=informer.put,
            on_drop=informer.drop,
            clock=self._clock,
            random=self._random,
        )
        waiting = self._synced.get(informer.kind)
        if waiting is not None:
            reflector.synced = waiting
        self._synced[informer.kind] = reflector.synced
        self._tasks.create_task(reflector.run())


def _version(item: Managed) -> int:
    version = item.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _discard(index: dict[str, set[str]], at: str, key: str) -> None:
    keys = index.get(at)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[at]
