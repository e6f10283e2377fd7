"""The admission webhook over HTTPS: one route for the API server, one to see that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpuslice import names
from gpuslice.admission import certificates
from gpuslice.admission.mutate import review, unread
from gpuslice.admission.nodename import Offered, unknown
from gpuslice.admission.reviewing import LARGE, LIMIT, Reviews
from gpuslice.admission.visibility import RULES, Rules
from gpuslice.clock import Clock
from gpuslice.errors import GpuSliceError, InputError, Unavailable
from gpuslice.observe.asgi import (
    JSON,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    Answer,
    Bodies,
    GaveWay,
    TooLarge,
    read_body,
    refusal,
    send_answer,
)
from gpuslice.observe.limits import MIB, Limits
from gpuslice.observe.serving import Tls, serving

LIMITS: Final = Limits(body_bytes=32 * MIB)
"""What is larger than LIMIT is answered, too, with a refusal: a review can have two objects of 1.5 MiB, and
Go's JSON takes six bytes for some characters."""
BODIES: Final = 64 * MIB
"""Bytes of all bodies that are being read."""
BUSY: Final = 503
"""What the API server then answers."""
TOO_LARGE: Final = (
    f"the pod is too large for gpuslice to look at: what the API server sends about it may have {LIMIT} bytes"
)


class WebhookApp:
    """ASGI 3. Open to all who are let in: a review changes nothing, and reveals only whether a node has a
    resource.
    """

    def __init__(self, review: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.review = review
        self._bodies = Bodies(BODIES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        answer = await self._answer(scope["method"], scope["path"].rstrip("/"), receive)
        if answer is not None:
            await send_answer(send, answer)

    async def _answer(self, method: str, path: str, receive: Any) -> Answer | None:
        """None if the client went away."""
        if path == "/healthz":
            return OK
        if path != names.WEBHOOK_PATH:
            return NOT_FOUND
        if method != "POST":
            return NOT_ALLOWED
        try:
            body = await read_body(receive, LIMIT, self._bodies)
            return None if body is None else await self._reviewed(body)
        except TooLarge as error:
            return _turned_away(error, unread(error.start, TOO_LARGE))
        except GaveWay as error:
            return _turned_away(error, unread(error.start, str(error), BUSY))

    async def _reviewed(self, body: bytes) -> Answer:
        try:
            return 200, JSON, await self.review(body)
        except Unavailable as error:
            return _turned_away(error, unread(body, str(error), BUSY) if len(body) >= LARGE else None)
        except InputError as error:
            return refusal(error)


def _turned_away(error: GpuSliceError, review: bytes | None) -> Answer:
    """A review that says no, where one can: after an error the pod could be let in unseen.

    What is not large gets the error: nobody shall stop other people's pods by sending much.
    """
    return (200, JSON, review) if review else refusal(error)


def webhook_app(rules: Rules, offered: Offered = unknown) -> WebhookApp:
    """One that answers by what an administrator has chosen, and by what nodes have."""
    return WebhookApp(Reviews(partial(review, rules=rules, offered=offered)))


async def serve(
    host: str,
    port: int,
    folder: Path,
    *,
    clock: Clock,
    offered: Offered,
    client_ca: Path | None = None,
    rules: Rules = RULES,
) -> None:
    """Serve until cancelled, with tls.crt and tls.key of a folder, read again when they change.

    With `client_ca` only clients it signed are let in. Raises InputError if the address is taken or the files
    cannot be used.
    """
    tls = Tls(folder / certificates.SERVING, folder / certificates.SERVING_KEY, client_ca)
    async with serving(
        webhook_app(rules, offered), host=host, port=port, clock=clock, tls=tls, limits=LIMITS
    ):
        await asyncio.Event().wait()
