"""Objects that could not be read: named and counted, until they can be or are gone.

Anybody who may write an object can write one that some reader of ours did not expect. It must end no loop:
what follows the API server lets it be, says so once, and goes on with the others. What is decided about such
an object meanwhile is its owner's matter: it stays as it was last understood, or counts with what is certain.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from gpuslice.errors import GpuSliceError
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.wire import KubeObject, ObjectMeta

REASON_LIMIT: Final = 300
"""Characters of a reason: it may repeat what somebody wrote."""
REMEMBERED: Final = 4096
"""Objects that were told of; beyond it the one longest untold is forgotten, and told again if it returns."""

_log = structlog.get_logger(__name__)


class Quarantine:
    """The objects that somebody in this process could not read, by kind and key. For one event loop."""

    def __init__(self) -> None:
        self._tell: Callable[[KubeObject, str], None] | None = None
        self._held: dict[tuple[str, str], tuple[KubeObject, str]] = {}
        self._told: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def record_by(self, recorder: EventRecorder) -> None:
        """Have it said on the objects themselves, too: one event for each incarnation."""

        def tell(obj: KubeObject, why: str) -> None:
            recorder.record(
                obj,
                "Warning",
                "Unreadable",
                f"gpuslice cannot read this {obj.resource.kind} and goes by what it knew of it before, or by "
                f"what is certain, until it is mended: {why}",
            )

        self._tell = tell
        for obj, why in self._held.values():
            tell(obj, why)

    def hold(self, obj: KubeObject, problem: Exception | str) -> None:
        """An object could not be read, or what had to be done with it failed."""
        kind, why = obj.resource.kind, reason(problem)
        meta = ObjectMeta(name=obj.name, namespace=obj.namespace, uid=obj.uid)
        named = type(obj)(metadata=meta)  # the rest may be large
        self._held[kind, obj.key] = named, why
        incarnation = (kind, obj.key, obj.uid)
        if incarnation in self._told:
            return
        self._told[incarnation] = None
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        _log.warning("an object cannot be read", kind=kind, object=obj.key, reason=why, where=_where(problem))
        if self._tell is not None:
            self._tell(named, why)

    def release(self, obj: KubeObject) -> None:
        """The object could be read, or is gone."""
        if self._held:
            self._held.pop((obj.resource.kind, obj.key), None)

    def holds(self, obj: KubeObject) -> bool:
        """True while an object is one of these."""
        return bool(self._held) and (obj.resource.kind, obj.key) in self._held

    def keep(self, kind: type[KubeObject], there: Collection[str]) -> None:
        """Of a kind there are these objects, by key, and no others."""
        for held in [key for key in self._held if key[0] == kind.resource.kind and key[1] not in there]:
            del self._held[held]

    def counts(self) -> Mapping[str, int]:
        """How many there are, by kind. For metrics."""
        return Counter(kind for kind, _ in self._held)

    def held(self) -> list[tuple[str, str, str]]:
        """Kind, key and reason of each."""
        return sorted((kind, key, why) for (kind, key), (_, why) in self._held.items())

    def sentences(self) -> list[str]:
        """One for each, for people."""
        return [f"{kind} {key} cannot be read: {why}" for kind, key, why in self.held()]


def _where(problem: Exception | str) -> str:
    """The line that raised: a whole traceback could show the whole object."""
    trace = problem.__traceback__ if isinstance(problem, Exception) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else ""


def reason(problem: Exception | str) -> str:
    """Why, in a bounded number of characters."""
    said = str(problem)[: REASON_LIMIT + 1]
    text = said if isinstance(problem, (str, GpuSliceError)) else f"{type(problem).__name__}: {said}"
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]}..."
