"""Carries out what controllers plan: asks the gate before each action, and counts what fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpuslice.clock import Clock
from gpuslice.cluster.actions import Create, Delete, Evict, Patch, Record
from gpuslice.cluster.state import Cluster
from gpuslice.errors import ApiError, Conflict, NotFound, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.events import ChangeRecorder, EventRecorder
from gpuslice.kube.gate import Gate
from gpuslice.kube.quarantine import reason
from gpuslice.kube.reflector import is_before
from gpuslice.kube.wire import KubeObject, Node
from gpuslice.observe.repeats import Repeats

UNSEEN_SECONDS: Final = 5.0
"""How long to wait at most until the watch shows what was written."""
PROTECTED: Final = 429
"""The HTTP status of an eviction that a disruption budget forbids."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a sequence of actions: it ended at `failed`, or at a pod that has to stay for now."""

    protected: Evict | None = None
    failed: Exception | None = None

    @property
    def ok(self) -> bool:
        """True if all was done."""
        return self.protected is None and self.failed is None


class Executor:
    """One per controller. `gate`: used instead of the cluster's. `more`: kinds of actions that only this
    controller has, with the functions that carry them out.
    """

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        recorder: EventRecorder,
        *,
        clock: Clock,
        gate: Gate | None = None,
        more: Mapping[type[Any], Callable[[Any], Awaitable[None]]] | None = None,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._recorder = recorder
        self._states = ChangeRecorder(recorder)
        self._clock = clock
        self._gate = gate
        self._warnings = Repeats(clock.monotonic)
        self._more = more or {}
        self._unseen: dict[str, tuple[str, float]] = {}  # node -> version written ("": deleted), and when

    async def run(self, actions: Iterable[object]) -> Result:
        """Carry out a sequence, up to the first action that fails; the next plan has the rest again."""
        for action in actions:
            if why := (self._gate or self._cluster.gate).closed():
                return Result(failed=Unavailable(why))
            try:
                await self._carry_out(action)
            except (Conflict, NotFound) as error:
                return Result(failed=error)  # somebody was faster
            except Exception as error:
                if isinstance(action, Evict) and isinstance(error, ApiError) and error.status == PROTECTED:
                    return Result(protected=action)
                kind = type(action).__name__
                self._cluster.failed_actions[kind] += 1
                what = "an action failed"
                self._warnings.warning(what, key=f"{what}: {kind}", action=kind, error=reason(error))
                return Result(failed=error)
        return Result()

    def sees_its_writes(self) -> bool:
        """True once the cluster shows what was written on nodes, so that nothing is begun twice."""
        late = self._clock.monotonic() - UNSEEN_SECONDS
        for name, (version, at) in list(self._unseen.items()):
            node = self._cluster.node(name)
            there = node.metadata.resource_version if node is not None else ""
            if at < late or (not is_before(there, version) if there and version else there == version):
                del self._unseen[name]
        return not self._unseen

    async def _carry_out(self, action: object) -> None:
        match action:
            case Evict():
                with suppress(NotFound, Conflict):  # it has left already, or another pod has its name
                    await self._client.evict(
                        action.namespace, action.name, action.uid, dry_run=action.dry_run
                    )
            case Patch():
                patched = await self._client.patch(
                    action.kind, action.name, action.body, action.namespace, subresource=action.subresource
                )
                self._wrote(patched)
            case Create():
                created = await self._client.create(action.resource, action.body)
                if action.resource is Node.resource:
                    self._wrote(msgspec.json.decode(created, type=Node))
            case Delete():
                with suppress(NotFound):
                    await self._client.delete(action.resource, action.name)
                if action.resource is Node.resource:
                    self._unseen[action.name] = "", self._clock.monotonic()
            case Record():
                record = self._recorder.record if action.happened else self._states.record
                record(action.about, action.type, action.reason, action.message)
            case _:
                await self._more[type(action)](action)

    def _wrote(self, obj: KubeObject) -> None:
        if isinstance(obj, Node):
            self._unseen[obj.name] = obj.metadata.resource_version, self._clock.monotonic()
