"""Reviews beside the loop: it goes on while one is worked on, and who sends large ones holds up large ones."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from gpuslice.admission.reviewing import LARGE, LIMIT, Reviews
from gpuslice.admission.visibility import RULES
from gpuslice.admission.webhook import BODIES, LIMITS, TOO_LARGE, WebhookApp, webhook_app
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

    status, text = await asked(WebhookApp(busy), [review_of(b"")])
    assert (status, text) == (503, b"too many reviews wait; ask again\n")
    # The API server lets a pod in after an error, where webhooks fail open: who pads one must not gain by it.
    status, text = await asked(WebhookApp(busy), [review_of(b"x" * LARGE)])
    assert status == 200
    assert json.loads(text)["response"] == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 503, "message": "too many reviews wait; ask again"},
    }


async def test_a_large_one_waits_no_longer_than_the_api_server_does() -> None:
    desk = Desk()
    reviews = Reviews(desk, patience=0)
    first = asyncio.create_task(reviews(b"first"))
    await begun(desk)
    small = asyncio.create_task(reviews(b"small"))
    with pytest.raises(Unavailable, match="too many reviews wait"):
        await reviews(b"x" * LARGE)
    desk.go.set()
    assert await asyncio.gather(first, small) == [b"FIRST", b"SMALL"]
    assert await reviews(b"x" * LARGE) == b"X" * LARGE


async def test_a_pod_that_is_too_large_to_look_at_is_refused_also_where_failures_let_pods_in() -> None:
    """Padded with characters that Go's JSON writes in six, it would otherwise pass by others.gpuslice.io."""
    said = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "u-1"}}
    said["request"] |= {"object": {"spec": {"args": ['"uid": "another"', "\x01" * (LIMIT // 6)]}}}
    body = json.dumps(said).encode()
    assert LIMIT < len(body) < LIMITS.body_bytes
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    status, text = await asked(webhook_app(RULES), pieces)
    response = json.loads(text)["response"]
    assert (status, response["uid"], response["allowed"]) == (200, "u-1", False)
    assert response["status"]["message"] == TOO_LARGE


async def test_what_is_too_large_and_no_review_is_an_error() -> None:
    status, text = await asked(webhook_app(RULES), [b"x" * 65536] * (LIMIT // 65536 + 1))
    assert (status, text) == (413, b"the body of this request may be 3145728 bytes long\n")


async def test_many_large_bodies_that_come_slowly_are_not_all_held() -> None:
    """512 connections with almost 3 MiB each would be more memory than a pod of ours has."""
    app = webhook_app(RULES)
    number = BODIES // LIMIT + 10
    more = asyncio.Event()
    large = review_of(b"x" * (LIMIT - 200))
    slow = [asyncio.create_task(asked(app, [large, b""], more)) for _ in range(number)]
    await asyncio.sleep(0)
    assert await asked(app, [b'{"request":{"uid":"u"}}'])
    more.set()
    answers = await asyncio.gather(*slow)
    said = b"too much is being read at once; ask again"
    refused = [text for status, text in answers if status == 200 and said in text]
    assert len(refused) >= 10
    assert all(json.loads(text)["response"]["allowed"] is False for text in refused)


def review_of(text: bytes) -> bytes:
    """A review as the API server begins it, of a pod with that text in it."""
    return b'{"kind":"AdmissionReview","request":{"uid":"u-1","object":{"x":"' + text + b'"}}}'


async def asked(
    app: WebhookApp, pieces: list[bytes], more: asyncio.Event | None = None
) -> tuple[object, bytes]:
    """Status and body of the answer to a review that comes in pieces, the last when there is to be more."""
    sent: list[dict[str, Any]] = []
    left = list(pieces)

    async def receive() -> dict[str, object]:
        if more is not None and len(left) < len(pieces):
            await more.wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": "/mutate", "headers": []}, receive, send)
    return sent[0]["status"], sent[1]["body"]
