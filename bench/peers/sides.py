"""The two that are compared, NVIDIA's programs and ours: started the same way, asked the same things."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from place import Ended, Place
from recorder import Recorder

from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.serve import serving

NODE = "n1"
START_SECONDS = 60.0
"""How long to wait for resources that do not come."""


class Running:
    """A device plugin that runs, or has ended."""

    def __init__(self, place: Place, process: subprocess.Popen[bytes], recorder: Recorder, log: Path) -> None:
        self.place, self.process, self.recorder, self.log = place, process, recorder, log
        self.api: Client | None = None

    async def settled(self, resources: int) -> None:
        """Wait until so many resources have told their devices, or the process has ended, or time is over."""

        def told() -> bool:
            plugins = self.recorder.plugins.values()
            return self.ended or (len(plugins) >= resources and all(p.devices is not None for p in plugins))

        await self.recorder.until(told, START_SECONDS)
        # Another resource may follow that nobody expects.
        await asyncio.sleep(0.3)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def outcome(self) -> Ended:
        return Ended(self.process.returncode or 0, self.log.read_text(), "")


@asynccontextmanager
async def _running(
    place: Place, command: Sequence[str], env: Mapping[str, str], log: str
) -> AsyncIterator[Running]:
    recorder = Recorder(place.kubelet)
    await recorder.start()
    path = place.folder / log
    running = Running(place, place.start(*command, env=env, log=path), recorder, path)
    try:
        yield running
    finally:
        running.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(running.process.wait, 10)
        if not running.ended:
            running.process.kill()
            running.process.wait()
        await recorder.stop()


class Theirs:
    """NVIDIA's."""

    name = "theirs"

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries

    @asynccontextmanager
    async def plugin(self, place: Place, env: Mapping[str, str]) -> AsyncIterator[Running]:
        more = {"NVIDIA_DRIVER_ROOT": str(place.root), "DRIVER_ROOT_CTR_PATH": str(place.root), **env}
        async with _running(place, [str(self._binaries / "nvidia-device-plugin")], more, "plugin.log") as one:
            yield one

    async def labels(self, place: Place, env: Mapping[str, str], running: Running) -> dict[str, str]:
        """GPU feature discovery's file."""
        target = place.folder / "gfd"
        words = [str(self._binaries / "gpu-feature-discovery"), "--oneshot"]
        words += ["--use-node-feature-api=false", "--output-file", str(target)]
        more = {"DRIVER_ROOT_CTR_PATH": str(place.root), **env}
        done = await asyncio.to_thread(lambda: place.run(*words, env=more))
        if done.code or not target.exists():
            return {"error": done.words()}
        return dict(line.split("=", 1) for line in sorted(target.read_text().splitlines()))

    def mig(self, place: Place, *words: str, stdin: str = "") -> Ended:
        return place.run(str(self._binaries / "nvidia-mig-parted"), *words, stdin=stdin)


class Ours:
    """gpuslice."""

    name = "ours"

    @asynccontextmanager
    async def plugin(self, place: Place, env: Mapping[str, str]) -> AsyncIterator[Running]:
        more = {"NVIDIA_DRIVER_ROOT": str(place.root), **env}
        server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
        await server.start()
        client = Client(server.transport())
        await client.create(
            Node.resource, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}, None
        )
        kubeconfig = place.folder / "kubeconfig"
        words = [sys.executable, "-m", "gpuslice.cli.main", "agent", "--node", NODE]
        words += ["--kubeconfig", str(kubeconfig)]
        async with (
            serving(server, clock=SystemClock(), kubeconfig=kubeconfig),
            _running(place, words, more, "agent.log") as one,
        ):
            one.api = client
            yield one
        await server.stop()

    async def labels(self, place: Place, env: Mapping[str, str], running: Running) -> dict[str, str]:
        """What the agent has written to its node."""
        client = running.api
        if running.ended or client is None:
            return {"error": running.outcome().words()}
        for _ in range(100):
            node = await client.get(Node, NODE)
            found = {k: v for k, v in (node.metadata.labels or {}).items() if k.startswith("nvidia.com/")}
            if found:
                return dict(sorted(found.items()))
            await asyncio.sleep(0.1)
        return {}

    def mig(self, place: Place, *words: str, stdin: str = "") -> Ended:
        return place.run(sys.executable, "-m", "gpuslice.cli.main", "mig", *words, stdin=stdin)


Side = Theirs | Ours
