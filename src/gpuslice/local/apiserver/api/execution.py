"""pods/NAME/exec and attach over WebSocket: subprotocols v5 and v4.channel.k8s.io.

Every message begins with its channel: 0 stdin, 1 stdout, 2 stderr, 3 the final Status, 4 terminal size;
in v5 the message (255, n) closes channel n.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import msgspec

from gpuslice.errors import ApiError
from gpuslice.local.apiserver.api.http import Request, Target
from gpuslice.local.apiserver.api.logs import container_of, kubelet_of
from gpuslice.local.apiserver.api.rest import Rest
from gpuslice.local.apiserver.schema.objects import encode
from gpuslice.local.apiserver.schema.status import Failure, Json, bad_request
from gpuslice.local.streams import ExecSession, KubeletBackend, LogOptions, Output

Kubelets = dict[str, KubeletBackend]
STREAMS = ("exec", "attach")
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
NORMAL_CLOSURE = 1000


async def serve(begin: Callable[[], Awaitable[ExecSession]], scope: Any, receive: Any, send: Any) -> None:
    """Serve one WebSocket. A refusal is an HTTP answer with a Status, before the upgrade."""
    await receive()
    protocol = next((one for one in PROTOCOLS if one in scope.get("subprotocols", ())), None)
    try:
        if protocol is None:
            raise bad_request(f"exec needs one of the subprotocols {', '.join(PROTOCOLS)}")
        session = await begin()
    except ApiError as error:
        failure = error if isinstance(error, Failure) else Failure(error.status, error.reason, str(error))
        await _refuse(send, failure)
        return
    await send({"type": "websocket.accept", "subprotocol": protocol})
    await _Conversation(session, receive, send).run()


async def _refuse(send: Any, failure: Failure) -> None:
    body = encode(failure.body())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "websocket.http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def refuse_spdy(rest: Rest, kubelets: Kubelets, request: Request, target: Target) -> NoReturn:
    """Plain HTTP to exec or attach: kubectl's older way in, which it also tries after a refusal.

    Raises what is wrong with the request, or else says that only WebSockets are spoken.
    """
    _check(rest, kubelets, request, target)
    raise bad_request("you must use a WebSocket client to exec, attach")


def _check(rest: Rest, kubelets: Kubelets, request: Request, target: Target) -> tuple[str, KubeletBackend]:
    """The container that is meant and its kubelet."""
    pod = rest.entry(target).decode()
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        phase = pod["status"]["phase"]
        raise bad_request(f"cannot exec into a container in a completed pod; current phase is {phase}")
    container = container_of(pod, request.query.get("container", ""))
    return container, kubelet_of(kubelets, pod)


async def open_session(rest: Rest, kubelets: Kubelets, request: Request, target: Target) -> ExecSession:
    """What a WebSocket to exec or attach talks to. Raises what is wrong with the request."""
    container, kubelet = _check(rest, kubelets, request, target)
    if target.subresource == "attach":
        options = LogOptions(follow=True, tail_lines=0)
        return _Attached(kubelet.logs(target.namespace, target.name, container, options))
    command = request.lists.get("command") or []
    if not command:
        raise bad_request("you must specify at least one command for the container")
    return await kubelet.exec(
        target.namespace,
        target.name,
        container,
        command,
        stdin=request.flag("stdin"),
        tty=request.flag("tty"),
    )


class _Attached:
    """`kubectl attach`: the running process's output from now on; its stdin is not ours to give."""

    def __init__(self, log: AsyncIterator[bytes]) -> None:
        self._log = log

    async def output(self) -> AsyncIterator[Output]:
        async for piece in self._log:
            yield Output(STDOUT, piece)

    async def write(self, data: bytes) -> None:
        """Dropped."""

    async def resize(self, width: int, height: int) -> None:
        """No terminal."""

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        """The process is not ours to end."""


class _Conversation:
    """One session and its WebSocket."""

    def __init__(self, session: ExecSession, receive: Any, send: Any) -> None:
        self._session = session
        self._receive = receive
        self._send = send

    async def run(self) -> None:
        """Until the process ends or the client leaves; the process never outlives its client."""
        listener = asyncio.create_task(self._listen())
        speaker = asyncio.create_task(self._speak())
        try:
            await asyncio.wait({listener, speaker}, return_when=asyncio.FIRST_COMPLETED)
            if speaker.done():
                await speaker
        finally:
            for task in (listener, speaker):
                task.cancel()
            for task in (listener, speaker):
                with contextlib.suppress(asyncio.CancelledError, ApiError, OSError):
                    await task
            await self._session.kill()

    async def _speak(self) -> None:
        async for piece in self._session.output():
            await self._message(piece.channel, piece.data)
        code = await self._session.wait()
        await self._message(ERROR, encode(_final(code)))
        await self._send({"type": "websocket.close", "code": NORMAL_CLOSURE})

    async def _message(self, channel: int, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": bytes((channel,)) + data})

    async def _listen(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            data: bytes = message.get("bytes") or (message.get("text") or "").encode()
            if not data:
                continue
            channel, rest = data[0], data[1:]
            if channel == STDIN and rest:
                await self._session.write(rest)
            elif channel == CLOSE and rest[:1] == bytes((STDIN,)):
                await self._session.write(b"")
            elif channel == RESIZE:
                with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError, ValueError):
                    size = msgspec.json.decode(rest)
                    await self._session.resize(int(size["Width"]), int(size["Height"]))


def _final(code: int) -> Json:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
