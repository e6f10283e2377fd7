"""connect(): kubeconfigs good and bad, and real sockets that answer, stream, break and refuse."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from gpuslice.errors import InputError, NotFound, Unavailable
from gpuslice.kube.http import connect
from gpuslice.kube.wire import Pod

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def kubeconfig(path: Path, server: str, user: dict[str, object] | None = None, **changes: object) -> Path:
    document: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "me"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document | changes))
    return path


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    """An HTTP server that gives `answer` the request's head and closes the connection after it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await answer(head, writer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def whole(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


async def test_a_token_is_sent_and_an_error_status_becomes_its_exception(tmp_path: Path) -> None:
    heads: list[str] = []

    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(whole(404, b'{"message":"pods \\"p\\" not found","reason":"NotFound"}'))

    async with listening(answer) as url:
        client = connect(kubeconfig(tmp_path / "config", url, {"token": "secret"}))
        with pytest.raises(NotFound, match='pods "p" not found'):
            await client.get(Pod, "p", "default")
        await client.transport.aclose()
        await client.transport.aclose()
    assert heads[0].startswith("GET /api/v1/namespaces/default/pods/p HTTP/1.1")
    assert "authorization: bearer secret" in heads[0].lower()


async def test_an_exec_plugin_of_the_current_api_version_gives_the_token(tmp_path: Path) -> None:
    """lightkube alone refuses client.authentication.k8s.io/v1."""
    heads: list[str] = []

    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(whole(200, b'{"metadata":{"name":"p"}}'))

    program = (
        "import json, os; v = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['apiVersion'];"
        "print(json.dumps({'apiVersion': v, 'status': {'token': 'from-' + v[-2:]}}))"
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", program],
    }
    async with listening(answer) as url:
        client = connect(kubeconfig(tmp_path / "config", url, {"exec": plugin}))
        await client.get(Pod, "p", "default")
        await client.transport.aclose()
    assert "bearer from-v1" in heads[0].lower()


async def test_a_watch_arrives_object_by_object_however_the_bytes_are_cut(tmp_path: Path) -> None:
    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        big = "x" * 300_000
        first = b'{"type":"ADDED","object":{"metadata":{"name":"%s"}}}\n' % big.encode()
        second = b'{"type":"ADDED","object":{"metadata":{"name":"b"}}}\n'
        for piece in (first[:7], first[7:] + second[:5], second[5:-1], b"\n"):
            writer.write(piece)
            await writer.drain()

    async with listening(answer) as url:
        client = connect(kubeconfig(tmp_path / "config", url))
        names = [event.object.name async for event in client.watch(Pod, resource_version="1")]
        await client.transport.aclose()
    assert [len(name) for name in names] == [300_000, 1]


async def test_what_cannot_be_reached_is_unavailable_in_one_sentence(tmp_path: Path) -> None:
    async with listening(lambda *_: asyncio.sleep(0)) as url:
        pass
    client = connect(kubeconfig(tmp_path / "config", url))
    with pytest.raises(Unavailable, match=f"the API server at {url} cannot be reached: ") as refused:
        await client.list(Pod)
    assert "\n" not in str(refused.value)
    with pytest.raises(Unavailable):
        async for _ in client.watch(Pod, resource_version="1"):
            pass
    await client.transport.aclose()


async def test_a_watch_that_breaks_in_the_middle_is_unavailable(tmp_path: Path) -> None:
    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        writer.write(b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n')

    names: list[str] = []
    async with listening(answer) as url:
        client = connect(kubeconfig(tmp_path / "config", url))
        with pytest.raises(Unavailable):
            async for event in client.watch(Pod, resource_version="1"):
                names += [event.object.name]
        await client.transport.aclose()
    assert names == ["a"]


async def test_more_watches_than_a_pool_usually_has_stand_beside_requests(tmp_path: Path) -> None:
    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        if "watch=true" not in head:
            writer.write(whole(200, b'{"metadata":{},"items":[]}'))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b'{"type":"ADDED","object":{}}\n')
        await writer.drain()
        await over.wait()

    async def follow() -> None:
        async for _ in client.watch(Pod, resource_version="1"):
            ready.release()

    over, ready = asyncio.Event(), asyncio.Semaphore(0)
    async with listening(answer) as url, asyncio.timeout(20):
        client = connect(kubeconfig(tmp_path / "config", url))
        watches = [asyncio.create_task(follow()) for _ in range(150)]
        for _ in watches:
            await ready.acquire()
        assert (await client.list(Pod)).items == []
        over.set()
        await asyncio.gather(*watches)
        await client.transport.aclose()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "does not exist"),
        ("{", "cannot be used"),
        ("just a word", "holds no YAML mapping"),
        ("contexts: []\nclusters: []", "No current context"),
        ("kind: Config", "there is no 'clusters'"),
        ("clusters: 3\ncontexts: []", "cannot be used"),
        ("current-context: c\nclusters: []\ncontexts: []", "'c' not found"),
    ],
)
def test_a_missing_or_broken_kubeconfig_is_one_sentence_with_its_path(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=problem) as refused:
        connect(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt"}
    path = kubeconfig(tmp_path / "config", "", clusters=[{"name": "k", "cluster": cluster}])
    with pytest.raises(InputError, match=r"ca\.crt"):
        connect(path)


def test_without_a_file_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(InputError, match="absent"):
        connect(None)


def test_importing_the_door_does_not_import_the_http_library() -> None:
    code = "import sys, gpuslice.kube.http; print([m for m in ('lightkube', 'httpx2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
