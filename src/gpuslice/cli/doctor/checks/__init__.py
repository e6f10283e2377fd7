"""Pure functions from facts to findings: no I/O, and the time is a parameter."""

from __future__ import annotations

from datetime import datetime

from gpuslice.cli.doctor.checks import (
    agents,
    api,
    leftovers,
    memory,
    path,
    pods,
    rivals,
    runtime,
    scheduling,
    webhooks,
    wishes,
)
from gpuslice.cli.doctor.facts import Facts
from gpuslice.cli.doctor.finding import Finding, in_order


def examine(facts: Facts, now: datetime) -> list[Finding]:
    """Everything that is wrong, what must be mended first before the rest. `now` is aware of its zone."""
    return in_order(
        [
            *api.check(facts),
            *runtime.check(facts),
            *rivals.check(facts),
            *agents.check(facts, now),
            *wishes.check(facts),
            *scheduling.check(facts, now),
            *path.check(facts, now),
            *webhooks.check(facts, now),
            *memory.check(facts),
            *pods.check(facts),
            *leftovers.check(facts, now),
        ]
    )
