"""A reflector: follows one kind of object, so that its owner sees every object's latest state.

It lists, hands over what is there and what has vanished meanwhile, then watches from the list's
version on. The invariant, whatever the network does: after a completed list the owner has been told
exactly what the server has, and every deletion is told exactly once, also one that happened while no
watch was open. The last is why it is ours: a client that restarts a watch after 410 without listing
loses deletions, and a scheduler that misses a deletion leaks a GPU.

Between two such moments the owner knows half: while pages come in, and while what a new list says is handed
over. And what it knows grows old while no watch is open. `whole` says whether either is so: who decides from
what a reflector tells asks it (`gate`).

Only `key -> uid` is kept; the objects belong to the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Final, Generic, TypeVar, cast

import msgspec
import structlog

from gpuslice.clock import Clock
from gpuslice.errors import ApiError, Gone, NotFound, Unavailable
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client, Listing, WatchEvent
from gpuslice.kube.decoding import Broken
from gpuslice.kube.quarantine import Quarantine, reason
from gpuslice.kube.wire import MAX_VERSION, KubeObject, ObjectMeta
from gpuslice.units import read_digits

K = TypeVar("K", bound=KubeObject)

BACKOFF: Final = Backoff(base=0.1, cap=10.0)
STEADY_SECONDS: Final = 5.0
"""A watch that lived this long was a good one: the next failure starts the backoff anew."""
BEHIND_SECONDS: Final = 2.0
"""What is known is the present for so long after a watch has ended; a server ends each after some minutes."""
BACKWARDS_SECONDS: Final = 30.0
"""How long lists are not believed that are older than what the server said before. One that was restored from
a backup goes on saying so."""
BATCH: Final = 250
"""Objects handed over between two yields to the event loop: a relist must not stall other requests."""

_log = structlog.get_logger(__name__)


class Reflector(Generic[K]):
    """Tells `on_set` of every object that appears or changes and `on_drop` of every one that goes.

    A key that comes back with another uid is told as a drop of the old object first. The object given
    to `on_drop` is the last one the server sent, or, if the deletion was missed, one with nothing but
    namespace, name and uid. The callbacks run on the event loop and must not block.

    An object that does not decode, or for which a callback raises, goes to `quarantine` and ends nothing. One
    that does not decode stays as its owner knows it; if he does not, `salvage` says whether he is told of it
    with what could be read (by default he is not).

    `relists`: list anew when no watch was open for BEHIND_SECONDS. What happened meanwhile would come with
    the next watch as well, but nothing says when all of it has come; a list does.
    """

    def __init__(
        self,
        client: Client,
        kind: type[K],
        *,
        on_set: Callable[[K], None],
        on_drop: Callable[[K], None],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        quarantine: Quarantine | None = None,
        salvage: Callable[[K], bool] = lambda _item: False,
        clock: Clock,
        random: Callable[[], float],
        relists: bool = False,
    ) -> None:
        self.quarantine = quarantine or Quarantine()
        self.synced = asyncio.Event()
        """Set once the first complete list has been handed over."""
        self._client = client
        self._kind = kind
        self._on_set = on_set
        self._on_drop = on_drop
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._salvage = salvage
        self._clock = clock
        self._random = random
        self._relists = relists
        self._uids: dict[str, str] = {}
        self._version = ""  # watch from here; "" = list first
        self._newest = ""  # the latest version that the server spoke of
        self._backwards_since: float | None = None
        self._handed_over = False
        self._unwatched_since: float | None = None  # None while a watch is open
        self._failures = 0
        self._outage = False
        self._quick_ends = 0  # a server that ends every watch at once must not make us spin

    @property
    def name(self) -> str:
        """What is followed, in the plural."""
        return self._kind.resource.plural

    @property
    def whole(self) -> bool:
        """True while the owner knows all that there is, as of now."""
        since = self._unwatched_since
        return self._handed_over and (since is None or self._clock.monotonic() - since < BEHIND_SECONDS)

    async def run(self) -> None:
        """Follow the kind for ever. Outages are waited out, and logged once each."""
        while True:
            started = self._clock.monotonic()
            try:
                if not self._version or (self._relists and not self.whole):
                    await self._list()
                    started = self._clock.monotonic()
                progressed = await self._watch()
            except Gone:
                # Nothing is wrong: we were away for too long. If it repeats, slow down.
                self._version = ""
                self._quick_ends += 1
            except Unavailable as error:
                self._failed(started, error)
            except (ApiError, msgspec.DecodeError) as error:
                # An answer we did not expect: do not trust the version we hold.
                self._version = ""
                self._failed(started, error)
            else:
                steady = progressed or self._clock.monotonic() - started >= STEADY_SECONDS
                self._quick_ends = 0 if steady else self._quick_ends + 1
            if tries := max(self._failures, self._quick_ends):
                await self._clock.sleep(BACKOFF.delay(tries, self._random))

    async def _list(self) -> None:
        # The first time nothing can have vanished, and pages are handed over as they come: a start then needs
        # the memory of one page. Later the whole list must be there before anything is known to be gone.
        first = not self._uids
        if first:
            self._handed_over = False
        items: list[K] = []
        broken: list[Broken[K]] = []
        version = ""
        pages = self._client.pages(
            self._kind,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        async with aclosing(cast("AsyncGenerator[Listing[K], None]", pages)) as stream:
            async for page in stream:
                version = page.resource_version
                if first:
                    await self._hand_over(page.items)
                    self._hand_over_broken(page.broken)
                else:
                    items += page.items
                    broken += page.broken
        self._check_order(version)
        self._recovered()
        if not first:
            # What is free of the vanished ones is not free before those are known that came.
            self._handed_over = False
            present = {item.key: item.uid for item in (*items, *(one.object for one in broken))}
            self.quarantine.keep(self._kind, present)
            # Drops first: what the vanished ones held is free for those that came.
            for key, uid in list(self._uids.items()):
                if present.get(key) != uid:
                    self._drop(key, _tombstone(self._kind, key, uid))
            await self._hand_over(items)
            self._hand_over_broken(broken)
        self._version = self._newest = version
        self._handed_over = True
        self._unwatched_since = self._clock.monotonic()
        self.synced.set()

    def _check_order(self, version: str) -> None:
        """Raise Unavailable for a list of the past, unless the server insists."""
        if version == self._newest or not _older(version, self._newest):
            self._backwards_since = None
            return
        now = self._clock.monotonic()
        if self._backwards_since is None:
            self._backwards_since = now
        if now - self._backwards_since < BACKWARDS_SECONDS:
            raise Unavailable(f"a list of version {version} came after version {self._newest}")
        _log.warning(
            "the API server has gone back", kind=self._kind.resource.kind, version=version, was=self._newest
        )
        self._backwards_since = None

    async def _hand_over(self, items: list[K]) -> None:
        for number, item in enumerate(items, start=1):
            self._set(item)
            if number % BATCH == 0:
                await asyncio.sleep(0)

    def _hand_over_broken(self, broken: Iterable[Broken[K]]) -> None:
        for one in broken:
            self._hold(one.object, one.problem)

    async def _watch(self) -> bool:
        """Hand over changes until the server ends the stream; True if there was at least one event."""
        progressed = False
        events = self._client.watch(
            self._kind,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            on_open=self._opened,
        )
        try:
            async with aclosing(cast("AsyncGenerator[WatchEvent[K], None]", events)) as stream:
                async for event in stream:
                    self._recovered()
                    progressed = True
                    self._quick_ends = 0
                    self._apply(event)
        finally:
            if self._unwatched_since is None:
                self._unwatched_since = self._clock.monotonic()
        self._recovered()
        return progressed

    def _opened(self) -> None:
        self._unwatched_since = None

    def _apply(self, event: WatchEvent[K]) -> None:
        item = event.object
        version = item.metadata.resource_version
        if event.type == "DELETED":
            if self._uids.get(item.key) == item.uid:
                self._drop(item.key, item)
            self.quarantine.release(item)
        elif event.type != "BOOKMARK" and not _older(version, self._version):
            if event.problem:
                self._hold(item, event.problem)
            else:
                self._set(item)
        if version and not _older(version, self._version):
            self._version = self._newest = version

    def _set(self, item: K) -> None:
        key, known = item.key, self._uids.get(item.key)
        if known is not None and known != item.uid:
            self._drop(key, _tombstone(self._kind, key, known))
        self._uids[key] = item.uid
        try:
            self._on_set(item)
        except Exception as error:  # whatever one object does, the others go on
            self.quarantine.hold(item, error)
        else:
            self.quarantine.release(item)

    def _hold(self, item: K, problem: str) -> None:
        """An object that does not decode. What is known of it stays."""
        if self._uids.get(item.key) != item.uid and self._salvage(item):
            self._set(item)
        self.quarantine.hold(item, problem)

    def _drop(self, key: str, item: K) -> None:
        del self._uids[key]
        self.quarantine.release(item)
        try:
            self._on_drop(item)
        except Exception as error:
            _log.error("an object that is gone cannot be let go", object=key, error=reason(error))

    def _failed(self, started: float, error: Exception) -> None:
        if self._clock.monotonic() - started >= STEADY_SECONDS:
            self._failures = 0
        self._failures += 1
        if self._outage:
            return
        self._outage = True
        if isinstance(error, NotFound):
            # A kind of ours whose definition is not installed: nothing is wrong.
            _log.info("waiting until the API server has this kind", kind=self._kind.resource.kind)
        else:
            _log.warning("cannot follow the API server", kind=self._kind.resource.kind, error=str(error))

    def _recovered(self) -> None:
        self._failures = 0
        if self._outage:
            self._outage = False
            _log.info("following the API server again", kind=self._kind.resource.kind)


def is_before(version: str, than: str) -> bool:
    """True if a resourceVersion came before another one: they are decimal and only grow (KEP-5504)."""
    new, old = read_digits(version, MAX_VERSION), read_digits(than, MAX_VERSION)
    return new is not None and old is not None and new < old


def _older(version: str, than: str) -> bool:
    """True if a watch repeats itself."""
    return bool(version) and (version == than or is_before(version, than))


def _tombstone(kind: type[K], key: str, uid: str) -> K:
    namespace, _, name = key.rpartition("/")
    return kind(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid))
