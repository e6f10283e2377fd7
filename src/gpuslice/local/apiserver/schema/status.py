"""Failures as the API server words them: `metav1.Status` and the field errors inside it.

The sentences are Kubernetes' own (apimachinery `api/errors` and `util/validation/field`), because
people search for them and programs match them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuslice.errors import ApiError

Json = dict[str, Any]
"""A JSON object as stored: the one place of gpuslice where dicts cross module borders."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What is wrong with one field."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, why: str = "") -> Cause:
    """The field is missing."""
    return Cause(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def invalid_value(field: str, value: object, why: str) -> Cause:
    """The field's value is malformed."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown(value)}: {why}")


def forbidden_field(field: str, why: str) -> Cause:
    """The field may not be set or changed here."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def duplicate(field: str, value: object) -> Cause:
    """The value occurs twice in a list whose entries must differ."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {shown(value)}")


def unsupported(field: str, value: object, known: Sequence[str]) -> Cause:
    """The value is not one of an enumeration."""
    names = ", ".join(f'"{name}"' for name in sorted(known))
    return Cause(
        field, "FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {names}"
    )


def not_found_value(field: str, value: object) -> Cause:
    """The value refers to something that does not exist."""
    return Cause(field, "FieldValueNotFound", f"Not found: {shown(value)}")


def shown(value: object) -> str:
    """A value as field errors print it: strings quoted, the rest as JSON."""
    return msgspec.json.encode(value).decode()


class Failure(ApiError):
    """A request that is refused; becomes a `metav1.Status` with an HTTP code."""

    def __init__(self, code: int, reason: str, message: str, *, details: Json | None = None) -> None:
        super().__init__(code, message, reason=reason)
        self.details = details

    def body(self) -> Json:
        """The Status object that the client reads."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
        }
        if self.details:
            status["details"] = self.details
        status["code"] = self.status
        return status


def success(details: Json) -> Json:
    """The Status that answers a completed DELETE."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def qualified(group: str, plural: str) -> str:
    """`pods`, `deployments.apps`: how messages name a resource."""
    return f"{plural}.{group}" if group else plural


def _details(group: str, plural: str, name: str) -> Json:
    details: Json = {"name": name}
    if group:
        details["group"] = group
    details["kind"] = plural
    return details


def bad_request(message: str) -> Failure:
    """400."""
    return Failure(400, "BadRequest", message)


def unauthorized() -> Failure:
    """401."""
    return Failure(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, why: str) -> Failure:
    """403."""
    what = f'{qualified(group, plural)} "{name}" is forbidden: {why}'
    return Failure(403, "Forbidden", what, details=_details(group, plural, name))


def not_found(group: str, plural: str, name: str) -> Failure:
    """404 for an object."""
    what = f'{qualified(group, plural)} "{name}" not found'
    return Failure(404, "NotFound", what, details=_details(group, plural, name))


def no_such_route() -> Failure:
    """404 for a path."""
    return Failure(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> Failure:
    """405."""
    return Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(group: str, plural: str, name: str) -> Failure:
    """409 on create."""
    what = f'{qualified(group, plural)} "{name}" already exists'
    return Failure(409, "AlreadyExists", what, details=_details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str) -> Failure:
    """409 on a failed precondition."""
    what = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return Failure(409, "Conflict", what, details=_details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def expired(message: str) -> Failure:
    """410: a resourceVersion or continue token from too long ago."""
    return Failure(410, "Expired", message)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> Failure:
    """422 with every wrong field."""
    lines = [str(cause) for cause in causes]
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details: Json = {"name": name}
    if group:
        details["group"] = group
    details["kind"] = kind
    details["causes"] = [
        {"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes
    ]
    return Failure(422, "Invalid", f'{qualified(group, kind)} "{name}" is invalid: {text}', details=details)
