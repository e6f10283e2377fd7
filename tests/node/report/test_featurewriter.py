"""The labels as Node Feature Discovery reads them, kept true; and a cluster that has none."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuslice.clock import SystemClock
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.config.nvidiaflags import Flags, effective
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Resource
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.node.report.featurewriter import ABSENT, FeatureWriter, NodeFeature

DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
        ],
    },
}


class Steps(SystemClock):
    """A clock whose sleeper waits for `turn`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._asleep = asyncio.Event()
        self._go = asyncio.Event()

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self._asleep.set()
        await self._go.wait()
        self._go.clear()

    async def turn(self, seconds: float = 1.0) -> None:
        """Until the writer has looked once more."""
        await self._asleep.wait()
        self._asleep.clear()
        self.seconds += seconds
        self._go.set()
        await self._asleep.wait()


class World:
    def __init__(self, client: Client, clock: Steps, labels: dict[str, str], writer: FeatureWriter) -> None:
        self.client, self.clock, self.labels, self.writer = client, clock, labels, writer

    async def object(self) -> Mapping[str, str] | None:
        found = (await self.client.list(NodeFeature, "gpuslice")).items
        assert all(one.name == "nvidia-features-for-n1" for one in found)
        return found[0].spec.labels if found else None


@asynccontextmanager
async def writing(flags: Flags, *, defined: bool = True) -> AsyncIterator[World]:
    api = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
    await api.start()
    client = Client(api.transport())
    spaces = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
    await client.create(spaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuslice"}})
    if defined:
        await client.create(DEFINITIONS, DEFINITION)
    clock, labels = Steps(), {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "1"}
    writer = FeatureWriter(client, "n1", "gpuslice", lambda: labels, flags, clock=clock)
    try:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            running = group.create_task(writer.run())
            await clock.turn()
            yield World(client, clock, labels, writer)
            running.cancel()
    finally:
        await api.stop()


def flags(text: str) -> Flags:
    return effective(NvidiaConfig.parse(text).flags, cli={}, env={})


async def test_the_object_follows_the_labels() -> None:
    async with writing(flags("flags: {useNodeFeatureAPI: true}")) as here:
        assert await here.object() == {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "1"}
        here.labels["nvidia.com/gpu.replicas"] = "4"
        del here.labels["nvidia.com/gpu.count"]
        await here.clock.turn()
        assert await here.object() == {"nvidia.com/gpu.replicas": "4"}
        await here.client.delete(NodeFeature.resource, "nvidia-features-for-n1", "gpuslice")
        await here.clock.turn()
        assert await here.object() is None, "the labels are as they were"
        await here.clock.turn(60)
        assert await here.object() is not None, "the sleep interval is over"


async def test_a_cluster_without_the_kind_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    async with writing(flags("flags: {useNodeFeatureAPI: true}"), defined=False) as here:
        await here.clock.turn(60)
        assert capsys.readouterr().out.count(ABSENT) == 1
        await here.client.create(DEFINITIONS, DEFINITION)
        await here.clock.turn(60)
        assert await here.object() is not None


@pytest.mark.parametrize("oneshot", [False, True])
async def test_the_file_goes_with_its_writer_unless_it_is_to_stay(tmp_path: Path, oneshot: bool) -> None:
    file = tmp_path / "features.d" / "gfd"
    wanted = flags(f"flags: {{gfd: {{outputFile: {file}, oneshot: {str(oneshot).lower()}}}}}")
    async with writing(wanted) as here:
        assert file.read_text() == "nvidia.com/gpu.count=8\nnvidia.com/gpu.replicas=1\n"
        assert await here.object() is None
        here.labels["nvidia.com/gpu.count"] = "7"
        await here.clock.turn()
        assert file.read_text().startswith("nvidia.com/gpu.count=7\n")
        assert [path.name for path in file.parent.iterdir()] == ["gfd"]
    assert file.exists() is oneshot


async def test_a_configuration_that_names_no_file_takes_it_away(tmp_path: Path) -> None:
    file = tmp_path / "gfd"
    named = flags(f"flags: {{gfd: {{outputFile: {file}}}}}")
    async with writing(named) as here:
        assert file.exists()
        here.writer.configure(Flags())
        assert not file.exists()
        here.writer.configure(named)
        await here.clock.turn()
        assert file.exists()
