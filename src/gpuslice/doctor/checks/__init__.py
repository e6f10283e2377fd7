"""Pure functions from facts to findings: no I/O, and the time is a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from gpuslice.doctor.checks import (
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
from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level, in_order
from gpuslice.kube.quarantine import reason


def examine(facts: Facts, now: datetime) -> list[Finding]:
    """Everything that is wrong, what must be mended first before the rest. `now` is aware of its zone."""
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: api.check(facts),
        lambda: runtime.check(facts),
        lambda: rivals.check(facts),
        lambda: agents.check(facts, now),
        lambda: wishes.check(facts),
        lambda: scheduling.check(facts, now),
        lambda: path.check(facts, now),
        lambda: webhooks.check(facts, now),
        lambda: memory.check(facts),
        lambda: pods.check(facts),
        lambda: leftovers.check(facts, now),
        lambda: _unreadable(facts),
    ]
    return in_order([finding for check in checks for finding in _said(check)])


def _said(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """One check's findings; that it failed, if one object made it."""
    found: list[Finding] = []
    try:
        found += check()
    except Exception as error:  # the others may know what is wrong
        found.append(
            Finding(
                Area.API,
                "check-failed",
                Level.WARNING,
                "Check/doctor",
                f"one of the checks ended early, so this list may lack something: {reason(error)}",
                "gpuslice inspect   # names what cannot be read",
            )
        )
    return found


def _unreadable(facts: Facts) -> Iterable[Finding]:
    for kind, key, why in facts.cluster.quarantine.held():
        namespace, _, name = key.rpartition("/")
        where = f"-n {namespace} " if namespace else ""
        yield Finding(
            Area.API,
            "unreadable",
            Level.WARNING,
            f"{kind}/{key}",
            f"{kind} {key} cannot be read: {why}; what can be read of it counts, and no more is done with it",
            f"kubectl {where}get {kind.lower()} {name} -o yaml   # mend what is named, or delete it",
        )
