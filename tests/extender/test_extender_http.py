"""The extender as a server: routes, probes, tokens, TLS, metrics, shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from builders import StoppedClock, plain_node, pod
from test_extender_answers import Pods, args

from gpuslice.admission.reviewing import Reviews
from gpuslice.admission.webhook import WebhookApp
from gpuslice.clock import SystemClock
from gpuslice.cluster.state import Cluster
from gpuslice.errors import InputError
from gpuslice.kube.client import Client
from gpuslice.observe.addresses import parse_listen
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.serving import listen, serving
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.extender.app import ExtenderApp
from gpuslice.scheduler.extender.handlers import Extender


def make_app(*, token: str | None = None, ready: bool = True) -> ExtenderApp:
    cluster = Cluster(clock=StoppedClock())
    cluster.set_node(plain_node("n", 15, 1))
    client = Client(Pods())
    metrics = Metrics()
    extender = Extender(cluster, client, Binder(cluster, client, clock=StoppedClock()), metrics)
    return ExtenderApp(
        extender,
        metrics,
        clock=StoppedClock(),
        ready=lambda: ready,
        token=token,
        webhook=WebhookApp(Reviews()),
    )


async def call(
    app: ExtenderApp, method: str, path: str, body: bytes = b"", *, token: str = ""
) -> tuple[int, bytes]:
    sent: list[dict[str, object]] = []
    half = len(body) // 2
    incoming = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]

    async def receive() -> dict[str, object]:
        return incoming.pop(0)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    await app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    status, answer = sent[0]["status"], sent[1]["body"]
    assert isinstance(status, int)
    assert isinstance(answer, bytes)
    return status, answer


async def test_routes_are_gpushares_and_more() -> None:
    app = make_app()
    assert await call(app, "GET", "/version") == (200, b"0.1.0")
    assert await call(app, "GET", "/nowhere") == (404, b"404 page not found\n")
    assert (await call(app, "GET", "/gpushare-scheduler/filter"))[0] == 405
    assert (await call(app, "POST", "/gpushare-scheduler/inspect"))[0] == 405
    assert (await call(app, "GET", "/gpushare-scheduler/inspect/n"))[0] == 200
    assert (await call(app, "GET", "/gpushare-scheduler/inspect/ghost"))[0] == 404
    status, body = await call(app, "POST", "/gpushare-scheduler/filter", args(pod("a", 5), ["n"]))
    assert (status, json.loads(body)["NodeNames"]) == (200, ["n"])
    status, body = await call(app, "POST", "/gpushare-scheduler/bind", b"{nonsense")
    assert status == 500
    assert json.loads(body)["Error"].startswith("the body is not a BindArgs")
    assert (await call(app, "POST", "/mutate", b"{}"))[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/version"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/gpushare-scheduler/inspect"),
        ("GET", "/gpushare-scheduler/inspect/n"),
        ("POST", "/gpushare-scheduler/filter"),
        ("POST", "/gpushare-scheduler/prioritize"),
        ("POST", "/gpushare-scheduler/preempt"),
        ("POST", "/gpushare-scheduler/bind"),
        ("POST", "/mutate"),
    ],
)
async def test_a_slash_at_the_end_changes_nothing(method: str, path: str) -> None:
    """gpushare redirects to the path without it; whoever follows gets the same answer."""
    app, body = make_app(), b"{}" if method == "POST" else b""
    plain = await call(app, method, path, body)
    assert plain[0] not in (404, 405)
    assert await call(app, method, f"{path}/", body) == plain


async def test_ready_only_once_the_cache_is_complete() -> None:
    assert (await call(make_app(), "GET", "/readyz"))[0] == 200
    assert await call(make_app(ready=False), "GET", "/readyz") == (503, b"the cache is not synced")
    assert (await call(make_app(ready=False), "GET", "/healthz"))[0] == 200


async def test_9a17_a_token_keeps_strangers_out() -> None:
    app = make_app(token="secret")
    body = args(pod("a", 5), ["n"])
    assert (await call(app, "POST", "/gpushare-scheduler/filter", body))[0] == 401
    assert (await call(app, "POST", "/gpushare-scheduler/filter", body, token="wrong"))[0] == 401
    assert (await call(app, "POST", "/gpushare-scheduler/filter", body, token="secret"))[0] == 200
    assert (await call(app, "GET", "/healthz"))[0] == 200


async def test_metrics_count_verdicts_by_reason() -> None:
    app = make_app()
    await call(app, "POST", "/gpushare-scheduler/filter", args(pod("a", 16), ["n", "ghost"]))
    text = (await call(app, "GET", "/metrics"))[1].decode()
    assert 'gpuslice_verdicts_total{code="insufficient_memory_in_one_gpu",verb="filter"} 1.0' in text
    assert 'gpuslice_verdicts_total{code="node_not_found",verb="filter"} 1.0' in text
    assert 'gpuslice_extender_request_seconds_count{verb="filter"} 1.0' in text


async def test_it_answers_over_a_real_socket_and_ends_promptly() -> None:
    async with asyncio.timeout(20):
        async with serving(make_app(), host="127.0.0.1", port=0, clock=SystemClock()) as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readline()
            with pytest.raises(InputError, match=r"cannot listen on 127.0.0.1:\d+: .*; choose another port"):
                listen(host, port)
            writer.close()
        with pytest.raises(OSError, match="refused"), socket.socket() as probe:
            probe.settimeout(1)
            probe.connect((host, port))


def test_listen_addresses() -> None:
    assert parse_listen("127.0.0.1:32766") == ("127.0.0.1", 32766)
    assert parse_listen("[::1]:80") == ("::1", 80)
    assert parse_listen(":80")[1] == 80
    for wrong in ("nonsense", "host:", "host:99999", "host:-1"):
        with pytest.raises(InputError, match="is not HOST:PORT"):
            parse_listen(wrong)


async def test_a_missing_certificate_is_one_sentence(tmp_path: Path) -> None:
    from gpuslice.observe.serving import Tls

    files = Tls(tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(InputError, match="cannot be used"):
        async with serving(make_app(), host="127.0.0.1", port=0, clock=SystemClock(), tls=files):
            pass
