"""What is changed in a pod before it is stored: overrides are taken out, old spellings are translated.

kubelet appends a pod's own environment after the plugin's, so `NVIDIA_VISIBLE_DEVICES: all` beside
`aliyun.com/gpu-mem: 5` would show the container every GPU of the node. `envFrom` cannot be seen here: what
a ConfigMap holds may change after admission. A pod that asks for no GPU is left alone. What pods of
Kubernetes 1.4 to 1.9 say is put into today's words (`requests.historical`), with a warning.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any, Final

import msgspec

from gpuslice import names
from gpuslice.errors import InputError
from gpuslice.kube.wire import PodSpec, Wire
from gpuslice.requests.check import asks_for_gpu
from gpuslice.requests.historical import Translation, translate

PROTECTED: Final = frozenset(
    {
        names.VISIBLE_DEVICES,
        names.MEM_IDX,
        names.MEM_POD,
        names.MEM_CONTAINER,
        names.MEM_DEV,
        names.CGPU_DISABLE,
    }
)
"""Variables that belong to the device plugin."""
FIELDS: Final = ("containers", "initContainers", "ephemeralContainers")
"""The lists of containers in a pod's spec."""


class _EnvVar(Wire, frozen=True, gc=False):
    name: str = ""


class _Container(Wire, frozen=True, gc=False):
    name: str = ""
    env: tuple[_EnvVar, ...] | None = None


class _Spec(Wire, frozen=True, gc=False):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] | None = None
    ephemeral_containers: tuple[_Container, ...] | None = None


class _Pod(Wire, frozen=True, gc=False):
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class _Kind(Wire, frozen=True, gc=False):
    kind: str = ""


class _Request(Wire, frozen=True, gc=False):
    kind: _Kind = _Kind()
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Uid(Wire, frozen=True, gc=False):
    uid: str = ""


class _Review(Wire, frozen=True, gc=False):
    request: msgspec.Raw = msgspec.Raw(b"{}")


_review = msgspec.json.Decoder(_Review)
_uid = msgspec.json.Decoder(_Uid)
_request = msgspec.json.Decoder(_Request)
_pod = msgspec.json.Decoder(_Pod)
_spec = msgspec.json.Decoder(_Spec)
_resources = msgspec.json.Decoder(PodSpec)
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_HISTORICAL: Final = b"alpha.kubernetes.io/"
"""Stands in every pod that there is something to translate in."""


def review(body: bytes) -> bytes:
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
            fields = ("ephemeralContainers",) if request.sub_resource == "ephemeralcontainers" else FIELDS
            patch, warnings = change_pod(bytes(request.object), fields)
            if patch:
                answer["patchType"] = "JSONPatch"
                answer["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
            if warnings:
                answer["warnings"] = warnings
    except _UNREADABLE as error:
        answer["allowed"] = False
        answer["status"] = {"code": 400, "message": f"gpuslice cannot read the pod: {error}"}
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    )


def change_pod(pod: bytes, fields: Collection[str] = FIELDS) -> tuple[list[dict[str, object]], list[str]]:
    """The JSON patch for a pod, and a warning for each change; `fields` as for `strip_overrides`.

    Raises msgspec.DecodeError if the bytes are no pod.
    """
    patch: list[dict[str, object]] = []
    warnings: list[str] = []
    if _HISTORICAL in pod and "containers" in fields:
        translation = translate(msgspec.json.decode(pod, type=dict[str, Any]))
        patch = _steps(translation)
        warnings = [str(note) for note in (*translation.warnings, *translation.problems)]
    stripped, told = strip_overrides(pod, fields)
    return [*patch, *stripped], [*warnings, *told]


def _steps(translation: Translation) -> list[dict[str, object]]:
    return [
        {"op": "remove", "path": change.pointer}
        if change.value is None
        else {"op": "add", "path": change.pointer, "value": change.value}
        for change in translation.changes
    ]


def strip_overrides(
    pod: bytes, fields: Collection[str] = FIELDS
) -> tuple[list[dict[str, object]], list[str]]:
    """The JSON patch that takes the protected variables out of a pod, and a warning for each.

    `fields`: which lists of containers may be changed. Raises msgspec.DecodeError if the bytes are no pod.
    """
    decoded = _pod.decode(pod)
    if not asks_for_gpu(_resources.decode(decoded.spec)):
        return [], []
    patch: list[dict[str, object]] = []
    warnings: list[str] = []
    spec = _spec.decode(decoded.spec)
    lists = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    for field, containers in zip(FIELDS, lists, strict=True):
        for position, container in enumerate(containers or () if field in fields else ()):
            # From the last to the first, so that each removal leaves the earlier indexes right.
            for index, variable in reversed(list(enumerate(container.env or ()))):
                if variable.name in PROTECTED:
                    patch.append({"op": "remove", "path": f"/spec/{field}/{position}/env/{index}"})
                    warnings.append(
                        f"container {container.name!r}: env {variable.name} was removed; gpuslice sets it to "
                        "the GPU that the container is given"
                    )
    return patch, warnings


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
                    # `kubectl debug` adds containers later. Other updates of pods are none of our business:
                    # env cannot change, and a pod older than this webhook must stay editable.
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
                # What another webhook adds after us is looked at as well.
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 5,
            }
        ],
    }
