"""Which MIG instances can be made of a GPU: its GPU instance profiles, their places, and what they contain.

A GPU has two axes. A GPU instance takes a number of compute slices, and a window of memory slices that may
begin only at certain places. So the compute slices alone do not say what fits: 3g at 0 and 3g at 4 fill an
A100 although one of its seven compute slices is left.

On a node the geometry is built from what NVML says (`geometry_from_driver`), because names and sizes change
with the driver. The tables in `devices.migtables` are for simulated GPUs and for planning without a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpuslice.devices.migprofile import MigProfile, named_gb, parts_of
from gpuslice.errors import InputError

ATTRIBUTES: Final[Mapping[int, str]] = MappingProxyType(
    {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 17: "+gfx", 13: "-me", 14: "-me"}
    | {15: "+me.all", 16: "+me.all"}
)
"""Attribute of a profile by its number in NVML (nvml.h, NVML_GPU_INSTANCE_PROFILE_*); others have none."""
_KNOWN_ENUMS: Final = 18
_CI_ENUMS: Final = MappingProxyType({1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6})
_CI_ONE_WITH_MEDIA: Final = 7


@dataclass(frozen=True, slots=True)
class Engines:
    """Streaming multiprocessors and engines of an instance; None where no source says how many."""

    sm: int | None = None
    copy: int | None = None
    decoder: int | None = None
    encoder: int | None = None
    jpeg: int | None = None
    ofa: int | None = None


@dataclass(frozen=True, slots=True)
class CiProfile:
    """A compute instance of `slices` compute slices, of which a GPU instance holds at most `max_count`.

    `enum` is NVML's number (NVML_COMPUTE_INSTANCE_PROFILE_*), None where there is none for that size. `sm` is
    None where it is not known.
    """

    slices: int
    enum: int | None
    max_count: int
    sm: int | None


@dataclass(frozen=True, slots=True)
class GiProfile:
    """A GPU instance profile.

    `enum` is NVML's number for asking about a profile, `id` the one that nvidia-smi shows and that creating
    needs; they are different. `size` and `starts` are in memory slices. `memory_mib` is NVML's
    `memorySizeMB`, None if no source says it.
    """

    name: MigProfile
    enum: int
    id: int
    size: int
    starts: tuple[int, ...]
    max_count: int
    memory_mib: int | None = None
    engines: Engines = Engines()

    def __hash__(self) -> int:
        return self.enum << 8 | self.id

    @property
    def slices(self) -> int:
        """Compute slices that it takes."""
        return self.name.slices

    def mask(self, start: int) -> int:
        """The memory slices that it takes when it begins there, as bits."""
        return ((1 << self.size) - 1) << start

    def window(self, start: int) -> str:
        """Where it lies, as nvidia-smi writes placements: `4:4` is start 4, size 4."""
        return f"{start}:{self.size}"

    def __str__(self) -> str:
        return str(self.name)


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that a GPU has only so much of: `total` of `what`; instances take `shares`, by enum."""

    what: str
    total: int
    shares: tuple[tuple[int, int], ...]

    def share(self, profile: GiProfile) -> int:
        """What one instance of the profile takes."""
        return next((share for enum, share in self.shares if enum == profile.enum), 0)


@dataclass(frozen=True, slots=True)
class MigGeometry:
    """All MIG instances that can be made of one kind of GPU.

    `name` is for sentences ("A100-40"); `profiles` are ordered as nvidia-smi lists them, small to large.
    Raises InputError for two profiles of one name and for windows that do not lie on the GPU.
    """

    name: str
    memory_slices: int
    compute_slices: int
    profiles: tuple[GiProfile, ...]
    limits: tuple[Limit, ...] = ()
    _by_name: Mapping[MigProfile, GiProfile] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {profile.name: profile for profile in self.profiles}
        if len(by_name) < len(self.profiles):
            names = [str(profile) for profile in self.profiles]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(
                f"{self.name}: two MIG profiles are called {twice}; the driver's answers are not sound"
            )
        for profile in self.profiles:
            if profile.size < 1 or any(
                not 0 <= s <= self.memory_slices - profile.size for s in profile.starts
            ):
                raise InputError(
                    f"{self.name}: {profile} has a window outside the GPU's {self.memory_slices} memory "
                    "slices; the driver's answers are not sound"
                )
        object.__setattr__(self, "_by_name", MappingProxyType(by_name))

    def __hash__(self) -> int:
        return hash((self.name, self.memory_slices, len(self.profiles)))

    def find(self, wanted: MigProfile) -> GiProfile | None:
        """The GPU instance profile that `wanted` is (a part of), if this GPU has it."""
        return self._by_name.get(wanted.gpu_instance)

    def profile(self, wanted: MigProfile, *, field: str = "") -> GiProfile:
        """As `find`, but raises InputError that lists what there is."""
        found = self.find(wanted)
        if found is None:
            raise InputError(f"{wanted} does not exist on {self.name}; it has {self.listing}", field=field)
        return found

    @property
    def listing(self) -> str:
        """Names of all profiles, for sentences."""
        return ", ".join(str(profile) for profile in self.profiles) or "none"

    def by_id(self, profile_id: int) -> GiProfile | None:
        """The profile of the id that nvidia-smi shows."""
        return next((profile for profile in self.profiles if profile.id == profile_id), None)

    def by_enum(self, enum: int) -> GiProfile | None:
        """The profile of NVML's number."""
        return next((profile for profile in self.profiles if profile.enum == enum), None)

    def gi_id(self, profile: GiProfile, start: int) -> int:
        """The id that the driver gives to an instance there: the heap index of its window.

        On seven-slice GPUs 0 is all, 1 and 2 the halves, 3 to 6 the quarters, 7 + start a single slice.
        """
        return self.memory_slices // profile.size - 1 + start // profile.size

    def ci_profiles(self, profile: GiProfile) -> tuple[CiProfile, ...]:
        """Compute instances that can be made in a GPU instance, the smallest first."""
        return tuple(
            CiProfile(
                part,
                _CI_ONE_WITH_MEDIA if profile.enum == _CI_ONE_WITH_MEDIA else _CI_ENUMS.get(part),
                profile.slices // part,
                self._sm_of_part(profile, part),
            )
            for part in parts_of(profile.slices)
        )

    def _sm_of_part(self, profile: GiProfile, part: int) -> int | None:
        """All of the instance's; a part is known only where slices are equal, as they are on A100 and A30."""
        sm = profile.engines.sm
        if part == profile.slices or sm is None:
            return sm
        one = next((p.engines.sm for p in self.profiles if p.slices == 1 and not p.name.attribute), None)
        return one * part if one is not None and one * profile.slices == sm else None


