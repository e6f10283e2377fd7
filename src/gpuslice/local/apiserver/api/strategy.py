"""What a kind may do: defaults, admission that is built in, what update may touch, how deletion begins.

The steps are Kubernetes' own (`registry/<group>/<kind>/strategy.go`), reduced to what clients notice.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuslice.clock import Clock, rfc3339
from gpuslice.local.apiserver.api import builtin
from gpuslice.local.apiserver.api.store import Store
from gpuslice.local.apiserver.schema import crd, defaults, validation
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.status import Cause, Json, forbidden, forbidden_field

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public")
KEEPS_STATUS_ON_CREATE = {("", "nodes"), ("", "persistentvolumeclaims")}
METADATA_THROUGH_STATUS = {
    ("", "pods"),
    ("", "nodes"),
    ("", "persistentvolumes"),
    ("", "persistentvolumeclaims"),
}
"""Kinds whose status subresource lets labels and annotations through (kubelets rely on it)."""
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names: no vowels, nothing that looks alike."""
_NAME_MAX = 63
_SUFFIX = 5


def no_new_finalizers(names: str) -> Cause:
    """An object on its way out takes no new finalizer."""
    why = (
        "no new finalizers can be added if the object is being deleted, found new finalizers "
        f"[]string{{{names}}}"
    )
    return forbidden_field("metadata.finalizers", why)


class Strategy:
    """The rules of every kind over one store."""

    def __init__(self, store: Store, *, clock: Clock, random: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._random = random

    def generated_name(self, prefix: str) -> str:
        """`generateName` and five characters."""
        tail = "".join(_ALPHABET[int(self._random() * len(_ALPHABET))] for _ in range(_SUFFIX))
        return prefix[: _NAME_MAX - _SUFFIX] + tail

    def defaults(self, kind: Kind, obj: Json) -> None:
        """Fill in what the client left out."""
        defaults.apply(kind, obj)

    def admit(self, kind: Kind, obj: Json, old: Json | None) -> None:
        """The built-in admission that clients notice: priority, tolerations, addresses."""
        if kind.key == ("", "pods") and old is None:
            builtin.admit_pod(obj, self._store)
        elif kind.key == ("", "services"):
            if old is not None and not obj["spec"].get("clusterIP") and old["spec"].get("clusterIP"):
                obj["spec"]["clusterIP"] = old["spec"]["clusterIP"]
            builtin.admit_service(obj, self._store)

    def prepare_create(self, kind: Kind, obj: Json) -> None:
        """Begin with a fresh status and generation 1."""
        if kind.status and kind.key not in KEEPS_STATUS_ON_CREATE:
            obj.pop("status", None)
        defaults.initial_status(kind, obj)
        if kind.key == crd.KEY:
            crd.established(obj, rfc3339(self._clock.now_ns()))
        if kind.generation:
            obj["metadata"]["generation"] = 1

    def prepare_update(self, kind: Kind, new: Json, old: Json, subresource: str) -> None:
        """Take back what this route may not change, and count a change of the spec."""
        if subresource == "status":
            status = new.get("status")
            meta = new["metadata"]
            for name in [name for name in new if name not in old and name != "status"]:
                del new[name]
            for name, value in old.items():
                if name not in ("status", "metadata"):
                    new[name] = value
            if kind.key not in METADATA_THROUGH_STATUS:
                managed = meta.get("managedFields")
                meta = new["metadata"] = dict(old["metadata"])
                if managed is not None:
                    meta["managedFields"] = managed
            elif kind.key == ("", "pods"):
                for name in ("ownerReferences",):
                    if name in old["metadata"]:
                        meta[name] = old["metadata"][name]
                    else:
                        meta.pop(name, None)
            if status is None:
                new.pop("status", None)
        elif kind.status and subresource != "pod":
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        if kind.generation and subresource != "status" and self._counts(kind, new, old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1

    @staticmethod
    def _counts(kind: Kind, new: Json, old: Json) -> bool:
        if kind.generation == "spec":
            return new.get("spec") != old.get("spec")
        skip = ("metadata", "status")
        return {k: v for k, v in new.items() if k not in skip} != {
            k: v for k, v in old.items() if k not in skip
        }

    def validate(self, kind: Kind, obj: Json, old: Json | None, subresource: str) -> list[Cause]:
        """Every field that is wrong."""
        return validation.check(kind, obj, old, subresource)

    def may_delete(self, kind: Kind, obj: Json) -> None:
        """Raises 403 for what the cluster cannot do without."""
        name = obj["metadata"]["name"]
        if kind.key == ("", "namespaces") and name in SYSTEM_NAMESPACES:
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")

    def mark_deleted(self, kind: Kind, obj: Json, grace: int | None, propagation: str) -> None:
        """Set deletionTimestamp, grace period and the finalizers of the propagation policy."""
        meta = obj["metadata"]
        seconds = self._grace(kind, obj, grace)
        finalizers = [
            name for name in meta.get("finalizers") or () if name not in ("orphan", "foregroundDeletion")
        ]
        if propagation == "Orphan":
            finalizers.append("orphan")
        elif propagation == "Foreground":
            finalizers.append("foregroundDeletion")
        elif not propagation:
            finalizers = list(meta.get("finalizers") or ())
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        if meta.get("deletionTimestamp"):
            if seconds < (meta.get("deletionGracePeriodSeconds") or 0):
                meta["deletionTimestamp"] = self._in(seconds)
                meta["deletionGracePeriodSeconds"] = seconds
            return
        meta["deletionTimestamp"] = self._in(seconds)
        meta["deletionGracePeriodSeconds"] = seconds
        if kind.generation:
            meta["generation"] = meta.get("generation", 1) + 1
        if kind.key == ("", "namespaces"):
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}

    def _grace(self, kind: Kind, obj: Json, asked: int | None) -> int:
        if kind.key != ("", "pods"):
            return 0
        spec = obj.get("spec") or {}
        phase = (obj.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        if asked is not None:
            return max(asked, 0)
        default: int = spec.get("terminationGracePeriodSeconds", 30)
        return default

    def _in(self, seconds: int) -> str:
        return rfc3339(self._clock.now_ns() + seconds * 1_000_000_000)
