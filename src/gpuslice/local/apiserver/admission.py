"""Admission webhooks."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.local.apiserver.http import Request
from gpuslice.local.apiserver.kinds import Kind
from gpuslice.local.apiserver.status import Json


@dataclass(slots=True)
class Operation:
    """What a webhook is asked about."""

    request: Request
    kind: Kind
    verb: str
    subresource: str
    obj: Json | None
    old: Json | None
    dry_run: bool = False


class Admission:
    """Calls the webhooks that are configured."""

    def concerns(self, kind: Kind, verb: str, subresource: str) -> bool:
        """Whether any webhook has a rule for this."""
        return False

    async def mutate(self, operation: Operation) -> Json:
        """The object after all mutating webhooks."""
        return operation.obj or {}

    async def validate(self, operation: Operation) -> None:
        """Raises the Failure of the first validating webhook that refuses."""
