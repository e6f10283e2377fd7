"""Changes a pod before it is stored.

Everything that would give a pod more GPU than it asks for is taken out: `visibility` handles the
environments, `possession` the annotations; `nodename` refuses pods that would reach GPUs past every scheduler
and device plugin. Pods in the form of Kubernetes 1.4 to 1.9 are translated (`requests.historical`). The
author gets a warning for each change.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from gpuslice.admission.nodename import Offered, unknown, why_not_there
from gpuslice.admission.possession import unclaimed
from gpuslice.admission.visibility import FIELDS, RULES, Changes, EnvSpec, Rules, settle
from gpuslice.errors import InputError
from gpuslice.kube.wire import Wire
from gpuslice.requests.check import asks_for_gpu
from gpuslice.requests.historical import Translation, translate

EPHEMERAL: Final = "ephemeralContainers"
CONTAINERS: Final = 1000
"""Containers of one pod: no node runs so many."""
HISTORICAL_LIMIT: Final = 256 * 1024
"""Bytes of a pod that is translated."""


class _Meta(Wire, frozen=True, gc=False):
    annotations: dict[str, str] | None = None


class _Pod(Wire, frozen=True, gc=False):
    metadata: _Meta = _Meta()
    spec: EnvSpec = EnvSpec()


class _Kind(Wire, frozen=True, gc=False):
    kind: str = ""


class _Request(Wire, frozen=True, gc=False):
    kind: _Kind = _Kind()
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"{}")


class _Uid(Wire, frozen=True, gc=False):
    uid: str = ""


class _Review(Wire, frozen=True, gc=False):
    request: msgspec.Raw = msgspec.Raw(b"{}")


_review = msgspec.json.Decoder(_Review)
_uid = msgspec.json.Decoder(_Uid)
_request = msgspec.json.Decoder(_Request)
_pod = msgspec.json.Decoder(_Pod)
_UID: Final = re.compile(rb'^\s*\{[^{}]*"request"\s*:\s*\{\s*"uid"\s*:\s*"([-\w]{1,64})"')
"""kube-apiserver writes it first, before what a pod says."""
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_HISTORICAL: Final = b"alpha.kubernetes.io/"
"""Occurs in every pod that has something to translate."""


def review(body: bytes, rules: Rules = RULES, offered: Offered = unknown) -> bytes:
    """Answer an AdmissionReview (admission.k8s.io/v1). Raises InputError if the body is none.

    A pod whose GPU request is malformed loses its overrides and is let through: the API server or the
    scheduler will say what is wrong with it, and nothing runs.
    """
    try:
        raw = _review.decode(body).request
        uid = _uid.decode(raw).uid
    except _UNREADABLE as error:
        raise InputError(f"the body is not an AdmissionReview: {error}") from error
    if not uid:
        raise InputError("the AdmissionReview has no request.uid")
    answer: dict[str, object] = {"uid": uid, "allowed": True}
    try:
        request = _request.decode(raw)
        if request.kind.kind == "Pod":
            answer |= _answered(_changes(request, rules, offered))
    except _UNREADABLE as error:
        answer["allowed"] = False
        answer["status"] = {"code": 400, "message": f"gpuslice cannot read the pod: {error}"}
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    )


def unread(start: bytes, why: str, code: int = 413) -> bytes | None:
    """The refusal of a review of which only the start was read. None if the start does not have the review's
    uid.

    An HTTP error would be a failure of ours, after which webhooks that fail open let the pod in.
    """
    uid = _UID.search(start)
    if uid is None:
        return None
    status = {"code": code, "message": why}
    answer = {"uid": uid[1].decode(), "allowed": False, "status": status}
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    )


def _answered(changes: Changes) -> dict[str, object]:
    if changes.refusals:
        status = {"code": 403, "reason": "Forbidden", "message": "; ".join(changes.refusals)}
        return {"allowed": False, "status": status}
    answer: dict[str, object] = {}
    if changes.patch:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = base64.b64encode(msgspec.json.encode(changes.patch)).decode()
    if changes.warnings:
        answer["warnings"] = changes.warnings
    return answer


def _changes(request: _Request, rules: Rules, offered: Offered) -> Changes:
    pod = bytes(request.object)
    if request.sub_resource != "ephemeralcontainers":
        return _change_pod(pod, rules, offered)
    # In a running pod only new containers can be changed; the other containers are as they were admitted.
    before = _pod.decode(request.old_object).spec.ephemeral_containers or ()
    return _environments(_pod.decode(pod), rules, (EPHEMERAL,), {one.name for one in before})


def _change_pod(pod: bytes, rules: Rules, offered: Offered) -> Changes:
    decoded = _pod.decode(pod)
    changes = Changes()
    if why := _too_much(decoded, pod):
        changes.refusals.append(why)
        return changes
    if _HISTORICAL in pod:
        translation = translate(msgspec.json.decode(pod, type=dict[str, Any]))
        changes.patch += _steps(translation)
        changes.warnings += [str(note) for note in (*translation.warnings, *translation.problems)]
    annotations = decoded.metadata.annotations or {}
    if why := why_not_there(decoded.spec, annotations, offered):
        changes.refusals.append(why)
    try:
        patch, warnings = unclaimed(annotations)
    except InputError as error:
        return Changes(refusals=[str(error)])
    about = _environments(decoded, rules)
    changes.patch += [*patch, *about.patch]
    changes.warnings += [*warnings, *about.warnings]
    changes.refusals += about.refusals
    return changes


def _too_much(decoded: _Pod, pod: bytes) -> str:
    """Why a pod is too large to be examined, which would hold up other reviews for seconds; "" if it is
    not.
    """
    spec = decoded.spec
    lists = spec.containers, spec.init_containers or (), spec.ephemeral_containers or ()
    if (number := sum(map(len, lists))) > CONTAINERS:
        return f"spec.containers: a pod may have {CONTAINERS} containers, and this one has {number}"
    if _HISTORICAL in pod and len(pod) > HISTORICAL_LIMIT:
        return (
            f"a pod with words of old Kubernetes (alpha.kubernetes.io/) may have {HISTORICAL_LIMIT} bytes, "
            f"and this one has {len(pod)}"
        )
    return ""


def _environments(
    pod: _Pod, rules: Rules, fields: Collection[str] = FIELDS, known: Collection[str] = ()
) -> Changes:
    annotations = pod.metadata.annotations or {}
    asks = asks_for_gpu(pod.spec)
    return settle(pod.spec, annotations, asks=asks, fields=fields, known=known, rules=rules)


def _steps(translation: Translation) -> list[dict[str, object]]:
    return [
        {"op": "remove", "path": change.pointer}
        if change.value is None
        else {"op": "add", "path": change.pointer, "value": change.value}
        for change in translation.changes
    ]


def webhook_configuration(
    *, url: str = "", service: dict[str, object] | None = None, ca: bytes = b""
) -> dict[str, object]:
    """The MutatingWebhookConfiguration that makes the API server ask us about new pods.

    Either `url` (https) or `service` ({namespace, name, port, path}); `ca` is PEM. It fails closed: without
    our answer a pod could be let in that sees every GPU. kube-system is exempt, so that a cluster can start.
    """
    client: dict[str, object] = {"url": url} if url else {"service": service}
    if ca:
        client["caBundle"] = base64.b64encode(ca).decode()
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "gpuslice"},
        "webhooks": [
            {
                "name": "pods.gpuslice.io",
                "clientConfig": client,
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    },
                    # `kubectl debug` adds containers later. Other updates of pods are not reviewed: env
                    # cannot change, and a pod older than this webhook must stay editable.
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["pods/ephemeralcontainers"],
                    },
                ],
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": ["kube-system"],
                        }
                    ]
                },
                "failurePolicy": "Fail",
                # Changes that another webhook makes after us are reviewed as well.
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 5,
            }
        ],
    }
