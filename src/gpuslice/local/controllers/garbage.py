"""Garbage collection: deletes objects whose owners are gone.

Background: dependents are deleted after their owner. Foreground: the owner waits, by a finalizer, for
the dependents that block it. Orphan: dependents lose the reference and stay. Before anything is
deleted for want of an owner, the server itself is asked whether the owner is really gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Final

from gpuslice.errors import NotFound
from gpuslice.kube.client import Propagation
from gpuslice.kube.wire import OwnerReference, Resource
from gpuslice.local.controllers.discovery import collectable, metadata_kind
from gpuslice.local.controllers.informers import Informer
from gpuslice.local.controllers.objects import Json, Managed
from gpuslice.local.controllers.podcontrol import references
from gpuslice.local.controllers.runtime import Controller, Shared

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
DISCOVERY: Final = "discovery"
"""The queue's key for looking which kinds there are; all other keys are uids."""
DISCOVERY_SECONDS: Final = 30.0
IGNORED: Final = frozenset({("", "events"), ("events.k8s.io", "events")})
CRDS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)


class GarbageCollector(Controller):
    """Follows the metadata of every kind and deletes what nobody owns any more."""

    name: ClassVar[str] = "garbage"
    reads: ClassVar[tuple[type[Managed], ...]] = ()

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._informers: dict[Resource, Informer[Any]] = {}
        self._dependents: dict[str, set[str]] = {}  # owner uid -> uids
        self._where: dict[str, Informer[Any]] = {}  # uid -> informer
        self.queue.add(DISCOVERY)

    def kinds(self) -> dict[Resource, Informer[Any]]:
        """Every kind that is followed."""
        return self._informers

    async def reconcile(self, key: str) -> None:
        """Look at one object: does it wait for dependents, and has it still an owner?"""
        if key == DISCOVERY:
            await self._discover()
            self.queue.add_after(DISCOVERY, DISCOVERY_SECONDS)
            return
        item = self._find(key)
        if item is None:
            return
        if item.deleting:
            if FOREGROUND in item.metadata.finalizers:
                await self._foreground(item)
            if ORPHAN in item.metadata.finalizers:
                await self._orphan(item)
        elif item.metadata.owner_references:
            await self._check_owners(item)

    # --- the graph ----------------------------------------------------------------------------------
    async def _discover(self) -> None:
        fresh = []
        known = {(one.resource.group, one.resource.plural): one for one in self.shared.informers.kinds()}
        for resource in await collectable(self.client):
            if resource in self._informers or (resource.group, resource.plural) in IGNORED:
                continue
            kind = known.get((resource.group, resource.plural)) or metadata_kind(resource)
            informer = self.shared.informers.of(kind)
            self._informers[resource] = informer
            informer.listeners.append(partial(self._on_change, informer))
            for item in informer.items.values():
                self._on_change(informer, None, item)
            if (resource.group, resource.plural) == (CRDS.group, CRDS.plural):
                informer.listeners.append(lambda *_: self.queue.add_after(DISCOVERY, 1.0))
            fresh.append(kind)
        await self.shared.informers.wait_synced(fresh)

    def _on_change(self, here: Informer[Any], before: Managed | None, after: Managed | None) -> None:
        for ref in before.metadata.owner_references if before is not None else ():
            if after is None or ref not in after.metadata.owner_references:
                dependents = self._dependents.get(ref.uid, set())
                dependents.discard(before.uid)  # type: ignore[union-attr]
                if not dependents:
                    self._dependents.pop(ref.uid, None)
                self._look_at_waiting(ref.uid)
        if after is None:
            assert before is not None
            self._where.pop(before.uid, None)
            for uid in self._dependents.get(before.uid, ()):
                self.queue.add(uid)
            return
        self._where[after.uid] = here
        for ref in after.metadata.owner_references:
            self._dependents.setdefault(ref.uid, set()).add(after.uid)
            if ref.uid not in self._where:
                self.queue.add(after.uid)
            elif before is None:
                self._look_at_waiting(ref.uid)
        if after.deleting and not {FOREGROUND, ORPHAN}.isdisjoint(after.metadata.finalizers):
            self.queue.add(after.uid)

    def _look_at_waiting(self, uid: str) -> None:
        owner = self._find(uid)
        if owner is not None and _waiting(owner):
            self.queue.add(uid)

    def _find(self, uid: str) -> Managed | None:
        informer = self._where.get(uid)
        return informer.by_uid(uid) if informer is not None else None

    def _dependents_of(self, uid: str) -> list[Managed]:
        found = (self._find(one) for one in self._dependents.get(uid, ()))
        return [one for one in found if one is not None]

    # --- policies -----------------------------------------------------------------------------------
    async def _check_owners(self, item: Managed) -> None:
        solid, waiting, gone = [], [], []
        for ref in item.metadata.owner_references:
            owner = self._find(ref.uid) or await self._ask(item, ref)
            if owner is None:
                gone.append(ref)
            elif _waiting(owner):
                waiting.append(ref)
            else:
                solid.append(ref)
        if solid:
            if gone or waiting:
                keep = [one for one in references(item) if one["uid"] in {ref.uid for ref in solid}]
                await self._patch(item, {"ownerReferences": keep})
        elif waiting and self._dependents.get(item.uid):
            await self._delete(item, "Foreground")
        else:
            await self._delete(item, _own_policy(item))

    async def _ask(self, item: Managed, ref: OwnerReference) -> Managed | None:
        """The owner as the server has it; None if it is gone or another object has its name."""
        for resource in self._informers:
            if (resource.api_version, resource.kind) == (ref.api_version, ref.kind):
                break
        else:
            resource = await self._resource_of(ref)
        namespace = item.namespace if resource.namespaced else None
        try:
            owner = await self.client.get(metadata_kind(resource), ref.name, namespace)
        except NotFound:
            return None
        return owner if owner.uid == ref.uid else None

    async def _resource_of(self, ref: OwnerReference) -> Resource:
        """A kind in another version than the preferred one. An unknown kind is looked for again later."""
        group, _, version = ref.api_version.rpartition("/")
        for resource in self._informers:
            if (resource.group, resource.kind) == (group, ref.kind):
                return Resource(group, version, resource.plural, resource.kind, resource.namespaced)
        raise NotFound(404, f"no kind {ref.kind} in {ref.api_version}")

    async def _foreground(self, item: Managed) -> None:
        dependents = self._dependents_of(item.uid)
        for one in dependents:
            if not one.deleting:
                await self._check_owners(one)
        if not any(_blocks(one, item.uid) for one in dependents):
            await self._drop_finalizer(item, FOREGROUND)

    async def _orphan(self, item: Managed) -> None:
        for one in self._dependents_of(item.uid):
            keep = [ref for ref in references(one) if ref["uid"] != item.uid]
            await self._patch(one, {"ownerReferences": keep or None})
        await self._drop_finalizer(item, ORPHAN)

    async def _drop_finalizer(self, item: Managed, finalizer: str) -> None:
        rest = [one for one in item.metadata.finalizers if one != finalizer]
        await self._patch(item, {"finalizers": rest or None})

    async def _patch(self, item: Managed, metadata: Json) -> None:
        precise = {"uid": item.uid, "resourceVersion": item.metadata.resource_version, **metadata}
        try:
            await self.client.patch(type(item), item.name, {"metadata": precise}, item.namespace or None)
        except NotFound:
            return

    async def _delete(self, item: Managed, policy: Propagation) -> None:
        try:
            await self.client.delete(
                item.resource, item.name, item.namespace or None, uid=item.uid, propagation=policy
            )
        except NotFound:
            return


def _waiting(owner: Managed) -> bool:
    return owner.deleting and FOREGROUND in owner.metadata.finalizers


def _blocks(dependent: Managed, owner: str) -> bool:
    return any(ref.uid == owner and ref.block_owner_deletion for ref in dependent.metadata.owner_references)


def _own_policy(item: Managed) -> Propagation:
    finalizers: Iterable[str] = item.metadata.finalizers
    if ORPHAN in finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in finalizers else "Background"
