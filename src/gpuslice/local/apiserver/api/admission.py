"""Admission webhooks: asks those whose rules concern a request (admission.k8s.io/v1), mutating ones first.

Not here: matchConditions (CEL) and matchPolicy Equivalent (every kind has one version).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from gpuslice.errors import ApiError, Unavailable
from gpuslice.local.apiserver.api.http import ADMIN, Request
from gpuslice.local.apiserver.api.reviews import GROUPS
from gpuslice.local.apiserver.api.store import Store
from gpuslice.local.apiserver.schema import patches
from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.objects import convert, encode
from gpuslice.local.apiserver.schema.selectors import label_selector
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request

HOOKS = "admissionregistration.k8s.io"
MUTATING, VALIDATING = (HOOKS, "mutatingwebhookconfigurations"), (HOOKS, "validatingwebhookconfigurations")


class Post(Protocol):
    """How a webhook is called. Raises `Unavailable` with the reason if there is no answer in time."""

    async def __call__(self, url: str, body: bytes, *, authority: bytes, timeout_s: float) -> bytes:
        """POST JSON. `authority`: the CA certificate (PEM) to trust; empty for the system's.

        Services come as https://NAME.NAMESPACE.svc:PORT/PATH; whoever implements this knows where they are.
        """


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

    @property
    def subject(self) -> Json:
        """The object, or on DELETE the one that goes."""
        found = self.obj if self.obj is not None else self.old
        assert found is not None
        return found


class Admission:
    """Calls the webhooks that are configured in the store."""

    def __init__(self, store: Store, post: Post, new_uid: Callable[[], str]) -> None:
        self._store = store
        self._post = post
        self._new_uid = new_uid
        self._hooks: dict[tuple[str, str], list[Json]] | None = None
        self._concerns: dict[tuple[str, str, str, str], bool] = {}

    def note(self, kind: Kind, _before: Json | None, _after: Json | None) -> None:
        """A commit: forget what was read if it was a configuration."""
        if kind.group == HOOKS:
            self._hooks = None
            self._concerns.clear()

    def concerns(self, kind: Kind, verb: str, subresource: str) -> bool:
        """Whether any webhook has a rule for this."""
        key = (kind.group, kind.plural, verb, subresource)
        found = self._concerns.get(key)
        if found is None:
            found = self._concerns[key] = kind.group != HOOKS and any(
                _rule_fits(hook, kind, verb, subresource)
                for configured in (MUTATING, VALIDATING)
                for hook in self._configured(configured)
            )
        return found

    async def mutate(self, operation: Operation) -> Json:
        """The object after all mutating webhooks. Raises the Failure of the first that refuses."""
        hooks = [hook for hook in self._configured(MUTATING) if self._fits(hook, operation)]
        seen: list[Json | None] = []
        for hook in hooks:
            await self._call(hook, operation)
            seen.append(_copy(operation.obj))
        for hook, was in zip(hooks, seen, strict=True):
            if hook.get("reinvocationPolicy") == "IfNeeded" and was != operation.obj:
                await self._call(hook, operation)
        return operation.subject

    async def validate(self, operation: Operation) -> None:
        """Raises the Failure of the first validating webhook that refuses."""
        for hook in self._configured(VALIDATING):
            if self._fits(hook, operation):
                await self._call(hook, operation)

    def _configured(self, which: tuple[str, str]) -> list[Json]:
        if self._hooks is None:
            self._hooks = {
                key: [
                    hook
                    for entry in self._store.collection(key).in_order()
                    for hook in entry.decode().get("webhooks") or ()
                ]
                for key in (MUTATING, VALIDATING)
            }
        return self._hooks[which]

    def _fits(self, hook: Json, operation: Operation) -> bool:
        if not _rule_fits(hook, operation.kind, operation.verb, operation.subresource):
            return False
        meta = operation.subject["metadata"]
        if selector := hook.get("namespaceSelector"):
            labels: dict[str, str] = {}
            if operation.kind.key == ("", "namespaces"):
                labels = meta.get("labels") or {}
            elif operation.kind.namespaced:
                entry = self._store.collection(("", "namespaces")).get("", meta.get("namespace", ""))
                labels = entry.labels if entry is not None else {}
            else:
                selector = None
            if selector is not None and not label_selector(selector).matches(labels):
                return False
        if selector := hook.get("objectSelector"):
            chosen = label_selector(selector)
            return any(
                chosen.matches(one["metadata"].get("labels") or {})
                for one in (operation.obj, operation.old)
                if one is not None
            )
        return True

    async def _call(self, hook: Json, operation: Operation) -> None:
        name = hook.get("name", "")
        if operation.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{name}" does not support dry run')
        uid = self._new_uid()
        config = hook.get("clientConfig") or {}
        try:
            authority = base64.b64decode(config.get("caBundle") or "")
            body = encode(_review(operation, uid))
            answer = await self._post(
                _url(config), body, authority=authority, timeout_s=float(hook.get("timeoutSeconds") or 10)
            )
            response = _read(answer, uid)
            patched = self._patched(response, operation)
        except (Unavailable, ValueError, binascii.Error, ApiError) as error:
            if hook.get("failurePolicy") == "Ignore":
                return
            raise Failure(
                500,
                "InternalError",
                f'Internal error occurred: failed calling webhook "{name}": failed to call webhook: {error}',
            ) from error
        operation.request.warnings += [str(one) for one in response.get("warnings") or ()]
        if not response.get("allowed"):
            status = response.get("status") or {}
            why = status.get("message") or status.get("reason") or ""
            text = f'admission webhook "{name}" denied the request'
            text += f": {why}" if why else " without explanation"
            raise Failure(status.get("code") or 403, status.get("reason") or "Forbidden", text)
        if patched is not None:
            operation.obj = patched

    @staticmethod
    def _patched(response: Json, operation: Operation) -> Json | None:
        if not response.get("patch") or operation.obj is None or not response.get("allowed"):
            return None
        if response.get("patchType") != "JSONPatch":
            raise ValueError("webhook returned response.patch but not response.patchType JSONPatch")
        steps = msgspec.json.decode(base64.b64decode(response["patch"]))
        result = patches.json_patch(_copy(operation.obj), steps)
        if not isinstance(result, dict) or not isinstance(result.get("metadata"), dict):
            raise ValueError("the webhook's patch does not leave an object")  # noqa: TRY004 - its data, not our type
        return result


def _copy(obj: Json | None) -> Json | None:
    return None if obj is None else msgspec.json.decode(encode(obj))


def _rule_fits(hook: Json, kind: Kind, verb: str, subresource: str) -> bool:
    for rule in hook.get("rules") or ():
        scope = rule.get("scope") or "*"
        if scope != "*" and (scope == "Namespaced") is not kind.namespaced:
            continue
        if (
            _has(rule.get("operations"), verb)
            and _has(rule.get("apiGroups"), kind.group)
            and _has(rule.get("apiVersions"), kind.version)
            and _resource_fits(rule.get("resources") or (), kind.plural, subresource)
        ):
            return True
    return False


def _has(names: Any, name: str) -> bool:
    return "*" in (names or ()) or name in (names or ())


def _resource_fits(patterns: Any, plural: str, subresource: str) -> bool:
    for pattern in patterns:
        resource, slash, sub = pattern.partition("/")
        if resource not in ("*", plural):
            continue
        if sub in (subresource, "*") and (slash or not subresource):
            return True
    return False


def _url(config: Json) -> str:
    if config.get("url"):
        return str(config["url"])
    service = config.get("service") or {}
    path = service.get("path") or "/"
    return f"https://{service.get('name')}.{service.get('namespace')}.svc:{service.get('port', 443)}{path}"


def _review(operation: Operation, uid: str) -> Json:
    kind, meta = operation.kind, operation.subject["metadata"]
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    gvr = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    request: Json = {"uid": uid, "kind": gvk, "resource": gvr, "requestKind": gvk, "requestResource": gvr}
    if operation.subresource:
        request |= {"subResource": operation.subresource, "requestSubResource": operation.subresource}
    request["name"] = meta.get("name", "")
    if kind.namespaced:
        request["namespace"] = meta.get("namespace", "")
    options = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}[
        operation.verb
    ]
    request |= {
        "operation": operation.verb,
        "userInfo": {"username": ADMIN, "groups": GROUPS},
        "object": None if operation.obj is None else convert(kind, dict(operation.obj)),
        "oldObject": None if operation.old is None else convert(kind, dict(operation.old)),
        "dryRun": operation.dry_run,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": options},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _read(answer: bytes, uid: str) -> Json:
    try:
        review = msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise ValueError(f"the answer is not JSON: {error}") from None
    response = review.get("response") if isinstance(review, dict) else None
    if not isinstance(response, dict):
        raise ValueError("the answer has no response")  # noqa: TRY004 - its data, not our type
    if response.get("uid") != uid:
        raise ValueError(f'expected response.uid="{uid}", got "{response.get("uid")}"')
    return response
