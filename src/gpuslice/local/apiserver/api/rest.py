"""The generic verbs that write: create, update, delete, whatever the kind.

Optimistic throughout: an object is read, changed in a private copy, and committed only if nobody was
faster; without a resourceVersion from the client the change is tried again on the newer version.
Nothing awaits between the read and the commit unless a webhook has to be asked.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuslice.clock import Clock
from gpuslice.local.apiserver.api import strategy
from gpuslice.local.apiserver.api.admission import Admission, Operation
from gpuslice.local.apiserver.api.bodies import DeleteOptions
from gpuslice.local.apiserver.api.entries import Entry
from gpuslice.local.apiserver.api.http import Reply, Request, Target, reply
from gpuslice.local.apiserver.api.reading import Reader
from gpuslice.local.apiserver.api.store import Store
from gpuslice.local.apiserver.schema import types
from gpuslice.local.apiserver.schema.kinds import Kind, Registry
from gpuslice.local.apiserver.schema.managed import Managers
from gpuslice.local.apiserver.schema.objects import canonical, convert, now
from gpuslice.local.apiserver.schema.status import (
    MODIFIED,
    Failure,
    Json,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_value,
    not_found,
    success,
)

RETRIES = 16
"""How often a change without a resourceVersion is tried again when others are faster."""

Change = Callable[[Json], Json]
"""From a private copy of the stored object to what it shall be. May raise Failure."""


class Rest(Reader):
    """The verbs over one store."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        admission: Admission,
        rules: strategy.Strategy,
        managers: Managers,
        *,
        clock: Clock,
        new_uid: Callable[[], str],
    ) -> None:
        super().__init__(store, registry, clock)
        self.admission = admission
        self.rules = rules
        self.managers = managers
        self.new_uid = new_uid
        self.after: list[Callable[[Kind, Json | None, Json | None], None]] = []
        """Called after each commit with (kind, before, after): CRDs, namespaces."""

    # --- writing ------------------------------------------------------------------------------------
    def settle(self, request: Request, kind: Kind, obj: Json, *, again: bool = False) -> None:
        """Bring a client's object into the form of its type; unknown fields as `fieldValidation` says.

        Raises 400 for wrong types, and for unknown fields if they are to be strict.
        """
        shape = types.of_kind(kind)
        if shape is None:
            return
        what = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        unknown = types.settle(obj, shape, what)
        if not unknown or again:
            return
        mode = request.query.get("fieldValidation", "Warn")
        texts = [f'unknown field "{path}"' for path in unknown]
        if mode == "Strict":
            raise bad_request(f"{what}: strict decoding error: {', '.join(texts)}")
        if mode != "Ignore":
            request.warnings += texts

    async def create(self, request: Request, target: Target, obj: Json) -> Reply:
        """POST an object to its collection."""
        kind = target.kind
        self.settle(request, kind, obj)
        obj = canonical(kind, obj)
        meta = obj["metadata"]
        space = meta.get("namespace") or target.namespace
        if kind.namespaced:
            if target.namespace and space != target.namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            meta["namespace"] = space
        else:
            meta.pop("namespace", None)
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = self.rules.generated_name(meta["generateName"])
            generated = True
        else:
            generated = False
        for _ in range(RETRIES):
            try:
                return await self._create(request, target, kind, obj)
            except Failure as failure:
                if not (generated and failure.reason == "AlreadyExists"):
                    raise
                meta["name"] = self.rules.generated_name(meta["generateName"])
        raise already_exists(kind.group, kind.plural, meta["name"])

    async def _create(self, request: Request, target: Target, kind: Kind, obj: Json) -> Reply:
        meta = obj["metadata"]
        meta["uid"] = self.new_uid()
        meta["creationTimestamp"] = now(self.clock)
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            meta.pop(name, None)
        self._need_namespace(kind, meta)
        self.rules.defaults(kind, obj)
        self.rules.admit(kind, obj, None)
        if self.admission.concerns(kind, "CREATE", ""):
            hook = Operation(request, kind, "CREATE", "", obj, None, dry_run=request.dry_run)
            obj = await self.admission.mutate(hook)
            self.settle(request, kind, obj, again=True)  # a patch leaves `env: []` where nothing should be
            meta = obj["metadata"]
            self.rules.defaults(kind, obj)
        self.rules.prepare_create(kind, obj)
        self._validate(kind, obj, None)
        if self.admission.concerns(kind, "CREATE", ""):
            await self.admission.validate(
                Operation(request, kind, "CREATE", "", obj, None, dry_run=request.dry_run)
            )
            self._need_namespace(kind, meta)
        collection = self.collection(kind)
        if collection.get(meta.get("namespace", ""), meta["name"]) is not None:
            raise already_exists(kind.group, kind.plural, meta["name"])
        applied = request.content_type.startswith("application/apply-patch")
        self.managers.created(obj, "" if applied else request.manager, kind)
        if request.dry_run:
            obj["metadata"].pop("resourceVersion", None)
            return reply(convert(kind, obj), 201)
        entry = self.commit(kind, None, obj)
        return Reply(self.raw(kind, entry.raw), 201)

    async def update(
        self,
        request: Request,
        target: Target,
        change: Change,
        *,
        created: Json | None = None,
        applied: bool = False,
    ) -> Reply:
        """Change one object (PUT or PATCH, also of its subresources)."""
        kind = target.kind
        for attempt in range(RETRIES):
            entry = self.collection(kind).get(target.namespace, target.name)
            if entry is None:
                if created is not None:
                    return await self.create(request, target, created)
                raise not_found(kind.group, kind.plural, target.name)
            old = entry.decode()
            new = change(convert(kind, entry.decode()))
            if not applied:
                self.settle(request, kind, new, again=attempt > 0)
            new = canonical(kind, new)
            self._keep_identity(kind, target, old, new, patched=request.method == "PATCH")
            self.rules.defaults(kind, new)
            self.rules.admit(kind, new, old)
            self.rules.prepare_update(kind, new, old, target.subresource)
            verb_target = target.subresource if target.subresource != "scale" else ""
            if self.admission.concerns(kind, "UPDATE", verb_target):
                hook = Operation(request, kind, "UPDATE", verb_target, new, old, dry_run=request.dry_run)
                new = await self.admission.mutate(hook)
                self.settle(request, kind, new, again=True)
                self.rules.defaults(kind, new)
                self.rules.prepare_update(kind, new, old, target.subresource)
                self._validate(kind, new, old, target.subresource)
                hook.obj = new
                await self.admission.validate(hook)
            else:
                self._validate(kind, new, old, target.subresource)
            if not applied:
                self.managers.updated(new, old, request.writer, kind, target.subresource)
            if new == old:
                return Reply(self.raw(kind, entry.raw))
            if self.collection(kind).get(target.namespace, target.name) is not entry:
                # Somebody was faster while a webhook thought. Tried again, a change that is bound to the old
                # version fails its precondition; any other starts from the new one.
                continue
            if request.dry_run:
                return reply(convert(kind, new))
            if _may_go(new):
                tomb = self.remove(kind, old, new)
                return Reply(self.raw(kind, tomb.raw))
            stored = self.commit(kind, old, new)
            return Reply(self.raw(kind, stored.raw))
        raise conflict(kind.group, kind.plural, target.name, MODIFIED)

    def _keep_identity(self, kind: Kind, target: Target, old: Json, new: Json, *, patched: bool) -> None:
        """Check the preconditions in the new metadata and restore what no client may change.

        Another uid is a failed precondition of a PUT (409), but an immutable field to a PATCH (422).
        """
        meta, was = new["metadata"], old["metadata"]
        if meta.get("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})"
            )
        if kind.namespaced and meta.get("namespace", target.namespace) != target.namespace:
            raise bad_request(
                f"the namespace of the object ({meta['namespace']}) does not match the namespace on the URL "
                f"({target.namespace})"
            )
        given = meta.get("resourceVersion") or ""
        uid = meta.get("uid") or ""
        if uid and uid != was["uid"] and not patched:
            raise precondition_failed(kind, target, "UID", uid, was["uid"])
        if given and given != was["resourceVersion"]:
            raise conflict(kind.group, kind.plural, target.name, MODIFIED)
        if uid and uid != was["uid"]:
            cause = invalid_value("metadata.uid", uid, "field is immutable")
            raise invalid(kind.group, kind.kind, target.name, [cause])
        for name in (
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "generateName",
            "resourceVersion",
        ):
            if name in was:
                meta[name] = was[name]
            else:
                meta.pop(name, None)
        meta.pop("selfLink", None)
        if was.get("deletionTimestamp"):
            fresh = set(meta.get("finalizers") or ()) - set(was.get("finalizers") or ())
            if fresh:
                names = ", ".join(f'"{name}"' for name in sorted(fresh))
                raise invalid(kind.group, kind.kind, target.name, [strategy.no_new_finalizers(names)])

    def _validate(self, kind: Kind, obj: Json, old: Json | None, subresource: str = "") -> None:
        causes = self.rules.validate(kind, obj, old, subresource)
        if causes:
            raise invalid(kind.group, kind.kind, obj["metadata"].get("name", ""), causes)

    def _need_namespace(self, kind: Kind, meta: Json) -> None:
        if not kind.namespaced:
            return
        name = meta.get("namespace", "")
        entry = self.store.collection(("", "namespaces")).get("", name)
        if entry is None:
            raise not_found("", "namespaces", name)
        if entry.selectable.get("status.phase") == "Terminating":
            why = f"unable to create new content in namespace {name} because it is being terminated"
            raise forbidden(kind.group, kind.plural, meta.get("name", ""), why)

    def commit(self, kind: Kind, before: Json | None, obj: Json) -> Entry:
        """Store an object and tell everyone. The caller has checked that nobody was faster."""
        entry = self.collection(kind).put(obj)
        for hook in self.after:
            hook(kind, before, obj)
        return entry

    def remove(self, kind: Kind, before: Json, last: Json) -> Entry:
        """Take an object out of the store and tell everyone."""
        meta = last["metadata"]
        tomb = self.collection(kind).drop((meta.get("namespace", ""), meta["name"]), last)
        for hook in self.after:
            hook(kind, before, None)
        return tomb

    # --- deleting -----------------------------------------------------------------------------------
    async def delete(self, request: Request, target: Target, options: DeleteOptions) -> Reply:
        """DELETE one object: at once, or marked where a grace period or finalizers stand in the way."""
        kind = target.kind
        entry = self.entry(target)
        if self.admission.concerns(kind, "DELETE", ""):
            old = entry.decode()
            await self.admission.mutate(
                Operation(request, kind, "DELETE", "", None, old, dry_run=options.dry_run)
            )
            await self.admission.validate(
                Operation(request, kind, "DELETE", "", None, old, dry_run=options.dry_run)
            )
            entry = self.entry(target)
        old, obj = entry.decode(), entry.decode()
        meta = obj["metadata"]
        if options.uid is not None and options.uid != meta["uid"]:
            why = (
                f"the UID in the precondition ({options.uid}) does not match the UID in record "
                f"({meta['uid']}). The object might have been deleted and then recreated"
            )
            raise conflict(kind.group, kind.kind, target.name, why)
        if options.version is not None and options.version != meta["resourceVersion"]:
            why = (
                f"the ResourceVersion in the precondition ({options.version}) does not match the "
                f"ResourceVersion in record ({meta['resourceVersion']}). The object might have been modified"
            )
            raise conflict(kind.group, kind.kind, target.name, why)
        self.rules.may_delete(kind, obj)
        self.rules.mark_deleted(kind, obj, options.grace, options.propagation)
        details: Json = {"name": target.name}
        if kind.group:
            details["group"] = kind.group
        details |= {"kind": kind.plural, "uid": meta["uid"]}
        if not _may_go(obj):
            if obj == old or options.dry_run:
                return reply(convert(kind, obj))
            return Reply(self.raw(kind, self.commit(kind, old, obj).raw))
        if options.dry_run:
            return reply(success(details))
        tomb = self.remove(kind, old, obj)
        if kind.key == ("", "pods"):
            return Reply(self.raw(kind, tomb.raw))
        return reply(success(details))

    async def delete_collection(self, request: Request, target: Target, options: DeleteOptions) -> Reply:
        """DELETE every object that the selectors choose."""
        entries, meta = self.select(request, target)
        for entry in list(entries):
            one = Target(target.kind, entry.key[0], entry.key[1])
            try:
                await self.delete(request, one, options)
            except Failure as failure:
                if failure.status not in (404, 409):
                    raise
        kind = target.kind
        items = [convert(kind, entry.decode()) for entry in entries]
        return reply(
            {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": items}
        )


def precondition_failed(kind: Kind, target: Target, what: str, asked: str, found: str) -> Failure:
    """409 for an update that is meant for another object or version."""
    key = f"/registry/{kind.plural}/{target.namespace}/{target.name}".replace("//", "/")
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {what} in precondition: {asked}, {what} in object meta: {found}"
    )
    return conflict(kind.group, kind.plural, target.name, why)


def _may_go(obj: Json) -> bool:
    """Whether a marked object has nothing left that keeps it."""
    meta = obj["metadata"]
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not (obj.get("kind") == "Namespace" and (obj.get("spec") or {}).get("finalizers"))
    )
