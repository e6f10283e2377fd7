"""The MIG layout of one GPU, and whether it is legal: GPU instances in windows, compute instances in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpuslice.devices.mig import GiProfile, MigGeometry
from gpuslice.devices.migprofile import MigProfile, can_be_part
from gpuslice.errors import InputError, quoted
from gpuslice.units import read_digits


@dataclass(frozen=True, slots=True, order=True)
class ComputeInstance:
    """A part of a GPU instance that a container can hold: with it, it is one MIG device.

    `id` is unique within the GPU instance.
    """

    slices: int
    id: int = 0
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A window of the GPU. `start`, its first memory slice, identifies it on a GPU; `id` is the driver's."""

    profile: GiProfile
    start: int
    id: int
    compute: tuple[ComputeInstance, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Made once: planning looks the same instances up thousands of times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute", tuple(sorted(self.compute, key=lambda ci: ci.id)))
        object.__setattr__(self, "_hash", hash((self.profile.id, self.start, self.compute)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def in_use(self) -> bool:
        """True if one of its compute instances is."""
        return any(ci.in_use for ci in self.compute)

    @property
    def mask(self) -> int:
        """Its memory slices, as bits."""
        return self.profile.mask(self.start)

    @property
    def spare(self) -> int:
        """Compute slices that no compute instance has."""
        return self.profile.slices - sum(ci.slices for ci in self.compute)

    def device(self, ci: ComputeInstance) -> MigProfile:
        """The profile of the MIG device that one of its compute instances is: `1c.3g.20gb`."""
        return replace(self.profile.name, compute=ci.slices)

    @property
    def devices(self) -> tuple[MigProfile, ...]:
        """The profiles of its MIG devices, by compute instance id."""
        return tuple(self.device(ci) for ci in self.compute)

    def __str__(self) -> str:
        return f"{self.profile} at {self.profile.window(self.start)}"


@dataclass(frozen=True, slots=True)
class MigLayout:
    """All instances of one GPU, ordered by start. If it is impossible, `fault` says what is wrong with it."""

    geometry: MigGeometry
    instances: tuple[GpuInstance, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.instances, key=lambda gi: (gi.start, gi.profile.size))
        object.__setattr__(self, "instances", tuple(ordered))
        object.__setattr__(self, "_hash", hash((self.geometry, self.instances)))

    def __hash__(self) -> int:
        return self._hash

    def at(self, start: int) -> GpuInstance | None:
        """The instance that begins there."""
        return next((gi for gi in self.instances if gi.start == start), None)

    @property
    def devices(self) -> Counter[MigProfile]:
        """How many MIG devices of each profile there are."""
        return Counter(device for gi in self.instances for device in gi.devices)

    @property
    def idle_devices(self) -> Counter[MigProfile]:
        """Those of them that nobody uses."""
        return Counter(gi.device(ci) for gi in self.instances for ci in gi.compute if not ci.in_use)

    @property
    def occupied(self) -> int:
        """Memory slices that are taken, as bits."""
        return sum(gi.mask for gi in self.instances)

    @property
    def fault(self) -> str | None:
        """Why no driver would allow this layout, in one sentence; None if it is legal."""
        return fault_of(self)

    def __str__(self) -> str:
        return ", ".join(map(str, self.instances)) or "nothing"


def instance(
    geometry: MigGeometry, profile: MigProfile | str, start: int, *compute: int, in_use: bool = False
) -> GpuInstance:
    """A GPU instance with the ids that the driver would give. Without `compute` one instance takes all of it.

    `compute` are sizes in compute slices; a single 0 means none at all.
    """
    name = MigProfile.parse(profile) if isinstance(profile, str) else profile
    found = geometry.profile(name)
    sizes = () if compute == (0,) else compute or (found.slices,)
    parts = tuple(ComputeInstance(size, number, in_use) for number, size in enumerate(sizes))
    return GpuInstance(found, start, geometry.gi_id(found, start), parts)


def layout(geometry: MigGeometry, *placements: str) -> MigLayout:
    """A layout from "PROFILE@START" each, such as "3g.20gb@4"; "1c.3g.20gb@4" adds a part to what is there.

    Raises InputError for what cannot be read or cannot be.
    """
    found: dict[int, GpuInstance] = {}
    for text in placements:
        name, at, start = text.partition("@")
        wanted = MigProfile.parse(name)
        place = read_digits(start, geometry.memory_slices)
        if not at or place is None:
            raise InputError(f"{quoted(text)} is not a placement; write PROFILE@START, such as 3g.20gb@4")
        begun = found.get(place)
        if begun is None or begun.profile.name != wanted.gpu_instance:
            if begun is not None:
                raise InputError(f"{text} overlaps with {begun}")
            begun = instance(geometry, wanted.gpu_instance, place, 0)
        ci = ComputeInstance(wanted.compute, len(begun.compute))
        found[place] = replace(begun, compute=(*begun.compute, ci))
    made = MigLayout(geometry, tuple(found.values()))
    if made.fault is not None:
        raise InputError(made.fault)
    return made


def fault_of(what: MigLayout) -> str | None:
    """Why this layout is impossible, in one sentence that names the instance; None if it is legal."""
    geometry = what.geometry
    for gi in what.instances:
        if geometry.by_enum(gi.profile.enum) != gi.profile:
            return f"{gi.profile} does not exist on {geometry.name}; it has {geometry.listing}"
        if gi.start not in gi.profile.starts:
            starts = " or ".join(map(str, gi.profile.starts))
            return (
                f"{gi.profile} cannot begin at memory slice {gi.start} of {geometry.name}; it can at {starts}"
            )
        if (wrong := _fault_inside(gi)) is not None:
            return wrong
    for index, first in enumerate(what.instances):
        for second in what.instances[index + 1 :]:
            if first.mask & second.mask:
                return f"{second} overlaps with {first}"
    return count_fault(geometry, Counter(gi.profile for gi in what.instances))


def _fault_inside(gi: GpuInstance) -> str | None:
    slices = gi.profile.slices
    for ci in gi.compute:
        if not can_be_part(ci.slices, slices):
            return f"{gi}: a compute instance of {ci.slices} slices cannot be made in it"
    taken = sum(ci.slices for ci in gi.compute)
    if taken > slices:
        return f"{gi}: its compute instances take {taken} slices; it has {slices}"
    if len({ci.id for ci in gi.compute}) < len(gi.compute):
        return f"{gi}: two of its compute instances have the same id"
    return None


def count_fault(geometry: MigGeometry, counts: Counter[GiProfile]) -> str | None:
    """What is wrong with so many instances, wherever they lie; None if nothing is by number alone."""
    for profile, count in counts.items():
        if count > profile.max_count:
            return f"{count} x {profile} are too many: {geometry.name} takes at most {profile.max_count}"
    for limit in geometry.limits:
        users = {p: n for p, n in counts.items() if n and limit.share(p)}
        taken = sum(limit.share(p) * n for p, n in users.items())
        if taken > limit.total:
            return f"{say_counts(users.items())} take {taken} {limit.what}; {geometry.name} has {limit.total}"
    compute = sum(p.slices * n for p, n in counts.items())
    if compute > geometry.compute_slices:
        return (
            f"{say_counts(counts.items())} take {compute} compute slices; "
            f"{geometry.name} has {geometry.compute_slices}"
        )
    memory = sum(p.size * n for p, n in counts.items())
    if memory > geometry.memory_slices:
        return (
            f"{say_counts(counts.items())} take {memory} memory slices; "
            f"{geometry.name} has {geometry.memory_slices}"
        )
    return None


def say_counts(counts: Iterable[tuple[GiProfile | MigProfile, int]]) -> str:
    """Counts for sentences: "2 x 1g.5gb and 1 x 3g.20gb"."""
    words = [f"{count} x {profile}" for profile, count in counts if count]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:]))) or "nothing"
