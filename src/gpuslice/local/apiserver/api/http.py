"""One request and its answer, free of any transport: ASGI and the in-process client make the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from gpuslice.local.apiserver.schema.kinds import Kind
from gpuslice.local.apiserver.schema.objects import encode
from gpuslice.local.apiserver.schema.status import Json, bad_request

JSON = "application/json"
ADMIN = "gpuslice-admin"
"""The one user: whoever holds the token, and everyone in the process."""


@dataclass(slots=True)
class Request:
    """What was asked. `path` is decoded; of a repeated query parameter the last value counts."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON
    user_agent: str = ""
    lists: Mapping[str, list[str]] = field(default_factory=dict)
    """Query parameters that may repeat (`command` of exec)."""
    warnings: list[str] = field(default_factory=list)
    """Filled while the request is served; each becomes a `Warning: 299` header."""

    def flag(self, name: str) -> bool:
        """A boolean query parameter, as Go reads it."""
        return self.query.get(name, "").lower() in ("1", "t", "true")

    def number(self, name: str) -> int | None:
        """An integer query parameter. Raises 400 if it is none."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    @property
    def dry_run(self) -> bool:
        """Whether everything but the commit is asked for. Raises 400 for a value other than All."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise bad_request(f'invalid dryRun value "{value}": supported values: "All"')
        return value == "All"

    @property
    def manager(self) -> str:
        """Who is named as the owner of the fields that this request sets; "" if nobody is."""
        return self.query.get("fieldManager", "")

    @property
    def writer(self) -> str:
        """Who owns the fields that this request changes, named or not."""
        return self.manager or self.user_agent.partition("/")[0] or "gpuslice"


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL under /api or /apis names."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(slots=True)
class Reply:
    """A whole answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON


@dataclass(slots=True)
class Stream:
    """An answer that goes on: batches of lines or bytes until the iterator ends or `close` is called."""

    batches: AsyncIterator[list[bytes]]
    close: Callable[[], None]
    content_type: str = JSON
    status: int = 200


def reply(value: Json, status: int = 200) -> Reply:
    """Answer with a JSON object."""
    return Reply(encode(value), status)
