"""Is a device given to containers? Its health does not decide alone: a healthy one may be closed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`CLOSED`: it is well, but is being partitioned, changes its use, or nobody knows how it is to be
    used.
    """

    OK = "ok"
    CLOSED = "closed"
    SICK = "unhealthy"


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a device is given to containers, and why not."""

    state: State = State.OK
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.state is State.OK

    @property
    def sick(self) -> bool:
        return self.state is State.SICK

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    def __str__(self) -> str:
        """For sentences: "closed: being partitioned into MIG devices"."""
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


OK = Availability()


def closed(reason: str) -> Availability:
    """Given to nobody for a time, though it is well."""
    return Availability(State.CLOSED, reason)


def sick(reason: str = "") -> Availability:
    """Given to nobody until it is well again."""
    return Availability(State.SICK, reason)


def of_health(healthy: bool, reason: str) -> Availability:
    """What follows from what a driver says of a device's health."""
    return OK if healthy else sick(reason)
