"""Kinds that are answered and not stored: identity, permissions, tokens. Everybody may do everything here."""

from __future__ import annotations

from gpuslice.clock import Clock, rfc3339
from gpuslice.local.apiserver.api.http import ADMIN, Reply, Request, reply
from gpuslice.local.apiserver.schema.status import Json

GROUPS = ["system:masters", "system:authenticated"]


def review(kind: str, request: Request, obj: Json) -> Reply:
    """Answer one review object by filling in its status."""
    status: Json
    match kind:
        case "SelfSubjectReview":
            status = {"userInfo": {"username": ADMIN, "groups": GROUPS}}
        case "SelfSubjectRulesReview":
            everything: Json = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            status = {
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": False,
            }
        case "TokenReview":
            status = {"authenticated": False}
        case _:
            status = {"allowed": True, "reason": "everybody may do everything in a local cluster"}
    obj.setdefault("metadata", {"creationTimestamp": None})
    obj["status"] = status
    return reply(obj, 201)


def token(name: str, namespace: str, obj: Json, uid: str, clock: Clock) -> Reply:
    """POST serviceaccounts/NAME/token: a token that names the account and opens nothing."""
    seconds = (obj.get("spec") or {}).get("expirationSeconds") or 3600
    expires = rfc3339(clock.now_ns() + seconds * 1_000_000_000)
    obj["status"] = {"token": f"gpuslice.{namespace}.{name}.{uid}", "expirationTimestamp": expires}
    return reply(obj, 201)
