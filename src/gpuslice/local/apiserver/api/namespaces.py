"""What happens to the contents of a namespace: deleting it empties it, and empty it goes."""

from __future__ import annotations

from gpuslice.local.apiserver.api.bodies import DeleteOptions
from gpuslice.local.apiserver.api.http import Request, Target
from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.objects import now
from gpuslice.local.apiserver.schema.status import Failure, Json

DEFAULT_ACCOUNT = "default"


class Namespaces:
    """Empties namespaces that are being deleted, step by step as the housekeeping calls it."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._dying: set[str] = set()
        rest.after.append(self._note)

    def adopt(self) -> None:
        """Look for namespaces that a database restored in the middle of their deletion."""
        for entry in self._rest.store.collection(("", "namespaces")).in_order():
            if entry.selectable.get("status.phase") == "Terminating":
                self._dying.add(entry.key[1])

    def _note(self, kind: Kind, before: Json | None, after: Json | None) -> None:
        if kind.key != ("", "namespaces"):
            return
        if after is not None and before is None:
            self._give_account(after["metadata"]["name"])
        if after is not None and after["metadata"].get("deletionTimestamp"):
            self._dying.add(after["metadata"]["name"])
        elif after is None and before is not None:
            self._dying.discard(before["metadata"]["name"])

    def _give_account(self, name: str) -> None:
        rest = self._rest
        kind = rest.registry.find("", "v1", "serviceaccounts")
        if kind is None or rest.collection(kind).get(name, DEFAULT_ACCOUNT) is not None:
            return
        meta = {
            "name": DEFAULT_ACCOUNT,
            "namespace": name,
            "uid": rest.new_uid(),
            "creationTimestamp": now(rest.clock),
        }
        rest.commit(kind, None, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})

    async def sweep(self) -> None:
        """Delete what is left in dying namespaces; remove those that are empty. Safe to repeat."""
        for name in sorted(self._dying):
            await self._empty(name)

    async def _empty(self, name: str) -> None:
        rest = self._rest
        left = False
        for collection in rest.store.collections():
            entries = [entry for entry in collection.in_order(name) if entry.key[0] == name] if name else []
            if not entries:
                continue
            kinds = [kind for kind in rest.registry.of_storage(collection.storage) if kind.stored_as is None]
            if not kinds:
                continue
            for entry in entries:
                target = Target(kinds[0], name, entry.key[1])
                try:
                    await rest.delete(
                        Request("DELETE", "", {}), target, DeleteOptions(propagation="Background")
                    )
                except Failure as failure:
                    if failure.status != 404:
                        left = True
            left = left or bool(collection.in_order(name))
        if left:
            return
        self._dying.discard(name)
        kind = rest.registry.find("", "v1", "namespaces")
        own = rest.store.collection(("", "namespaces")).get("", name)
        if kind is None or own is None:
            return
        old, obj = own.decode(), own.decode()
        obj["spec"].pop("finalizers", None)
        if obj["metadata"].get("finalizers"):
            rest.commit(kind, old, obj)
        else:
            rest.remove(kind, old, obj)
