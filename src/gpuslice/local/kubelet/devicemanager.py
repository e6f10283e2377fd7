"""A kubelet's device manager without its I/O: which ids go to which container.

It follows pkg/kubelet/cm/devicemanager/manager.go step by step, also where that is surprising, since
what passes here has to pass there: ids of init containers are reused in random order, a short answer of
GetPreferredAllocation is filled at random, and the set of ids in use is rebuilt from finished
allocations alone, so that an allocation in flight can be forgotten (`update`).

`plan` decides or asks; the caller talks to the plugin and comes back with `settle`, `insert` or
`rollback`. The texts of `AllocationError` are the kubelet's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from gpuslice.errors import GpuSliceError
from gpuslice.node.kubelet.messages import ContainerAllocation, Device

STOP_GRACE_SECONDS: Final = 300.0
"""A plugin that is away for longer loses its resource's capacity too (endpointStopGracePeriod)."""


class AllocationError(GpuSliceError):
    """The pod cannot be admitted; the text is what follows "Allocate failed due to"."""


@dataclass(frozen=True, slots=True)
class Take:
    """Decided: hand these ids to the container."""

    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """GetPreferredAllocation is to be called, then `DeviceManager.settle`."""

    resource: str
    available: frozenset[str]
    must_include: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds of one resource, with the plugin's answer for it."""

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    answer: ContainerAllocation


