"""What the embedded API server asks of a kubelet when somebody types `kubectl logs` or `kubectl exec`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The query of GET pods/NAME/log, as in core/v1 PodLogOptions."""

    follow: bool = False
    previous: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    limit_bytes: int | None = None
    timestamps: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a process's output. `channel` is 1 for stdout, 2 for stderr."""

    channel: int
    data: bytes


class ExecSession(Protocol):
    """One process started in a container."""

    def output(self) -> AsyncIterator[Output]:
        """Everything it prints, until it ends."""

    async def write(self, data: bytes) -> None:
        """Send to its stdin. `b""` closes stdin."""

    async def resize(self, width: int, height: int) -> None:
        """The user's terminal changed its size; no effect without a tty."""

    async def wait(self) -> int:
        """Its exit code, once it has ended."""

    async def kill(self) -> None:
        """The user has gone away. Safe to call after the end."""


class KubeletBackend(Protocol):
    """The streaming half of one node's kubelet. Raises errors.NotFound and errors.ApiError(400)."""

    def logs(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The container's log; with `follow`, until it ends."""

    async def exec(
        self, namespace: str, pod: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        """Start a process with exactly the container's environment."""
