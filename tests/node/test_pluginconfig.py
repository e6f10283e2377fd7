"""NVIDIA's device plugin configuration, followed by an agent with a kubelet: replicas, and what happens meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_world import NODE, World

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.config.devices import DevicesFile
from gpuslice.config.nodeconfig import Fallback
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.config.nvidiaflags import DeviceIdStrategy, Flags, effective
from gpuslice.devices.sharing import MigStrategy
from gpuslice.devices.xids import XidPolicy
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node
from gpuslice.node import pluginconfig
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.simulated import DirectDriver, SimulatedDriver
from gpuslice.node.inject.injector import Injector
from gpuslice.node.pluginconfig import Applying, ConfigFiles, ConfigFollower

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {gpus: "
TWO = "[{model: T4, uuid: GPU-a}, {model: T4, uuid: GPU-b}]"
UNITS = 14
"""GiB of a T4 that pods can hold."""


def sharing(replicas: int, more: str = "", name: str = "nvidia.com/gpu") -> str:
    return f"sharing: {{timeSlicing: {{{more}resources: [{{name: {name}, replicas: {replicas}}}]}}}}\n"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pluginconfig, "POLL_SECONDS", 0.01)


@asynccontextmanager
async def node(
    files: ConfigFiles, *, gpus: str = TWO, labels: Mapping[str, str] | None = None
) -> AsyncIterator[World]:
    """A node whose agent follows these files; `labels` it has before the agent starts."""
    folder = Path(tempfile.mkdtemp(prefix="node"))  # pytest's own folders are too long for a socket
    driver = SimulatedDriver(DevicesFile.parse(f"{HEAD}{gpus}}}").machine("n"))
    backend = DiscoveredGpus(DirectDriver(driver), XidPolicy(), SystemClock())
    await backend.start()
    injector = Injector(Flags(), backend.found, new_token=lambda: "0")
    here = World(folder, backend.gpus())
    apply = Applying(backend, injector, {}, {})
    follower = ConfigFollower(here.client, NODE, files, apply, clock=SystemClock())
    here.backend, here.options = backend, {"injector": injector, "on_node": follower.set_node}
    await here.api.start()
    try:
        async with asyncio.TaskGroup() as group:
            await here.start_kubelet()
            if labels:
                await here.until(Node, NODE, lambda _: True)
                await label(here, labels)
            follower.start()
            tasks = [group.create_task(work) for work in (backend.run(), follower.run())]
            await here.start_agent()
            yield here
            for task in tasks:
                task.cancel()
    finally:
        for what in ("agent", "kubelet"):
            await here.stop(what)
        await here.api.stop()
        shutil.rmtree(folder)


async def label(here: World, labels: Mapping[str, str | None]) -> None:
    await here.client.patch(Node, NODE, {"metadata": {"labels": labels}})


async def says(here: World, reason: str) -> Node:
    """Wait until the node says why a configuration does not count."""
    return await here.until(
        Node, NODE, lambda node: reason in node.annotations.get(names.DEVICE_CONFIG_REASON, "")
    )


async def counts(here: World, name: str) -> Node:
    """Wait until the node says that this is the configuration that counts, and complains of nothing."""

    def holds(node: Node) -> bool:
        said = node.annotations
        return said.get(names.DEVICE_CONFIG) == name and names.DEVICE_CONFIG_REASON not in said

    return await here.until(Node, NODE, holds)


def pod(name: str, count: int, resource: str = names.WHOLE_GPU) -> dict[str, Any]:
    return {"name": name, "image": "busybox", "resources": {"limits": {resource: str(count)}}}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "available-configs"
    folder.mkdir()
    (folder / "..data").mkdir()
    (folder / "four").write_text(sharing(4))
    (folder / "default").write_text("version: v1\n")
    return folder


async def test_one_file_is_followed_without_a_restart(tmp_path: Path) -> None:
    """gpu-operator, issues 412, 615, 1144: config-manager does not notice an edit under the same name."""
    file = tmp_path / "config.yaml"
    file.write_text(sharing(4))
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(8, names.WHOLE_GPU)
        assert here.kubelet is not None
        assert here.kubelet.devices.manager.allocatable().get(names.GPU_MEM) == 0
        file.write_text(sharing(3, "renameByDefault: true, "))
        await here.allocatable(6, names.SHARED_GPU)
        await here.allocatable(0, names.WHOLE_GPU)
        file.write_text("sharing: {timeSlicing: {renameByDefalt: true}}")
        refused = await says(here, "renameByDefalt")
        assert refused.annotations[names.DEVICE_CONFIG_REASON].endswith("config.yaml counts as before")
        await here.allocatable(6, names.SHARED_GPU)
        file.write_text("")
        await here.allocatable(2, names.WHOLE_GPU)
        await here.allocatable(2 * UNITS)
        await counts(here, "config.yaml")


async def test_the_nodes_label_chooses_among_files(files: Path) -> None:
    async with node(ConfigFiles.folder(files, "", (Fallback.NAMED,))) as here:
        await here.allocatable(2, names.WHOLE_GPU)
        await counts(here, "default")
        await label(here, {names.DEVICE_PLUGIN_CONFIG: "four"})
        await here.allocatable(8, names.WHOLE_GPU)
        await counts(here, "four")
        await label(here, {names.DEVICE_PLUGIN_CONFIG: "fuor"})
        refused = await says(here, "specified config fuor does not exist; there are default, four")
        assert refused.annotations[names.DEVICE_CONFIG] == "four"
        await here.allocatable(8, names.WHOLE_GPU)
        (files / "fuor").write_text(sharing(2))
        await here.allocatable(4, names.WHOLE_GPU)
        await label(here, {names.DEVICE_PLUGIN_CONFIG: None})
        await here.allocatable(2, names.WHOLE_GPU)


async def test_a_node_whose_label_names_nothing_gives_out_no_gpu(files: Path) -> None:
    """Else its GPUs would be given away whole to those who ask for a replica."""
    async with node(
        ConfigFiles.folder(files, "default", ()), labels={names.DEVICE_PLUGIN_CONFIG: "missing"}
    ) as here:
        refused = await says(here, "specified config missing does not exist")
        assert all("missing does not exist" in gpu.availability.reason for gpu in here.backend.gpus())
        assert "the node gives out no GPU" in refused.annotations[names.DEVICE_CONFIG_REASON]
        await here.allocatable(0, names.WHOLE_GPU)
        await here.allocatable(0)
        await label(here, {names.DEVICE_PLUGIN_CONFIG: "four"})
        await here.allocatable(8, names.WHOLE_GPU)


async def test_an_index_that_is_not_there_leaves_no_gpu_unshared_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(sharing(4))
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(8, names.WHOLE_GPU)
        file.write_text(sharing(2).replace("replicas: 2", "replicas: 2, devices: ['7']"))
        await says(here, "'7' is no device of nvidia.com/gpu on this node; it has 0, 1")
        await here.allocatable(8, names.WHOLE_GPU)
        file.write_text(sharing(300))
        await says(here, "600 GPUs on one node; at most 512")


async def test_containers_are_told_of_the_device_that_a_replica_stands_for(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(sharing(2))
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(4, names.WHOLE_GPU)
        made = await here.create("two", pod("c", 2))
        await here.running("two")
        visible = here.given(made).envs[names.VISIBLE_DEVICES]
        assert sorted(visible.split(",")) == ["GPU-a", "GPU-b"]
        ((one, other),) = [part["gpus"] for part in here.slices()]
        assert (one["mib"], one["whole"], other["uuid"]) == (7554, False, "GPU-b")
        made = await here.create("three", pod("c", 3))
        failed = await here.pod("three", lambda pod: pod.status.phase == "Failed")
        assert failed.status.reason == "UnexpectedAdmissionError"


@pytest.mark.parametrize(
    ("more", "count", "words"),
    [
        ("allowSameGPU: false, ", 4, "4 replicas would be of 2 devices (GPU-"),
        ("", 4, ""),
        ("failRequestsGreaterThanOne: true, ", 2, "maximum request size for shared resources is 1; found 2"),
        ("allowSameGPU: true, ", 4, ""),
    ],
)
async def test_what_a_container_may_not_have_it_does_not_get(
    tmp_path: Path, more: str, count: int, words: str
) -> None:
    """All that is there is given out without a question: only Allocate can refuse it."""
    file = tmp_path / "config.yaml"
    file.write_text(sharing(2, more))
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(4, names.WHOLE_GPU)
        await here.create("many", pod("c", count))
        ended = await here.pod("many", lambda pod: pod.status.phase in ("Running", "Failed"))
        assert (ended.status.phase == "Running") is (not words)
        assert words in ended.status.message


@pytest.mark.parametrize(("resource", "count"), [(names.WHOLE_GPU, 1), (names.GPU_MEM, 3)])
async def test_a_gpu_in_use_becomes_replicas_when_it_is_free(
    tmp_path: Path, resource: str, count: int
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("")
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(2, names.WHOLE_GPU)
        await here.allocatable(2 * UNITS)
        made = await here.create("before", pod("c", count, resource))
        await here.running("before")
        given = here.given(made).envs[names.VISIBLE_DEVICES]
        file.write_text(sharing(4))
        await here.allocatable(4, names.WHOLE_GPU)
        await here.allocatable(0)
        said = await here.pod("before", lambda pod: given in pod.annotations.get(names.ALLOCATION, ""))
        assert said.status.phase == "Running"
        after = await here.create("after", pod("c", 1))
        await here.running("after")
        assert here.given(after).envs[names.VISIBLE_DEVICES] != given
        await here.client.delete(type(made).resource, "before", "default")
        await here.allocatable(8, names.WHOLE_GPU)
        file.write_text("")
        await here.allocatable(1, names.WHOLE_GPU)
        await here.allocatable(UNITS)


def test_an_option_beats_the_environment_beats_the_file() -> None:
    written = NvidiaConfig.parse(
        "flags: {migStrategy: mixed, plugin: {deviceIDStrategy: index, passDeviceSpecs: true}}"
    )
    env = {"MIG_STRATEGY": "single", "DEVICE_ID_STRATEGY": "uuid"}
    flags = effective(written.flags, cli={"mig-strategy": "none"}, env=env)
    assert flags.mig_strategy == "none"
    assert flags.device_id_strategy is DeviceIdStrategy.UUID
    assert flags.pass_device_specs


async def test_a_bad_file_at_the_start_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(InputError, match=r"config\.yaml: there is no such file"):
        ConfigFiles.one(file).choose({})
    file.write_text("sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")
    with pytest.raises(ExceptionGroup) as caught:
        async with node(ConfigFiles.one(file)):
            pass
    assert "config.yaml: sharing.mps: MPS is not supported yet" in str(caught.value.exceptions[0])


async def test_an_xid_takes_every_replica_of_its_gpu_away() -> None:
    """Defect of NVIDIA's device plugin 0.20.0: of four replicas one became unhealthy."""
    driver = SimulatedDriver(DevicesFile.parse(f"{HEAD}{TWO}}}").machine("n"))
    backend = DiscoveredGpus(DirectDriver(driver), XidPolicy(), SystemClock())
    await backend.start()
    backend.configure(MigStrategy.NONE, NvidiaConfig.parse(sharing(4)).sharing)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(backend.run())
        driver.raise_xid("GPU-a", 79)
        while all(gpu.available for gpu in backend.gpus()):
            await backend.changed()
        running.cancel()
    assert [gpu.available for gpu in backend.gpus()] == [False] * 4 + [True] * 4
    assert {gpu.device for gpu in backend.gpus() if not gpu.available} == {"GPU-a"}


async def test_packed_replicas_fill_one_gpu_first(tmp_path: Path) -> None:
    """gpu-operator, issues 386 and 465."""
    file = tmp_path / "config.yaml"
    file.write_text("flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n" + sharing(3))
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(6, names.WHOLE_GPU)
        given = set()
        for number in range(3):
            made = await here.create(f"p{number}", pod("c", 1))
            await here.running(f"p{number}")
            given.add(here.given(made).envs[names.VISIBLE_DEVICES])
        assert len(given) == 1


@pytest.mark.parametrize(("before", "then"), [(1, 2), (2, 2), (2, 1)])
async def test_what_an_init_container_leaves_is_completed_with_other_gpus(
    tmp_path: Path, before: int, then: int
) -> None:
    """A kubelet hands an init container's replicas on, and asks only for what is missing."""
    file = tmp_path / "config.yaml"
    file.write_text(sharing(3))
    async with node(ConfigFiles.one(file)) as here:
        await here.allocatable(6, names.WHOLE_GPU)
        made = await here.create("a", pod("c", then), initContainers=[pod("first", before)])
        await here.running("a")
        visible = here.given(made).envs[names.VISIBLE_DEVICES].split(",")
        assert len(set(visible)) == then