class Reusable:
    """Ids that ordinary init containers of one pod leave to its later containers."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}

    def of(self, resource: str) -> frozenset[str]:
        return frozenset(self._ids.get(resource, ()))

    def leave(self, resource: str, ids: Collection[str]) -> None:
        self._ids.setdefault(resource, set()).update(ids)

    def keep(self, resource: str, ids: Collection[str]) -> None:
        self._ids.get(resource, set()).difference_update(ids)


@dataclass(slots=True)
class _Resource:
    healthy: set[str]
    unhealthy: set[str]
    gone_since: float | None = None  # monotonic seconds; None while a plugin serves it


class DeviceManager:
    """All resources and holdings of one node. `random` plays Go's map order."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._resources: dict[str, _Resource] = {}
        self._in_use: dict[str, set[str]] = {}
        self._holdings: dict[str, dict[tuple[str, str], Holding]] = {}  # uid -> (container, resource)

    # --- plugins ----------------------------------------------------------------------------------
    def restore(self, resources: Iterable[str], holdings: Iterable[Holding], now: float) -> None:
        """Start from a checkpoint: resources are known, but have no ids until their plugin is back."""
        for resource in resources:
            self._resources[resource] = _Resource(set(), set(), gone_since=now)
        for holding in holdings:
            self._holdings.setdefault(holding.uid, {})[holding.container, holding.resource] = holding
        self._rebuild()

    def connect(self, resource: str) -> None:
        """A plugin registered; its ids come with `set_devices`."""
        known = self._resources.setdefault(resource, _Resource(set(), set()))
        known.gone_since = None

    def set_devices(self, resource: str, devices: Iterable[Device]) -> None:
        """ListAndWatch sent the complete list."""
        known = self._resources[resource]
        known.healthy, known.unhealthy = set(), set()
        for device in devices:
            (known.healthy if device.healthy else known.unhealthy).add(device.id)

    def disconnect(self, resource: str, now: float) -> None:
        """The plugin's stream ended: none of its ids is healthy any more. `now` in monotonic seconds."""
        known = self._resources[resource]
        known.unhealthy |= known.healthy
        known.healthy = set()
        known.gone_since = now

    def forget_gone(self, now: float) -> bool:
        """Drop resources whose plugin has been away for STOP_GRACE_SECONDS; True if there were any."""
        old = [
            name
            for name, known in self._resources.items()
            if known.gone_since is not None and now - known.gone_since >= STOP_GRACE_SECONDS
        ]
        for name in old:
            del self._resources[name]
        return bool(old)

    def capacity(self) -> dict[str, int]:
        """All ids per resource, healthy or not."""
        return {name: len(known.healthy) + len(known.unhealthy) for name, known in self._resources.items()}

    def allocatable(self) -> dict[str, int]:
        """Healthy ids per resource."""
        return {name: len(known.healthy) for name, known in self._resources.items()}

    def healthy_ids(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(known.healthy) for name, known in self._resources.items()}

    def manages(self, resource: str) -> bool:
        """True if a plugin serves or has served this resource, or somebody holds ids of it."""
        return resource in self._resources or bool(self._in_use.get(resource))

    # --- allocation -------------------------------------------------------------------------------
    def update(self, active: Collection[str]) -> None:
        """Give back what pods hold that are not active any more.

        As in the kubelet, the rebuilt set of ids in use lacks those of an Allocate call in flight.
        """
        ended = [uid for uid in self._holdings if uid not in active]
        if ended:
            for uid in ended:
                del self._holdings[uid]
            self._rebuild()

    def plan(
        self, uid: str, container: str, resource: str, size: int, reusable: Collection[str], *, running: bool
    ) -> Take | Ask | None:
        """Choose ids for a container, or say what to ask the plugin; None if it has its ids already.

        `running`: the container runs (a restarted kubelet admits its pod again): nothing is checked.
        Raises AllocationError.
        """
        held = self.held(uid, container, resource)
        if held is not None and len(held) != size:
            raise AllocationError(
                f'pod "{uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(held)} to {size}"
            )
        if running:
            return None
        known = self._resources.get(resource)
        if known is None:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held is not None:
            if not held <= known.healthy:
                raise AllocationError(
                    "previously allocated devices are no longer healthy; "
                    f"cannot allocate unhealthy devices {resource}"
                )
            return None
        if size == 0:
            return None
        if len(reusable) >= size:
            return self._take(resource, self._sample(reusable, size))
        reused = frozenset(reusable)
        available = frozenset(known.healthy - self._in_use.get(resource, set()) - reused)
        needed = size - len(reused)
        self._mark(resource, reused)
        if len(available) < needed:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        if len(available) == needed:
            return self._take(resource, reused | available)
        return Ask(resource, available | reused, reused, size)

    def settle(self, ask: Ask, preferred: Sequence[str]) -> Take:
        """Turn the plugin's preference into ids: too few are filled up at random, too many thinned out."""
        free = ask.available - ask.must_include
        needed = ask.size - len(ask.must_include)
        wanted = free.intersection(preferred)
        if len(wanted) > needed:
            wanted = self._sample(wanted, needed)
        rest = self._sample(free - wanted, needed - len(wanted))
        return self._take(ask.resource, ask.must_include | wanted | rest)

    def insert(self, holding: Holding) -> None:
        """Allocate succeeded. As in the kubelet, this does not mark the ids as in use once more."""
        self._holdings.setdefault(holding.uid, {})[holding.container, holding.resource] = holding

    def rollback(self) -> None:
        """Allocate failed: in use is what is held."""
        self._rebuild()

    def lose_track_of(self, uid: str) -> None:
        """Make the kubelet's race happen: until the next rebuild it offers this running pod's ids again."""
        for holding in self._holdings.get(uid, {}).values():
            self._in_use[holding.resource] -= holding.ids

    # --- questions --------------------------------------------------------------------------------
    def held(self, uid: str, container: str, resource: str) -> frozenset[str] | None:
        holding = self._holdings.get(uid, {}).get((container, resource))
        return holding.ids if holding else None

    def holdings(self, uid: str, container: str) -> list[Holding]:
        """Everything one container holds, a resource each."""
        return [holding for (name, _), holding in self._holdings.get(uid, {}).items() if name == container]

    def all_holdings(self, uid: str | None = None) -> Iterator[Holding]:
        """Everything that one pod holds, or all of them."""
        for mine in self._holdings.values() if uid is None else [self._holdings.get(uid, {})]:
            yield from mine.values()

    def in_use(self) -> Mapping[str, frozenset[str]]:
        """The ids that it will not offer, per resource."""
        return {name: frozenset(ids) for name, ids in self._in_use.items()}

    def _rebuild(self) -> None:
        self._in_use = {}
        for holding in self.all_holdings():
            self._mark(holding.resource, holding.ids)

    def _mark(self, resource: str, ids: Iterable[str]) -> None:
        self._in_use.setdefault(resource, set()).update(ids)

    def _take(self, resource: str, ids: frozenset[str]) -> Take:
        self._mark(resource, ids)
        return Take(ids)

    def _sample(self, ids: Collection[str], count: int) -> frozenset[str]:
        if count in (0, len(ids)):
            return frozenset(ids if count else ())
        # Sorted first: a set's order depends on the process's hash seed, and tests need theirs.
        return frozenset(self._random.sample(sorted(ids), count))