@dataclass(frozen=True, slots=True)
class DriverProfile:
    """What NVML says about one profile: GetGpuInstanceProfileInfo and GetGpuInstancePossiblePlacements.

    `placements` are (start, size) in memory slices; `name` is what the second version of the call says
    ("MIG 1g.5gb+me"), empty if the driver does not have it.
    """

    enum: int
    id: int
    slices: int
    memory_mib: int
    max_count: int
    placements: tuple[tuple[int, int], ...]
    engines: Engines = Engines()
    name: str = ""


def geometry_from_driver(name: str, total_mib: int, answers: Iterable[DriverProfile]) -> MigGeometry:
    """The geometry of a real GPU. `name` is the product's, `total_mib` NVML's total memory.

    Profiles that can lie nowhere are left out. Raises InputError if the answers contradict each other.
    """
    usable = [answer for answer in answers if answer.placements and answer.max_count > 0]
    profiles = [_profile(name, total_mib, answer) for answer in usable]
    memory_slices = max((start + size for a in usable for start, size in a.placements), default=0)
    ordered = tuple(sorted(profiles, key=lambda p: (p.slices, p.size, p.enum)))
    compute_slices = max((profile.slices for profile in ordered), default=0)
    return MigGeometry(name, memory_slices, compute_slices, ordered, limits_of(ordered))


def _profile(gpu: str, total_mib: int, answer: DriverProfile) -> GiProfile:
    sizes = {size for _, size in answer.placements}
    if len(sizes) != 1 or answer.slices < 1 or answer.memory_mib < 1 or total_mib < 1:
        raise InputError(
            f"{gpu}: the driver gives MIG profile {answer.id} {answer.slices} slices, {answer.memory_mib} of "
            f"{total_mib} MiB and windows of {sorted(sizes)} memory slices; its answers are not sound"
        )
    attribute = ATTRIBUTES.get(answer.enum, "")
    if answer.enum >= _KNOWN_ENUMS:
        # A profile that is newer than this table. Without a name of its own it must not pass for a plain one.
        attribute = _attribute_in(answer.name) or f"+profile{answer.enum}"
    return GiProfile(
        MigProfile(answer.slices, named_gb(answer.memory_mib, total_mib), attribute),
        answer.enum,
        answer.id,
        sizes.pop(),
        tuple(sorted(start for start, _ in answer.placements)),
        answer.max_count,
        answer.memory_mib,
        answer.engines,
    )


def _attribute_in(driver_name: str) -> str:
    try:
        return MigProfile.parse(driver_name.removeprefix("MIG ")).attribute
    except InputError:
        return ""


def limits_of(profiles: Iterable[GiProfile]) -> tuple[Limit, ...]:
    """What follows from the attributes: NVIDIA's MIG user guide, "Supported MIG Profiles".

    One instance of a GPU can have the media extensions, and one that takes all media engines leaves room only
    for instances that have none.
    """
    profiles = tuple(profiles)
    limits = []
    extended = tuple((p.enum, 1) for p in profiles if p.name.attribute in ("+me", "+me.all"))
    if extended:
        limits.append(Limit("sets of media extensions", 1, extended))
    greedy = [p for p in profiles if p.name.attribute == "+me.all"]
    if greedy:
        whole = max(p.slices for p in profiles)
        shares = tuple(
            (p.enum, whole if p in greedy else p.slices) for p in profiles if p.name.attribute != "-me"
        )
        limits.append(Limit("shares of the media engines", whole, shares))
    return tuple(limits)
