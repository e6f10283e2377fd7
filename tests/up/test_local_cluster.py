"""`gpuslice up` as a process and as an object: starts, ends, leaves nothing behind, remembers if told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx2
import pytest
from up_world import TWO_NODES, cluster_of

from gpuslice import names
from gpuslice.errors import InputError, NotFound
from gpuslice.kube.http import connect
from gpuslice.kube.wire import ConfigMap, Node
from gpuslice.local.kubeconfig import reserved

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
async def test_a_signal_ends_everything_and_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    kubeconfig = tmp_path / "sub" / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuslice.cli.main", "up", "--kubeconfig", str(kubeconfig),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(30):
        while not lines or "Ctrl-C" not in lines[-1]:
            line = (await process.stdout.readline()).decode()
            assert line, "it ended before it was ready"
            lines.append(line)
    assert "3 nodes, 6 GPUs" in lines[0]
    assert f"  export KUBECONFIG={kubeconfig}\n" in lines
    (folder,) = [Path(line.split()[-1]) for line in lines if "kubelets under" in line]
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    client = connect(kubeconfig)
    assert len((await client.list(Node)).items) == 3
    await client.transport.aclose()
    process.send_signal(number)
    async with asyncio.timeout(5):
        _, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
    assert not folder.exists()
    assert not kubeconfig.parent.exists()


def test_a_kubeconfig_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"cannot be written: .*choose another"),
        reserved(tmp_path / "file" / "k"),
    ):
        pass


def test_a_foreign_kubeconfig_is_never_overwritten(tmp_path: Path) -> None:
    foreign = tmp_path / "config"
    foreign.write_text("apiVersion: v1\nkind: Config\ncurrent-context: prod\n")
    with pytest.raises(InputError, match="was not written by gpuslice"), reserved(foreign):
        pass
    assert "prod" in foreign.read_text()


async def test_the_kubeconfig_of_a_running_cluster_is_left_to_it(tmp_path: Path) -> None:
    async with cluster_of(TWO_NODES, tmp_path):
        kubeconfig = tmp_path / "kubeconfig"
        with pytest.raises(InputError, match="belongs to a cluster that runs at"), reserved(kubeconfig):
            pass
    # It runs no more: what it left after a crash may be replaced, and goes at the end.
    with reserved(kubeconfig):
        pass
    assert not kubeconfig.exists()


async def test_a_database_brings_the_objects_back_and_admission_with_them(tmp_path: Path) -> None:
    database = tmp_path / "cluster.db"
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"a": "b"}}
    async with cluster_of(TWO_NODES, tmp_path) as (cluster, _):
        with pytest.raises(NotFound):
            await cluster.client.get(ConfigMap, "note", "default")
    async with cluster_of(TWO_NODES, tmp_path, database=database) as (cluster, _):
        await cluster.client.create(ConfigMap.resource, note, "default")
    async with cluster_of(TWO_NODES, tmp_path, database=database) as (cluster, kubectl):
        assert (await cluster.client.get(ConfigMap, "note", "default")).data == {"a": "b"}
        ran = await kubectl.run(
            "run", "p", "--image=x", "--env=NVIDIA_VISIBLE_DEVICES=all",
            '--overrides={"spec":{"containers":[{"name":"p","image":"x","resources":{"limits":{"aliyun.com/gpu-mem":"1"}},'
            '"env":[{"name":"NVIDIA_VISIBLE_DEVICES","value":"all"}]}]}}',
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert "NVIDIA_VISIBLE_DEVICES was removed" in ran.err
        assert (await kubectl.run("run", "other", "--image=nvidia/cuda:12.4.1-base-ubuntu22.04")).code == 0
        (container,) = (await kubectl.read("pod", "other"))["spec"]["containers"]
        assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        for resource, code in ((names.GPU_MEM, 0), ("x.example/gpu", 1)):
            container = {"name": "main", "image": "x", "resources": {"limits": {resource: "1"}}}
            node = cluster.plan.nodes[0].name
            overrides = json.dumps({"spec": {"nodeName": node, "containers": [container]}})
            ran = await kubectl.run("run", f"there-{code}", "--image=x", f"--overrides={overrides}")
            assert ran.code == code, ran.err
        assert f"asks for x.example/gpu, which node '{node}' does not have" in ran.err


async def test_the_extender_answers_over_https_with_the_clusters_own_state(tmp_path: Path) -> None:
    async with cluster_of(TWO_NODES, tmp_path) as (cluster, kubectl):
        async with httpx2.AsyncClient(verify=False) as http:
            url = f"{cluster.extender}/gpushare-scheduler/inspect"
            assert (await http.get(url)).status_code == 401
            mine = {"Authorization": f"Bearer {cluster.endpoint.token}"}
            answer = await http.get(url, headers=mine)
            assert [node["name"] for node in answer.json()["nodes"]] == [
                one.name for one in cluster.plan.nodes
            ]
        assert cluster.extender.startswith("https://127.0.0.1:")
        hooks = await kubectl.read("mutatingwebhookconfigurations", "gpuslice")
        assert hooks["webhooks"][0]["clientConfig"]["url"] == f"{cluster.extender}/mutate"
