"""Our own certificates: what is renewed and when, and that clients accept what was made."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from gpuslice.admission.certificates import Plan, plan, renewed
from gpuslice.admission.mutate import webhook_configuration
from gpuslice.admission.reviewing import Reviews
from gpuslice.admission.rotating import CertificateKeeper, MutatingWebhookConfiguration, Secret
from gpuslice.admission.webhook import WebhookApp
from gpuslice.clock import SystemClock
from gpuslice.errors import ApiError, InputError, NotFound
from gpuslice.kube.client import Client, Response
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.observe.certificates import to_pem
from gpuslice.observe.serving import Tls, serving

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMES = ("gpuslice-webhook.gpus.svc", "192.0.2.7")


def complete(now: datetime = NOW, names: tuple[str, ...] = NAMES, *, client: bool = True) -> dict[str, bytes]:
    return renewed({}, plan({}, names=names, client=client, now=now), names=names, now=now)


def planned(stored: dict[str, bytes], *, after_days: float = 0, **change: Any) -> Plan:
    options: dict[str, Any] = {"names": NAMES, "client": True} | change
    return plan(stored, now=NOW + timedelta(days=after_days), **options)


OTHER = complete()
"""Those of another cluster."""


# --- planning -----------------------------------------------------------------------------------------
def test_nothing_is_renewed_without_a_reason() -> None:
    assert not planned(complete())
    assert not planned(complete(), after_days=59)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tls.crt": b"x"}, Plan(serving="there is none")),
        ({"tls.key": b"x"}, Plan(serving="its key cannot be read")),
        ({"tls.key": OTHER["tls.key"]}, Plan(serving="its key is another one's")),
        ({"client.crt": b""}, Plan(client="there is none")),
        ({"ca.key": b""}, Plan("its key cannot be read", "its authority is new", "its authority is new")),
        ({"ca.crt": b"x"}, Plan("there is none", "its authority is new", "its authority is new")),
        (
            {key: OTHER[key] for key in ("tls.crt", "tls.key")},
            Plan(serving="another authority has signed it"),
        ),
    ],
)
def test_whatever_is_spoiled_is_made_anew_and_nothing_else(change: dict[str, bytes], why: Plan) -> None:
    stored = complete() | change
    assert planned(stored) == why
    mended = stored | renewed(stored, why, names=NAMES, now=NOW)
    assert not planned(mended)
    if not why.authority:
        assert mended["ca.crt"] == stored["ca.crt"]


def test_a_new_name_needs_a_new_certificate_and_one_less_does_not() -> None:
    """The order does not matter, nor how an address is written."""
    stored = complete(names=("b.svc", "a.svc", "::1"))
    assert not planned(stored, names=("a.svc", "b.svc"))
    assert not planned(stored, names=("0:0:0:0:0:0:0:1",))
    assert planned(stored, names=("a.svc", "c.svc")) == Plan(serving="it lacks the name c.svc")


def test_the_serving_certificate_is_renewed_a_month_before_its_end() -> None:
    """And whoever trusts the authority goes on trusting."""
    stored = complete()
    due = planned(stored, after_days=61)
    assert due == Plan(serving="it ends on 2027-02-19")
    later = NOW + timedelta(days=61)
    changed = renewed(stored, due, names=NAMES, now=later)
    assert set(changed) == {"tls.crt", "tls.key"}
    assert not plan(stored | changed, names=NAMES, client=True, now=later)


def test_a_new_authority_stands_beside_the_old_one_until_that_ends() -> None:
    stored = complete()
    later = NOW + timedelta(days=3650 - 364)
    due = plan(stored, names=NAMES, client=True, now=later)
    assert due.authority == "it ends on 2036-11-18"
    changed = renewed(stored, due, names=NAMES, now=later)
    both = x509.load_pem_x509_certificates(changed["ca.crt"])
    assert to_pem(both[1]) == stored["ca.crt"]
    after_its_end = NOW + timedelta(days=3651)
    again = renewed(changed, Plan("x", "x", "x"), names=NAMES, now=after_its_end)
    assert len(x509.load_pem_x509_certificates(again["ca.crt"])) == 2  # the first has ended


def test_no_client_certificate_is_made_that_nobody_asked_for() -> None:
    assert not {"client.crt", "client.key"} & complete(client=False).keys()


# --- against an API server --------------------------------------------------------------------------
class Watching:
    """A transport that remembers what was written, and lets tests come in between."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.writes: list[str] = []
        self.before_write: Any = None

    async def request(self, method: str, path: str, **more: Any) -> Response:
        if method != "GET":
            if self.before_write is not None:
                hook, self.before_write = self.before_write, None
                await hook()
            self.writes.append(path.rpartition("/")[2])
        answer: Response = await self.inner.request(method, path, **more)
        return answer

    def stream(self, path: str, *, query: Any) -> Any:
        return self.inner.stream(path, query=query)

    async def aclose(self) -> None:
        await self.inner.aclose()


