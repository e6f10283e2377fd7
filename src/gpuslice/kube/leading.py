"""Decides which of several replicas leads: leader election by Lease, or following somebody else's election.

The rules are client-go's (tools/leaderelection): nobody's clock is believed but one's own. A holder is taken
to be alive for LEASE_SECONDS after the last change of the Lease *as seen here*; it renews every RETRY_SECONDS
and stops to lead after RENEW_SECONDS without success, which is before anybody else can begin.

It stops by the clock and not by the next answer: a process that was stopped for long, or whose machine slept,
does not lead at the moment at which it goes on. So `leads` is asked at the moment of acting, never kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, Final, Protocol

import structlog

from gpuslice.background import background
from gpuslice.clock import Clock, rfc3339_micro
from gpuslice.errors import Conflict, GpuSliceError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.wire import KubeObject, Pod, Resource, Wire

LEASE_SECONDS: Final = 15
RENEW_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
REQUEST_SECONDS: Final = 3.0
"""With the pause between two tries this keeps the end of leading before LEASE_SECONDS."""

_log = structlog.get_logger(__name__)


class LeaseSpec(Wire, frozen=True, gc=False):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True, gc=False):
    resource: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "leases", "Lease")
    spec: LeaseSpec = LeaseSpec()


class Leadership(Protocol):
    """Tells whether this process leads."""

    @property
    def leads(self) -> bool:
        """True if it leads at this moment. Ask again before the next step."""

    @property
    def why(self) -> str:
        """Why it does not lead, in a few words."""

    async def run(self) -> None:
        """Keep that true, for ever."""


class Alone:
    """No election: the only replica there is."""

    leads = True
    why = ""

    async def run(self) -> None:
        return


class Candidate:
    """Campaigns for a Lease. `on_change` is called at every beginning and end of leading."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        on_change: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self.why = f"nobody is known yet to hold the Lease {name}"
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._on_change = on_change
        self._seen = ("", "")
        self._seen_at = 0.0
        self._renewed_at: float | None = None  # when the last renewal was sent; None: the Lease is not ours
        self._said = False
        self._told: bool | None = None

    @property
    def leads(self) -> bool:
        """True for RENEW_SECONDS after the last renewal was sent."""
        since = self._renewed_at
        return since is not None and self._clock.monotonic() - since < RENEW_SECONDS

    async def run(self) -> None:
        """Campaign until cancelled; then give the Lease back, so that another can lead at once."""
        telling: asyncio.Task[None] | None = None
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    async with asyncio.timeout(REQUEST_SECONDS):
                        mine = await self._try()
                    self._renewed_at = began if mine else None
                    if mine:
                        self._not_renewed("this process was held up")  # if nothing else is said later
                except (GpuSliceError, TimeoutError) as error:
                    _log.info("lease not renewed", lease=self._name, error=str(error) or "no answer")
                    self._not_renewed(str(error) or "the API server did not answer")
                self._say()
                if telling is None or telling.done():
                    telling = asyncio.create_task(self._tell())  # the next renewal does not wait for it
                await self._clock.sleep(RETRY_SECONDS)
        finally:
            if telling is not None:
                telling.cancel()
            held, self._renewed_at = self._renewed_at is not None, None
            if held:
                await asyncio.shield(self._release())

    def _not_renewed(self, why: str) -> None:
        self.why = f"the Lease {self._name} was not renewed in time: {why}"

    async def _try(self) -> bool:
        """Take or renew the Lease; False if another one holds it. Raises GpuSliceError."""
        now = rfc3339_micro(self._clock.now_ns())
        mine = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        }
        try:
            lease = await self._client.get(Lease, self._name, self._namespace)
        except NotFound:
            spec: dict[str, object] = {**mine, "acquireTime": now, "leaseTransitions": 0}
            body: dict[str, object] = {
                "apiVersion": Lease.resource.api_version,
                "kind": Lease.resource.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
            try:
                await self._client.create(Lease.resource, body, self._namespace)
            except Conflict:
                self.why = f"another replica was the first to take the Lease {self._name}"
                return False
            return True
        holder = lease.spec.holder_identity or ""
        if holder not in ("", self._identity) and not self._is_over(lease):
            self.why = f"{holder} holds the Lease {self._name}"
            return False
        change: dict[str, object] = dict(mine)
        if holder != self._identity:
            change |= {"acquireTime": now, "leaseTransitions": (lease.spec.lease_transitions or 0) + 1}
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": change}
        try:
            await self._client.patch(Lease, self._name, body, self._namespace)
        except Conflict:
            if holder == self._identity:
                raise  # somebody edited it; the next round renews it
            self.why = f"another replica was the first to take the Lease {self._name}"
            return False
        return True

    def _is_over(self, lease: Lease) -> bool:
        """True if the holder has not renewed for its time, on our own clock."""
        record = (lease.metadata.uid, lease.metadata.resource_version)
        if record != self._seen:
            self._seen, self._seen_at = record, self._clock.monotonic()
        # Nobody else may say how long it is to be waited for: no candidate of ours leads for longer.
        allowed = min(lease.spec.lease_duration_seconds or LEASE_SECONDS, LEASE_SECONDS)
        return self._clock.monotonic() - self._seen_at >= allowed

    def _say(self) -> None:
        if self._said != self.leads:
            self._said = not self._said
            what = "leading" if self._said else "not leading any more"
            _log.info(what, lease=self._name, identity=self._identity)

    async def _tell(self) -> None:
        """Tell what is so; also at the start, since a former life of this process may have led."""
        if self._on_change is None or self._told == self.leads:
            return
        leads = self.leads
        try:
            await self._on_change(leads)
        except GpuSliceError as error:
            _log.warning("the change of leader is not told yet", lease=self._name, error=str(error))
        else:
            self._told = leads

    async def _release(self) -> None:
        try:
            lease = await self._client.get(Lease, self._name, self._namespace)
            if lease.spec.holder_identity == self._identity:
                body = {
                    "metadata": {"resourceVersion": lease.metadata.resource_version},
                    "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
                }
                await self._client.patch(Lease, self._name, body, self._namespace)
        except GpuSliceError:
            return  # it runs out by itself


class Follower:
    """Leads while the process beside it holds a Lease: a kube-scheduler of the same pod.

    The extender that kube-scheduler asks is then the one that acts. kube-scheduler calls itself
    `<hostname>_<uuid>`, and the containers of a pod have one hostname. It renews by the rules above; when it
    did so last is not known exactly, but surely after the last look that did not show it yet.
    """

    def __init__(self, client: Client, *, namespace: str, name: str, hostname: str, clock: Clock) -> None:
        self.why = "the kube-scheduler of this pod does not"
        self._client = client
        self._namespace = namespace
        self._name = name
        self._prefix = f"{hostname}_"
        self._clock = clock
        self._looked_at: float | None = None  # when the last look that succeeded began
        self._seen: tuple[str, str] | None = None
        self._renewed_at: float | None = None  # not later than that; None: the other process does not hold it

    @property
    def leads(self) -> bool:
        """True for RENEW_SECONDS after the last renewal by the process beside."""
        since = self._renewed_at
        return since is not None and self._clock.monotonic() - since < RENEW_SECONDS

    async def run(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    lease = await self._client.get(Lease, self._name, self._namespace)
            except NotFound:
                self._look(began, Lease())
            except (GpuSliceError, TimeoutError) as error:
                # kube-scheduler fares no better: who acted goes on for as long as it does.
                _log.info("lease not read", lease=self._name, error=str(error) or "no answer")
            else:
                self._look(began, lease)
            await self._clock.sleep(RETRY_SECONDS)

    def _look(self, began: float, lease: Lease) -> None:
        record = (lease.metadata.uid, lease.metadata.resource_version)
        if not (lease.spec.holder_identity or "").startswith(self._prefix):
            self._renewed_at = None
        elif self._seen not in (None, record):
            self._renewed_at = self._looked_at
        self._looked_at, self._seen = began, record


@asynccontextmanager
async def campaigning(leadership: Leadership) -> AsyncIterator[None]:
    """Campaign to the very end of the block: what was on its way has arrived before another one leads."""
    async with background() as start:
        start("campaign", leadership.run())
        yield


def label_leader(client: Client, namespace: str, pod: str, label: str) -> Callable[[bool], Awaitable[None]]:
    """For `Candidate`: a label on the leader's own pod, for a Service to select it by."""

    async def change(leads: bool) -> None:
        body = {"metadata": {"labels": {label: "true" if leads else None}}}
        await client.patch(Pod, pod, body, namespace)

    return change
