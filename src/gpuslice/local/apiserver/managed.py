"""managedFields: who owns which field."""

from __future__ import annotations

from gpuslice.local.apiserver.http import Request
from gpuslice.local.apiserver.kinds import Kind
from gpuslice.local.apiserver.status import Json


class Managers:
    """Keeps metadata.managedFields."""

    def created(self, obj: Json, request: Request, kind: Kind) -> None:
        """Note the owner of a new object's fields."""

    def updated(
        self, new: Json, old: Json, request: Request, kind: Kind, subresource: str, *, applied: bool
    ) -> None:
        """Note the owner of the fields that changed."""
