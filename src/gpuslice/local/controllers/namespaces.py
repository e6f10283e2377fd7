"""Namespaces: emptied when they are deleted, furnished when they appear."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

import msgspec

from gpuslice.errors import Conflict, NotFound
from gpuslice.kube.wire import Resource
from gpuslice.local.controllers.discovery import collectable, metadata_kind
from gpuslice.local.controllers.objects import ConfigMap, Json, Managed, Namespace, ServiceAccount
from gpuslice.local.controllers.runtime import Controller, Shared

FINALIZER: Final = "kubernetes"
AGAIN_SECONDS: Final = 0.5
"""Content that waits for finalizers or grace periods is looked at again after this long."""
ROOT_CA: Final = "kube-root-ca.crt"


class NamespaceController(Controller):
    """Deletes everything in a namespace that is being deleted, then lets go of it."""

    name: ClassVar[str] = "namespace"
    reads: ClassVar[tuple[type[Managed], ...]] = (Namespace,)

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._namespaces = shared.informers.of(Namespace)
        self.own(self._namespaces)

    async def reconcile(self, key: str) -> None:
        """Empty it if it is being deleted; raises nothing for content that takes its time."""
        item = self._namespaces.get(key)
        if item is None or not item.deleting or FINALIZER not in (item.spec.finalizers or ()):
            return
        resources = [one for one in await collectable(self.client) if one.namespaced]
        left = sum(await asyncio.gather(*(self._empty(one, item.name) for one in resources)))
        if left:
            self.queue.add_after(key, AGAIN_SECONDS)
            return
        await self._finalize(item)

    async def _empty(self, resource: Resource, namespace: str) -> int:
        """Delete all objects of one kind. Returns how many there were."""
        listing = await self.client.list(metadata_kind(resource), namespace)
        for one in listing.items:
            if one.deleting:
                continue
            try:
                await self.client.delete(resource, one.name, namespace, uid=one.uid, propagation="Background")
            except (NotFound, Conflict):
                continue
        return len(listing.items)

    async def _finalize(self, item: Namespace) -> None:
        whole: Json = msgspec.json.decode(await self.client.read(Namespace.resource.path(None, item.name)))
        rest = [one for one in whole["spec"].get("finalizers") or () if one != FINALIZER]
        whole["spec"]["finalizers"] = rest
        await self.client.replace(Namespace.resource, item.name, whole, subresource="finalize")


class NamespaceFurnisher(Controller):
    """Keeps the default ServiceAccount and the cluster's root certificate in every namespace."""

    name: ClassVar[str] = "furnisher"
    reads: ClassVar[tuple[type[Managed], ...]] = (Namespace, ServiceAccount, ConfigMap)

    def __init__(self, shared: Shared, root_ca: str) -> None:
        super().__init__(shared)
        self._root_ca = root_ca
        self._namespaces = shared.informers.of(Namespace)
        self._accounts = shared.informers.of(ServiceAccount)
        self._maps = shared.informers.of(ConfigMap)
        self.own(self._namespaces)
        self._accounts.listeners.append(lambda before, after: self._on_change("default", before, after))
        self._maps.listeners.append(lambda before, after: self._on_change(ROOT_CA, before, after))

    def _on_change(self, name: str, before: Managed | None, after: Managed | None) -> None:
        item = after or before
        if item is not None and item.name == name:
            self.queue.add(item.namespace)

    async def reconcile(self, key: str) -> None:
        """Create what is missing and restore what was changed."""
        item = self._namespaces.get(key)
        if item is None or item.deleting:
            return
        if self._accounts.get(f"{key}/default") is None:
            await self._create(ServiceAccount.resource, key, "default", {})
        if not self._root_ca:
            return
        data = {"ca.crt": self._root_ca}
        there = self._maps.get(f"{key}/{ROOT_CA}")
        if there is None:
            await self._create(ConfigMap.resource, key, ROOT_CA, {"data": data})
        elif there.data != data:
            await self.patch(self._maps, there, {"data": data})

    async def _create(self, resource: Resource, namespace: str, name: str, content: Json) -> None:
        body = {"apiVersion": "v1", "kind": resource.kind, "metadata": {"name": name}, **content}
        try:
            await self.client.create(resource, body, namespace)
        except Conflict:
            return  # it is there already