@pytest.fixture
async def transport() -> AsyncIterator[Watching]:
    server = ApiServer(clock=SystemClock(), new_uid=iter(map(str, range(1000))).__next__)
    await server.start()
    yield Watching(server.transport())
    await server.stop()


@pytest.fixture
async def client(transport: Watching) -> Client:
    """A cluster as the chart leaves it: an empty Secret, a webhook without a caBundle."""
    made = Client(transport)
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "type": "Opaque"}
    await made.create(Secret.resource, body, "default")
    hook = webhook_configuration(service={"namespace": "default", "name": "w", "path": "/mutate"})
    await made.create(MutatingWebhookConfiguration.resource, hook)
    transport.writes.clear()
    return made


def keeper(client: Client, folder: Path, **change: Any) -> CertificateKeeper:
    options: dict[str, Any] = {
        "namespace": "default",
        "secret": "tls",
        "names": ("127.0.0.1",),
        "webhook": "gpuslice",
        "client_certificate": False,
        "folder": folder,
        "clock": SystemClock(),
        "random": lambda: 0.0,
    }
    return CertificateKeeper(client, **(options | change))


async def bundle(client: Client) -> bytes:
    found = await client.get(MutatingWebhookConfiguration, "gpuslice")
    assert found.webhooks
    return base64.b64decode(found.webhooks[0].client_config.ca_bundle)


async def test_an_empty_secret_is_filled_the_api_server_told_the_files_written(
    client: Client, transport: Watching, tmp_path: Path
) -> None:
    one = keeper(client, tmp_path)
    assert not one.written.is_set()
    await one.check()
    assert one.written.is_set()
    assert transport.writes == ["tls", "gpuslice"]
    secret = await client.get(Secret, "tls", "default")
    assert secret.data is not None
    assert set(secret.data) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert (
        await bundle(client) == (tmp_path / "ca.crt").read_bytes() == base64.b64decode(secret.data["ca.crt"])
    )
    assert sorted(_times(tmp_path)) == ["ca.crt", "tls.crt", "tls.key"]
    assert (tmp_path / "tls.key").stat().st_mode & 0o077 == 0


async def test_what_is_in_order_is_not_touched(client: Client, transport: Watching, tmp_path: Path) -> None:
    """Not even the files: the server would load them again."""
    one = keeper(client, tmp_path)
    await one.check()
    transport.writes.clear()
    before = _times(tmp_path)
    await one.check()
    assert transport.writes == []
    assert _times(tmp_path) == before


