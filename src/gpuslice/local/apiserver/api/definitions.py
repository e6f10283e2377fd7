"""CustomResourceDefinitions: creating one adds its kinds to the registry, deleting it takes them out."""

from __future__ import annotations

from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.schema import fields
from gpuslice.local.apiserver.schema.crd import KEY, kinds_of
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.status import Json


class Definitions:
    """Keeps the registry in step with the CRDs in the store."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        rest.after.append(self._note)

    def adopt(self) -> None:
        """Serve the CRDs that a database restored."""
        for entry in self._rest.store.collection(KEY).in_order():
            self._serve(entry.decode())

    def _note(self, kind: Kind, before: Json | None, after: Json | None) -> None:
        if kind.key != KEY:
            return
        if before is not None and (after is None or before.get("spec") != after.get("spec")):
            for one in kinds_of(before):
                self._rest.registry.remove(one)
            if after is None:
                self._empty(kinds_of(before))
        if after is not None and (before is None or before.get("spec") != after.get("spec")):
            self._serve(after)

    def _serve(self, definition: Json) -> None:
        for kind in kinds_of(definition):
            self._rest.registry.add(kind)
            custom = kind.custom
            if custom is not None and custom.selectable:
                self._rest.collection(kind).selectable = fields.reader(kind.storage, custom.selectable)

    def _empty(self, kinds: list[Kind]) -> None:
        """Delete the objects of kinds that are gone, as Kubernetes does."""
        for kind in kinds[:1]:
            for entry in list(self._rest.collection(kind).in_order()):
                self._rest.remove(kind, entry.decode(), entry.decode())
