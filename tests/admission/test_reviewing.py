"""Reviews beside the loop: it goes on while one is worked on, and who sends large ones holds up large ones."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpuslice.admission.reviewing import Reviews
from gpuslice.admission.webhook import WebhookApp
from gpuslice.errors import InputError, Unavailable


class Desk:
    """Works on a review until it is told to end."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.arrived = threading.Event()
        self.go = threading.Event()

    def __call__(self, body: bytes) -> bytes:
        self.begun.append(body)
        self.arrived.set()
        if not self.go.wait(20):
            raise InputError("nobody else had a turn")
        return body.upper()


async def begun(desk: Desk) -> None:
    assert await asyncio.to_thread(desk.arrived.wait, 20)


async def test_the_loop_goes_on_while_a_review_is_worked_on() -> None:
    """Four reviews of 12 MB: 42 s without an answer to anybody."""
    desk = Desk()
    reviews = Reviews(desk)
    one = asyncio.create_task(reviews(b"one"))
    await begun(desk)
    desk.go.set()  # by the loop, which would otherwise wait for this itself
    assert await one == b"ONE"


async def test_small_ones_go_before_large_ones_and_one_at_a_time() -> None:
    desk = Desk()
    reviews = Reviews(desk)
    tasks = [asyncio.create_task(reviews(b"first"))]
    await begun(desk)
    tasks += [asyncio.create_task(reviews(body)) for body in (b"large" * 10, b"b", b"c", b"medium")]
    await asyncio.sleep(0)
    assert desk.begun == [b"first"]
    desk.go.set()
    await asyncio.gather(*tasks)
    assert desk.begun == [b"first", b"b", b"c", b"medium", b"large" * 10]


@pytest.mark.parametrize("limits", [{"waiting": 2}, {"waiting_bytes": 10}])
async def test_when_too_much_waits_the_largest_is_told_so(limits: dict[str, int]) -> None:
    desk = Desk()
    reviews = Reviews(desk, **limits)
    first = asyncio.create_task(reviews(b"first"))
    await begun(desk)
    large, *small = [asyncio.create_task(reviews(body)) for body in (b"too large", b"a", b"b")]
    with pytest.raises(Unavailable, match="too many reviews wait"):
        await large
    desk.go.set()
    assert await asyncio.gather(first, *small) == [b"FIRST", b"A", b"B"]


async def test_who_gives_up_holds_up_nobody() -> None:
    desk = Desk()
    reviews = Reviews(desk)
    first = asyncio.create_task(reviews(b"first"))
    await begun(desk)
    waiting, next_one = (asyncio.create_task(reviews(body)) for body in (b"w", b"next"))
    await asyncio.sleep(0)
    waiting.cancel()
    desk.go.set()
    assert await asyncio.gather(first, next_one) == [b"FIRST", b"NEXT"]
    assert b"w" not in desk.begun


async def test_an_error_ends_only_its_own_review() -> None:
    reviews = Reviews()
    with pytest.raises(InputError, match="not an AdmissionReview"):
        await reviews(b"nonsense")
    assert b'"allowed":true' in await reviews(b'{"request":{"uid":"u"}}')


async def test_the_webhook_says_that_it_is_busy() -> None:
    async def busy(_body: bytes) -> bytes:
        raise Unavailable("too many reviews wait; ask again")

    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/mutate", "headers": []}
    await WebhookApp(busy)(scope, receive, send)
    assert (sent[0]["status"], sent[1]["body"]) == (503, b"too many reviews wait; ask again\n")