async def test_of_two_replicas_that_issue_at_once_the_second_takes_what_the_first_made(
    client: Client, transport: Watching, tmp_path: Path
) -> None:
    """Else the API server would trust one authority and half the pods serve with another's certificate."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first, second = (keeper(client, folder) for folder in folders)
    transport.before_write = first.check
    running = asyncio.create_task(second.run())
    await asyncio.wait_for(second.written.wait(), 10)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    for name in ("tls.crt", "tls.key", "ca.crt"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert await bundle(client) == (folders[0] / "ca.crt").read_bytes()


async def test_a_cabundle_that_somebody_cleared_is_put_back(client: Client, tmp_path: Path) -> None:
    """`kubectl apply` of the manifests does that."""
    one = keeper(client, tmp_path)
    await one.check()
    change = {"webhooks": [{"name": "pods.gpuslice.io", "clientConfig": {"caBundle": None}}]}
    await client.patch(MutatingWebhookConfiguration, "gpuslice", change, patch_type="strategic")
    assert await bundle(client) == b""
    await one.check()
    assert await bundle(client) == (tmp_path / "ca.crt").read_bytes()
    found = msgspec.json.decode(
        await client.read(MutatingWebhookConfiguration.resource.path(None, "gpuslice"))
    )
    assert found["webhooks"][0]["clientConfig"]["service"]["name"] == "w"


async def test_files_change_only_after_the_api_server_was_told(
    client: Client, transport: Watching, tmp_path: Path
) -> None:
    """A certificate of an authority that the API server does not trust yet would fail every pod."""
    one = keeper(client, tmp_path)
    await one.check()
    old = (tmp_path / "tls.crt").read_bytes()
    await client.patch(Secret, "tls", {"data": {"ca.key": None}}, "default")
    await client.patch(
        MutatingWebhookConfiguration, "gpuslice",
        {"webhooks": [{"name": "pods.gpuslice.io", "clientConfig": {"caBundle": None}}]}, patch_type="strategic",
    )  # fmt: skip

    async def refuse(method: str, path: str, **_: Any) -> Response:
        if method != "GET" and "webhookconfigurations" in path:
            return Response(403, b'{"message":"no"}')
        answer: Response = await inner.request(method, path, **_)
        return answer

    inner, transport.inner = transport.inner, type("Refusing", (), {"request": staticmethod(refuse)})()
    with pytest.raises(ApiError):
        await one.check()
    assert (tmp_path / "tls.crt").read_bytes() == old
    transport.inner = inner
    await one.check()
    assert (tmp_path / "tls.crt").read_bytes() != old
    assert await bundle(client) == (tmp_path / "ca.crt").read_bytes()


async def test_a_missing_webhook_holds_nothing_up_a_missing_secret_does(
    client: Client, tmp_path: Path
) -> None:
    without = keeper(client, tmp_path, webhook="another")
    await without.check()
    assert without.written.is_set()
    with pytest.raises(NotFound):
        await keeper(client, tmp_path, secret="another").check()


async def test_a_folder_that_cannot_be_written_is_one_sentence(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"certificates cannot be written to .*nowhere: No such file"):
        await keeper(client, tmp_path / "nowhere").check()


# --- over the wire -----------------------------------------------------------------------------------
async def test_the_api_server_accepts_the_certificate_and_gets_its_answer(
    client: Client, tmp_path: Path
) -> None:
    """With the checks of Python's own strict client, and the caBundle as the only authority."""
    await keeper(client, tmp_path).check()
    trusting = ssl.create_default_context(cadata=(await bundle(client)).decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    files = Tls(tmp_path / "tls.crt", tmp_path / "tls.key")
    pod = {
        "metadata": {},
        "spec": {"containers": [_container({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})]},
    }
    review = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod}}
    async with serving(WebhookApp(Reviews()), host="127.0.0.1", port=0, clock=SystemClock(), tls=files) as (
        _,
        port,
    ):
        status, answer = await _post(port, trusting, "/mutate", msgspec.json.encode(review))
        assert status == 200
        response = msgspec.json.decode(answer)["response"]
        assert (response["uid"], response["allowed"], response["patchType"]) == ("u", True, "JSONPatch")
        assert (await _post(port, trusting, "/mutate", b"{"))[0] == 400
        assert (await _post(port, trusting, "/gpushare-scheduler/bind", b"{}"))[0] == 404


async def test_only_our_client_certificate_is_let_in(tmp_path: Path) -> None:
    """What `--client-ca` does with our authority: kube-scheduler comes in, the API server's side does not."""
    stored = complete(datetime.now(UTC), ("127.0.0.1",))
    for name, data in stored.items():
        (tmp_path / name).write_bytes(data)
    files = Tls(tmp_path / "tls.crt", tmp_path / "tls.key", client_ca=tmp_path / "ca.crt")
    async with serving(WebhookApp(Reviews()), host="127.0.0.1", port=0, clock=SystemClock(), tls=files) as (
        _,
        port,
    ):
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _post(port, trusting, "/mutate", b"{")
        trusting.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")  # a certificate for servers
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _post(port, trusting, "/mutate", b"{")
        trusting.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        assert (await _post(port, trusting, "/mutate", b"{"))[0] == 400


def _times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def _container(*env: dict[str, str]) -> dict[str, Any]:
    return {"name": "c", "env": list(env), "resources": {"limits": {"aliyun.com/gpu-mem": "2"}}}


async def _post(port: int, trusting: ssl.SSLContext, path: str, body: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    answer = await reader.read()
    writer.close()
    if not answer:
        raise ConnectionError("closed without an answer")
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest
