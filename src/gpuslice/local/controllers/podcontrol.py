"""Creating, deleting, adopting and releasing pods on behalf of an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from gpuslice.errors import Conflict, GpuSliceError, NotFound, Unavailable
from gpuslice.local.controllers.informers import Informer
from gpuslice.local.controllers.objects import Json, LabelSelector, Managed, Pod
from gpuslice.local.controllers.pods import generated_name, owner_reference
from gpuslice.local.controllers.runtime import Shared

BURST: Final = 500
"""Pods created or deleted at most in one reconciliation (kube-controller-manager's burstReplicas)."""
CONCURRENT: Final = 64
"""Requests in flight at once, over all owners: each needs a connection of its own."""
TRIES: Final = 3

M = TypeVar("M", bound=Managed)


class PodControl:
    """Writes pods and tells of it in events on their owner."""

    def __init__(self, shared: Shared, pods: Informer[Pod]) -> None:
        self._shared = shared
        self._slots = asyncio.Semaphore(CONCURRENT)
        # Before every other listener: whoever reconciles because of a pod must find its expectation met.
        pods.listeners.insert(0, self._observe)

    def _observe(self, before: Pod | None, after: Pod | None) -> None:
        if after is None:
            assert before is not None
            self._shared.expectations.met(before.uid)
        else:
            self._shared.expectations.met(after.key)
            if after.deleting:
                self._shared.expectations.met(after.uid)

    async def create(self, owner: Managed, pod: Json) -> None:
        """Create one pod. A repeated request that already took effect is a success.

        Raises Conflict if another object has the name.
        """
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        name, expectations = pod["metadata"]["name"], self._shared.expectations
        expectations.expect(owner.uid, key)
        try:
            await self._create(owner, pod)
        except Conflict:
            expectations.met(key)
            raise
        except GpuSliceError as error:
            expectations.met(key)
            self._shared.record(owner, "Warning", "FailedCreate", f"Error creating: {error}")
            raise
        except BaseException:
            expectations.met(key)
            raise
        self._shared.record(owner, "Normal", "SuccessfulCreate", f"Created pod: {name}")

    async def create_some(
        self, owner: Managed, makers: Sequence[Callable[[str], Json]], base: str = ""
    ) -> None:
        """Create a pod per maker, named `base-xxxxx` (default: after the owner), slowly at first."""

        async def one(make: Callable[[str], Json]) -> None:
            for tries in range(1, TRIES + 1):
                name = generated_name(base or owner.name, self._shared.random())
                try:
                    await self.create(owner, make(name))
                except Conflict:  # the name is taken
                    if tries == TRIES:
                        raise
                else:
                    return

        await slow_start([partial(one, make) for make in makers[:BURST]])

    async def delete_some(self, owner: Managed, pods: Iterable[Pod]) -> None:
        """Delete these pods at once. Raises the first failure after all have been tried."""
        results = await asyncio.gather(*(self.delete(owner, pod) for pod in pods), return_exceptions=True)
        _raise_first(results)

    async def _create(self, owner: Managed, pod: Json) -> None:
        metadata, doubtful = pod["metadata"], False
        for tries in range(1, TRIES + 1):
            try:
                async with self._slots:
                    await self._shared.client.create(Pod.resource, pod, metadata["namespace"])
            except Unavailable:
                doubtful = True  # it may exist: the same name tells on the next try
                if tries == TRIES:
                    raise
                await self._shared.clock.sleep(0.1 * tries)
            except Conflict:
                if not doubtful:
                    raise
                there = await self._shared.client.get(Pod, metadata["name"], metadata["namespace"])
                if there.controller_uid != owner.uid:
                    raise
                return
            else:
                return

    async def delete(self, owner: Managed, pod: Pod) -> None:
        """Delete exactly this incarnation; one that is gone already is a success."""
        expectations = self._shared.expectations
        expectations.expect(owner.uid, pod.uid)
        try:
            async with self._slots:
                await self._shared.client.delete(Pod.resource, pod.name, pod.namespace, uid=pod.uid)
        except (NotFound, Conflict):
            expectations.met(pod.uid)
            return
        except GpuSliceError as error:
            expectations.met(pod.uid)
            self._shared.record(owner, "Warning", "FailedDelete", f"Error deleting: {error}")
            raise
        except BaseException:
            expectations.met(pod.uid)
            raise
        self._shared.record(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")


async def claim(shared: Shared, informer: Informer[M], owner: Managed, selector: LabelSelector) -> list[M]:
    """The objects that `owner` controls, after adopting free ones that match and releasing those that do not.

    An owner that is being deleted adopts nothing. An object that is being deleted is left alone.
    """
    claimed: list[M] = []
    for item in informer.controlled_by(owner.uid):
        if selector.matches(item.labels) or item.deleting:
            claimed.append(item)
        elif not owner.deleting:
            await _reown(shared, informer, item, [ref for ref in references(item) if ref["uid"] != owner.uid])
    if owner.deleting or selector.empty:
        return claimed
    free = [item for item in informer.free_in(owner.namespace) if selector.matches(item.labels)]
    candidates = [item for item in free if not item.deleting]
    if not candidates:
        return claimed
    # Ask the server itself: an owner that was deleted and recreated under its name must adopt nothing.
    live = await shared.client.get(type(owner), owner.name, owner.namespace)
    if live.uid != owner.uid or live.deleting:
        return claimed
    for item in candidates:
        adopted = await _reown(shared, informer, item, [*references(item), owner_reference(owner)])
        if adopted is not None:
            claimed.append(adopted)
    return claimed


def references(item: Managed) -> list[Json]:
    """An object's owner references as they are written."""
    return [
        {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "name": ref.name,
            "uid": ref.uid,
            **({"controller": True} if ref.controller else {}),
            **({"blockOwnerDeletion": True} if ref.block_owner_deletion else {}),
        }
        for ref in item.metadata.owner_references
    ]


async def _reown(shared: Shared, informer: Informer[M], item: M, references: list[Json]) -> M | None:
    meta = {
        "uid": item.uid,
        "resourceVersion": item.metadata.resource_version,
        "ownerReferences": references or None,
    }
    try:
        answer = await shared.client.patch(informer.kind, item.name, {"metadata": meta}, item.namespace)
    except NotFound:
        return None
    informer.observe(answer)
    return answer


async def slow_start(work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do everything, 1, 2, 4, ... at a time; stop growing at the first batch that fails, and raise.

    If the server refuses (a quota, a webhook), it is asked a few times and not a thousand.
    """
    size, start = 1, 0
    while start < len(work):
        batch = work[start : start + size]
        results = await asyncio.gather(*(one() for one in batch), return_exceptions=True)
        _raise_first(results)
        start, size = start + size, size * 2


def _raise_first(results: Iterable[BaseException | None]) -> None:
    """Raise the first exception among results of gather."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
