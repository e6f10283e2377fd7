"""The exception tree.

GpuSliceError
├── InputError          what a person or another program gave us is wrong; says which field and the remedy
├── ApiError            the Kubernetes API server answered with an error (carries the HTTP status)
│   ├── NotFound        404
│   ├── Conflict        409: somebody else was faster; read again and retry
│   └── Gone            410: the watch's resourceVersion is too old; list again
└── Unavailable         the other side cannot be reached at the moment; retry later

A *decision* that says no is never an exception: it is a `placement.Verdict`.
"""

from __future__ import annotations

QUOTED = 100
"""Characters of another's text that a sentence repeats: an annotation can have 262,144."""


class GpuSliceError(Exception):
    """Root of everything that gpuslice raises on purpose; `str(error)` is one sentence for humans."""

    retryable: bool = False


class InputError(GpuSliceError):
    """Bad input: names the field and the remedy. Nothing was changed."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.detail = message
        """The sentence without the field."""


class ApiError(GpuSliceError):
    """The API server answered with a failure status."""

    def __init__(self, status: int, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """True if the same request may succeed later without a change (429 and 5xx)."""
        return self.status == 429 or self.status >= 500


class NotFound(ApiError):
    """404: the object does not exist."""


class Conflict(ApiError):
    """409: a precondition (uid, resourceVersion) failed or the object exists already."""


class Gone(ApiError):
    """410: the requested resourceVersion is too old to watch from."""


class Unavailable(GpuSliceError):
    """The other side (API server, kubelet) cannot be reached right now."""

    retryable = True


def quoted(value: object) -> str:
    """A value of somebody else's in a sentence: as Python writes it, cut short where it is long."""
    if isinstance(value, int) and value.bit_length() > 4 * QUOTED:
        return "a number of so many digits"
    text = repr(value[: QUOTED + 1] if isinstance(value, str) else value)
    return text if len(text) <= QUOTED + 2 else f"{text[:QUOTED]}..."


def api_error(status: int, message: str, reason: str = "") -> ApiError:
    """Build the subclass of ApiError that fits an HTTP status."""
    kinds: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone}
    return kinds.get(status, ApiError)(status, message, reason=reason)
