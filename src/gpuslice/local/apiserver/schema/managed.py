"""managedFields: records which manager set which field, for objects that a named manager has touched.

kube-apiserver keeps it for every object and every writer. Here it begins when a request names a
`fieldManager` (kubectl always does) and from then on follows every write; the thousands of pods that
controllers make carry none, which spares their watchers half of the bytes. An object without it that is
applied server-side is treated as Kubernetes treats one from before: all its fields belong to
"before-first-apply".
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.clock import Clock
from gpuslice.local.apiserver.schema import types
from gpuslice.local.apiserver.schema.fieldsets import FieldSet, changes, extract, from_v1, to_v1
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.objects import now
from gpuslice.local.apiserver.schema.status import Json, bad_request

NEVER_OWNED = {("f:apiVersion",), ("f:kind",), ("f:metadata",)} | {
    ("f:metadata", f"f:{name}")
    for name in (
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    )
}
BEFORE_FIRST_APPLY = "before-first-apply"


@dataclass(slots=True)
class Owner:
    """One entry of managedFields."""

    manager: str
    operation: str
    subresource: str
    api_version: str
    time: str
    fields: FieldSet

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two entries the same owner."""
        return (self.manager, self.operation, self.subresource)

    def shown(self) -> str:
        """The owner as conflicts name it."""
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


def read(obj: Json) -> list[Owner]:
    """The owners recorded in an object. Raises 400 if the record is malformed."""
    found = []
    for one in obj["metadata"].get("managedFields") or ():
        try:
            found.append(
                Owner(
                    one.get("manager", ""),
                    one["operation"],
                    one.get("subresource", ""),
                    one.get("apiVersion", ""),
                    one.get("time", ""),
                    from_v1(one.get("fieldsV1") or {}),
                )
            )
        except (KeyError, AttributeError, TypeError):
            raise bad_request("metadata.managedFields is malformed; remove it") from None
    return found


def write(obj: Json, owners: list[Owner]) -> None:
    """Record the owners that still own something."""
    entries = []
    for owner in owners:
        if not owner.fields:
            continue
        entry: Json = {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": owner.api_version,
        }
        if owner.time:
            entry["time"] = owner.time
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": to_v1(owner.fields)}
        if owner.subresource:
            entry["subresource"] = owner.subresource
        entries.append(entry)
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def owned(obj: Json, kind: Kind) -> FieldSet:
    """All fields of an object that somebody can own."""
    shape = types.of_kind(kind)
    return extract(obj, shape) - NEVER_OWNED if shape is not None else set()


class Managers:
    """Keeps metadata.managedFields through creates and updates; applies are `apply`'s business."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def created(self, obj: Json, manager: str, kind: Kind) -> None:
        """Note the owner of a new object's fields; "" if nobody is named, or `apply` has noted it."""
        meta = obj["metadata"]
        if not manager:
            if not meta.get("managedFields"):
                meta.pop("managedFields", None)
            return
        meta.pop("managedFields", None)
        fields = {path for path in owned(obj, kind) if path[0] != "f:status"}
        write(obj, [Owner(manager, "Update", "", kind.api_version, now(self._clock), fields)])

    def updated(self, new: Json, old: Json, manager: str, kind: Kind, subresource: str) -> None:
        """Note the owner of the fields that changed."""
        meta = new["metadata"]
        given, was = meta.get("managedFields"), old["metadata"].get("managedFields")
        if given is None and was is not None:
            meta["managedFields"] = was
        elif not given:
            # An explicit empty list resets the record, as in Kubernetes.
            meta.pop("managedFields", None)
        if not meta.get("managedFields"):
            return
        shape = types.of_kind(kind)
        if shape is None:
            return
        hidden = {"managedFields": None, "resourceVersion": None}
        before = {**old, "metadata": {**old["metadata"], **hidden}}
        after = {**new, "metadata": {**meta, **hidden}}
        if before == after:
            return
        changed, gone = changes(before, after, shape)
        changed -= NEVER_OWNED
        if not changed and not gone:
            return
        owners = read(new)
        where = "status" if subresource == "status" else "scale" if subresource == "scale" else ""
        mine = next((one for one in owners if one.key == (manager, "Update", where)), None)
        for owner in owners:
            if owner is not mine:
                owner.fields -= changed | gone
        if mine is None:
            mine = Owner(manager, "Update", where, kind.api_version, "", set())
            owners.append(mine)
        mine.fields = (mine.fields | changed) - gone
        mine.time = now(self._clock)
        write(new, owners)
