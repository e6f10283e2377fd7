"""Which GPUs and MIG devices of a node are unhealthy, who holds them, and the message that says so. Pure.

The message is in the node's condition, for people, and a restarted agent reads it back: the events for what
it says have been recorded already.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.devices.found import Found

NOBODY: Final = "nobody"
NAMELESS: Final = "UUID unknown"
"""The name of a GPU that did not answer when its driver was first asked."""
_HELD: Final = ", held by "
_BEGIN: Final = re.compile(r"(?:^|; )((?:MIG \S+ on )?GPU \d+) \(([^()]*)\): ")


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """One unhealthy device: its name for people, its UUID, the reason, and its holders (namespace/name)."""

    name: str
    uuid: str
    reason: str
    pods: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The device for people: "GPU 1 (GPU-5f2c...)"."""
        return f"{self.name} ({self.uuid})"

    def __str__(self) -> str:
        return f"{self.device}: {self.reason}{_HELD}{', '.join(self.pods) or NOBODY}"


def problems(
    found: Found, holders: Mapping[str, Collection[str]], told: Sequence[HealthProblem], pods: Collection[str]
) -> tuple[HealthProblem, ...]:
    """Everything unhealthy, by index. An unhealthy GPU stands for its MIG devices.

    `holders`: by UUID, the pods that hold a part. `told`: the problems reported last; for a GPU that no
    longer even gives its UUID they hold its name, and its holders among the `pods` that are still here.
    """
    sick: dict[int, list[HealthProblem]] = {}
    for gpu in found.gpus:
        if gpu.is_for_displays:
            continue
        if not gpu.healthy:
            parts = (gpu.uuid, *(device.uuid for device in gpu.mig_devices))
            users = {pod for uuid in parts for pod in holders.get(uuid, ())}
            sick[gpu.index] = [HealthProblem(f"GPU {gpu.index}", gpu.uuid, gpu.reason, tuple(sorted(users)))]
            continue
        sick[gpu.index] = [
            HealthProblem(
                f"MIG {device.profile} on GPU {gpu.index}",
                device.uuid,
                device.reason,
                tuple(sorted({*holders.get(device.uuid, ())})),
            )
            for device in gpu.mig_devices
            if not device.healthy
        ]
    answering = _healthy(found) | {one.uuid for group in sick.values() for one in group}
    for index, reason in found.silent:
        if index not in sick:
            name = f"GPU {index}"
            before = next((one for one in told if one.name == name and one.uuid not in answering), None)
            uuid, users = (before.uuid, {*before.pods} & {*pods}) if before else (NAMELESS, set())
            sick[index] = [HealthProblem(name, uuid, reason, tuple(sorted(users)))]
    return tuple(one for index in sorted(sick) for one in sick[index])


def recovered(found: Found, told: Sequence[HealthProblem]) -> tuple[HealthProblem, ...]:
    """The devices that were reported unhealthy and are healthy again. A device that is gone is neither."""
    well = _healthy(found)
    return tuple(one for one in told if one.uuid in well)


def say(sick: Sequence[HealthProblem]) -> str:
    """The message for all of them."""
    return "; ".join(map(str, sick))


def read(sentence: str) -> tuple[HealthProblem, ...]:
    """The problems that `say` wrote into a message; empty for any other text."""
    begins = list(_BEGIN.finditer(sentence))
    ends = [*(begin.start() for begin in begins), len(sentence)][1:]
    found: list[HealthProblem] = []
    for begin, end in zip(begins, ends, strict=True):
        reason, held, users = sentence[begin.end() : end].rpartition(_HELD)
        if held:
            pods = () if users == NOBODY else tuple(users.split(", "))
            found.append(HealthProblem(begin[1], begin[2], reason, pods))
    return tuple(found)


def _healthy(found: Found) -> set[str]:
    gpus = [gpu for gpu in found.gpus if gpu.healthy]
    return {gpu.uuid for gpu in gpus} | {d.uuid for gpu in gpus for d in gpu.mig_devices if d.healthy}
