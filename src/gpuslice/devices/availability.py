"""Whether a device is given to containers. Health alone does not decide it: a healthy device may be closed.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`CLOSED`: it is healthy, but is being partitioned, changes its mode, or nobody knows yet how it is to
    be used.
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
        """The state as messages name it: "closed: being partitioned into MIG devices"."""
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


OK = Availability()


def closed(reason: str) -> Availability:
    """Given to nobody for a time, although it is healthy."""
    return Availability(State.CLOSED, reason)


def sick(reason: str = "") -> Availability:
    """Given to nobody until it is healthy again."""
    return Availability(State.SICK, reason)


def of_health(healthy: bool, reason: str) -> Availability:
    """The availability that follows from the health that a driver reports."""
    return OK if healthy else sick(reason)
