"""The gate before every decision: open while the state of the cluster is complete and this process leads.

A decision from an incomplete state promises the same GPU twice, and nothing undoes that. So there is one
`Gate`: it knows by name which lists of the API server a decision needs, and says which of them are not
complete at this moment. It is checked at the moment of acting, and again between the steps of long work:
`GatedClient` does that for every write.
"""

from __future__ import annotations

from typing import Final, Protocol, Unpack

from gpuslice.clock import Clock
from gpuslice.errors import Unavailable
from gpuslice.kube.client import Client, RequestOptions
from gpuslice.kube.leading import Alone, Leadership

LOOK_SECONDS: Final = 0.05
"""How soon it is noticed that a gate is open again."""


class Followed(Protocol):
    """A list that is kept up to date."""

    @property
    def name(self) -> str:
        """What it is a list of, in the plural: `pods`."""

    @property
    def whole(self) -> bool:
        """True while its owner knows all of it."""


class Gate:
    """The lists that must be complete, and the leadership that must be held. Without any the gate is open.

    `beside`: another gate that has to be open as well.
    """

    def __init__(
        self, *lists: Followed, leadership: Leadership | None = None, beside: Gate | None = None
    ) -> None:
        self.lists = lists
        self.leadership: Leadership = leadership or Alone()
        self._beside = beside

    def lacking(self) -> list[str]:
        """The lists that are not whole now, by name."""
        more = self._beside.lacking() if self._beside is not None else []
        return [*more, *(one.name for one in self.lists if not one.whole)]

    def incomplete(self) -> str:
        """Why nothing may be reported about the cluster now; "" if it may."""
        lacking = self.lacking()
        if not lacking:
            return ""
        return f"the picture of the cluster is not complete: {' and '.join(lacking)} are being read"

    def closed(self) -> str:
        """Why nothing may be decided now; "" if it may."""
        if why := self.incomplete():
            return why
        if not self.leadership.leads:
            return f"this replica does not lead: {self.leadership.why}"
        return self._beside.closed() if self._beside is not None else ""

    async def opened(self, clock: Clock) -> None:
        """Wait until something may be decided."""
        while self.closed():
            await clock.sleep(LOOK_SECONDS)


class GatedClient(Client):
    """A client that changes nothing while a gate is closed: its writes raise Unavailable then."""

    def __init__(self, client: Client, gate: Gate) -> None:
        super().__init__(client.transport)
        self._gate = gate

    async def _send(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        if method != "GET" and (why := self._gate.closed()):
            raise Unavailable(why)
        return await super()._send(method, path, **options)
