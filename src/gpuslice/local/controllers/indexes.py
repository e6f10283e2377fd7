"""Completion indexes of Indexed Jobs, and their short notation "0,2-5". Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuslice.local.controllers.objects import Job, Pod

INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Annotation and label of a pod of an Indexed Job."""


def index_of(pod: Pod) -> int | None:
    """The pod's completion index, or None."""
    text = pod.annotations.get(INDEX, "")
    return int(text) if text.isdecimal() else None


def parse(text: str | None) -> set[int]:
    """Read "0,2-5". What cannot be read counts as not completed."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))
    return found


def show(indexes: Iterable[int]) -> str:
    """Write as "0,2-5": runs of three or more, and of two, as ranges."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def free(job: Job, completed: set[int], active: Iterable[Pod], count: int) -> list[int]:
    """The lowest indexes that are neither completed nor being worked on."""
    taken = completed | {index for pod in active if (index := index_of(pod)) is not None}
    chosen: list[int] = []
    for index in range(job.spec.completions or 0):
        if len(chosen) == count:
            break
        if index not in taken:
            chosen.append(index)
    return chosen
