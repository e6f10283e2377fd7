"""Node pools in `gpuslice up`: the AKS article followed with kubectl, and what it says cannot be done."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from up_world import LONG, Kubectl, cluster_of, deployment, eventually, file

from gpuslice.capacity.nodepool import READY, GPUNodePool
from gpuslice.cli.main import main
from gpuslice.clock import SystemClock
from gpuslice.kube.reflector import Reflector
from gpuslice.local.up import LocalCluster

pytestmark = pytest.mark.timeout(120)

EMPTY = file("{name: cpu}")
A100 = "Standard_ND96asr_v4"


async def told(cluster: LocalCluster, pool: str, words: str) -> None:
    """Wait until the pool's condition Ready says these words."""
    said = asyncio.Event()

    def heard(seen: GPUNodePool) -> None:
        condition = seen.condition(READY)
        if seen.name == pool and condition is not None and words in condition.message:
            said.set()

    pools = Reflector(
        cluster.client,
        GPUNodePool,
        on_set=heard,
        on_drop=lambda _: None,
        clock=SystemClock(),
        random=lambda: 0.5,
    )
    following = asyncio.create_task(pools.run())
    try:
        async with asyncio.timeout(LONG):
            await said.wait()
    finally:
        following.cancel()


def article_pod(name: str, resource: str, seconds: int) -> str:
    """A pod of the article, word for word but for being JSON."""
    container = {
        "name": name,
        "image": "nvidia/cuda:12.1.1-base-ubuntu22.04",
        "command": ["/bin/sh"],
        "args": ["-c", f"sleep {seconds}"],
        "resources": {"limits": {resource: 1}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    return json.dumps(pod)


class Nodepool:
    """`gpuslice nodepool`, as typed."""

    def __init__(self, tmp_path: Path) -> None:
        self._kubeconfig = str(tmp_path / "kubeconfig")

    async def run(self, *words: str) -> Result:
        typed = ["nodepool", *words, "--kubeconfig", self._kubeconfig]
        return await asyncio.to_thread(CliRunner().invoke, main, typed)

    async def __call__(self, *words: str) -> str:
        """What it prints; it must succeed."""
        result = await self.run(*words)
        assert result.exit_code == 0, result.output
        return result.stdout


def amounts(node: Any) -> dict[str, str]:
    """The resources of NVIDIA's that a node can hand out."""
    return {
        k: v for k, v in node["status"]["allocatable"].items() if k.startswith("nvidia.com/") and v != "0"
    }


async def running(kubectl: Kubectl, *names: str) -> None:
    await kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), "--timeout=20s")


async def test_the_aks_article_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(EMPTY, tmp_path) as (_, kubectl):
        nodepool = Nodepool(tmp_path)
        # az aks nodepool add, as it is printed there; az aks get-credentials is KUBECONFIG here.
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        typed = (
            "nodepool add --name mignode --resource-group myResourceGroup --cluster-name myAKSCluster "
            f"--node-vm-size {A100} --node-count 1 --gpu-instance-profile MIG1g"
        )
        added = await asyncio.to_thread(CliRunner().invoke, main, typed.split())
        assert (added.exit_code, "mignode" in added.stdout) == (0, True), added.output
        assert added.stderr.startswith("this cluster is gpuslice up's, not AKS's")

        # kubectl get nodes; kubectl describe node mignode
        assert "mignode-0   Ready" in await kubectl("get", "nodes")
        described = await kubectl("describe", "node", "mignode")
        assert re.search(r"^Allocatable:(\n .*)*\n +nvidia.com/gpu: +56\n", described, re.M)
        node = await kubectl.read("node", "mignode-0")
        labels = node["metadata"]["labels"]
        assert {labels[key] for key in ("agentpool", "kubernetes.azure.com/agentpool")} == {"mignode"}
        assert labels["node.kubernetes.io/instance-type"] == A100
        assert (labels["nvidia.com/mig.config"], labels["nvidia.com/mig.config.state"]) == (
            "all-1g.5gb",
            "success",
        )

        # The single strategy's example.
        await kubectl("apply", "-f", "-", stdin=article_pod("nvidia-single", "nvidia.com/gpu", 1000))
        await running(kubectl, "nvidia-single")
        printed = await kubectl("exec", "nvidia-single", "--", "nvidia-smi", "-L")
        assert re.fullmatch(
            r"GPU 0: NVIDIA A100-SXM4-40GB \(UUID: GPU-[-0-9a-f]+\)\n"
            r"  MIG 1g.5gb      Device  0: \(UUID: MIG-[-0-9a-f]+\)\n",
            printed,
        )

        # The mixed strategy's: the pod that runs keeps its node as it is, until it ends.
        assert "Pending" in await nodepool("update", "mignode", "--mig-strategy", "mixed", "--no-wait")
        assert amounts(await kubectl.read("node", "mignode-0")) == {"nvidia.com/gpu": "56"}
        await kubectl("delete", "pod", "nvidia-single", "--grace-period=0", "--force")
        await kubectl("wait", "--for=condition=Ready", "gpunodepool/mignode", "--timeout=20s")
        assert amounts(await kubectl.read("node", "mignode-0")) == {"nvidia.com/mig-1g.5gb": "56"}
        await kubectl("apply", "-f", "-", stdin=article_pod("nvidia-mixed", "nvidia.com/mig-1g.5gb", 100))
        await running(kubectl, "nvidia-mixed")
        printed = await kubectl("exec", "nvidia-mixed", "--", "nvidia-smi", "-L")
        assert printed.count("\n  MIG 1g.5gb      Device  0: (UUID: MIG-") == 1

        # What the article has no command for.
        await nodepool("delete", "mignode")
        assert "mignode" not in await kubectl("get", "nodes")
        assert await nodepool("list") == "there are no node pools\n"


async def test_a_profile_that_changes_ends_no_pod(tmp_path: Path) -> None:
    """AKS refuses this. Node after node, and on each what is free; the pod's GPU when the pod has ended."""
    async with cluster_of(EMPTY, tmp_path) as (cluster, kubectl):
        nodepool = Nodepool(tmp_path)
        add = ("--node-vm-size", A100, "--node-count", "2", "--gpu-instance-profile", "MIG1g")
        await nodepool("add", "pool", *add, "--mig-strategy", "mixed")
        await kubectl("apply", "-f", "-", stdin=article_pod("stays", "nvidia.com/mig-1g.5gb", 1000))
        await running(kubectl, "stays")
        there = (await kubectl.read("pod", "stays"))["spec"]["nodeName"]
        (other,) = {"pool-0", "pool-1"} - {there}

        await nodepool("update", "pool", "--gpu-instance-profile", "MIG2g", "--no-wait")
        want = {other: {"nvidia.com/mig-2g.10gb": "24"}, there: {"nvidia.com/mig-2g.10gb": "21"}}

        async def partitioned() -> bool:
            nodes = {name: amounts(await kubectl.read("node", name)) for name in want}
            return nodes[other] == want[other] and nodes[there].items() >= want[there].items()

        await eventually(cluster, partitioned)
        assert (await kubectl.read("pod", "stays"))["status"]["phase"] == "Running"
        await told(cluster, "pool", "default/stays")
        shown = await nodepool("show", "pool")
        assert "Partitioning" in shown
        assert f"1 of 2 nodes are partitioned; node {there}: these have to end first: GPU " in shown
        assert "default/stays" in shown

        await kubectl("delete", "pod", "stays", "--grace-period=0", "--force")
        await kubectl("wait", "--for=condition=Ready", "gpunodepool/pool", "--timeout=30s")
        for name in want:
            assert amounts(await kubectl.read("node", name)) == {"nvidia.com/mig-2g.10gb": "24"}


async def test_the_number_of_nodes_follows_the_pods(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (cluster, kubectl):
        nodepool = Nodepool(tmp_path)
        limits = ("--min-count", "0", "--max-count", "2", "--node-count", "0")
        await nodepool("add", "t4", "--node-vm-size", "Standard_NC4as_T4_v3", *limits)
        patch = json.dumps({"spec": {"idleSeconds": 0}})
        await kubectl("patch", "gpunodepool", "t4", "--type=merge", "-p", patch)

        async def nodes(*wanted: str) -> bool:
            found = (await kubectl.read("nodes"))["items"]
            return sorted(n["metadata"]["name"] for n in found) == sorted(["cpu", *wanted])

        # Three shares fit on one GPU of 14 GiB; of seven, one has to wait.
        await kubectl("apply", "-f", "-", stdin=deployment("share", 3, 4))
        await kubectl("rollout", "status", "deployment/share", "--timeout=30s")
        assert await nodes("t4-0")
        await kubectl("scale", "deployment/share", "--replicas=7")
        await eventually(cluster, lambda: nodes("t4-0", "t4-1"))
        await kubectl("wait", "--for=jsonpath={.status.readyReplicas}=6", "deployment/share", "--timeout=30s")
        assert "0 to 2" in await nodepool("list")

        await kubectl("scale", "deployment/share", "--replicas=0")
        await eventually(cluster, lambda: nodes())


async def test_mistakes_are_one_sentence_and_change_nothing(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (_, kubectl):
        nodepool = Nodepool(tmp_path)
        size = ("--node-vm-size", A100)
        mistakes: Sequence[tuple[Sequence[str], str]] = (
            (
                ("add", "aksMigNode", *size),
                "error: NAME: 'aksMigNode' is not the name of a node pool; use up to 12",
            ),
            (("add", "p", "--node-vm-size", "Standard_ND96asr"), "did you mean Standard_ND96asr_v4?"),
            (
                ("add", "p", "--node-vm-size", "Standard_NC4as_T4_v3", "--gpu-instance-profile", "MIG1g"),
                "error: --gpu-instance-profile: MIG1g is not possible: Tesla T4 cannot be partitioned",
            ),
            (
                ("add", "p", *size, "--min-count", "1"),
                "error: --max-count: is missing; minCount and maxCount go together",
            ),
            (("add", "p", *size, "--node-taints", "sku"), "error: --node-taints: 'sku' is not a taint"),
            (("update", "p", "--node-count", "1"), "error: there is no node pool 'p'"),
            (("delete", "p"), "error: there is no node pool 'p'"),
        )
        for words, sentence in mistakes:
            result = await nodepool.run(*words)
            assert result.exit_code in (1, 2), words
            assert sentence in result.stderr.splitlines()[-1]
            assert result.stdout == ""
        assert (await kubectl.read("gpunodepools"))["items"] == []
        await nodepool("add", "p", *size, "--node-count", "0")
        again = await nodepool.run("add", "p", *size)
        assert again.stderr == (
            "error: there is a node pool 'p' already; change it with gpuslice nodepool update p\n"
        )


async def test_labels_taints_and_a_smaller_number(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (_, kubectl):
        nodepool = Nodepool(tmp_path)
        dress = ("--labels", "team=a,tier=x", "--node-taints", "sku=gpu:NoSchedule")
        await nodepool("add", "t4", "--node-vm-size", "Standard_NC4as_T4_v3", "--node-count", "2", *dress)
        node = await kubectl.read("node", "t4-1")
        assert (node["metadata"]["labels"]["team"], node["metadata"]["labels"]["tier"]) == ("a", "x")
        assert {"key": "sku", "value": "gpu", "effect": "NoSchedule"} in node["spec"]["taints"]
        await nodepool(
            "update", "t4", "--node-count", "1", "--labels", "team=b", "--node-taints", "other:NoExecute"
        )
        nodes = {n["metadata"]["name"]: n for n in (await kubectl.read("nodes"))["items"]}
        assert sorted(nodes) == ["cpu", "t4-0"]
        labels = nodes["t4-0"]["metadata"]["labels"]
        assert (labels["team"], "tier" in labels) == ("b", False)
        assert [taint["key"] for taint in nodes["t4-0"]["spec"]["taints"]] == ["other"]


async def test_existing_nodes_by_selector(tmp_path: Path) -> None:
    """They are partitioned and labelled, and left as they were found when the pool goes."""
    text = file(
        "{name: a, labels: {rack: r1}, gpus: [{model: A100-40, count: 2}]}, {name: b, gpus: [{model: T4}]}"
    )
    async with cluster_of(text, tmp_path) as (_, kubectl):
        nodepool = Nodepool(tmp_path)
        words = ("--selector", "rack=r1", "--gpu-instance-profile", "MIG3g", "--mig-strategy", "mixed")
        printed = await nodepool("add", "old", *words, "--labels", "team=a")
        assert "count, minCount and maxCount have no effect" in printed
        node = await kubectl.read("node", "a")
        assert amounts(node) == {"nvidia.com/mig-3g.20gb": "4"}
        assert node["metadata"]["labels"]["agentpool"] == "old"
        assert "agentpool" not in (await kubectl.read("node", "b"))["metadata"]["labels"]
        await nodepool("delete", "old")
        node = await kubectl.read("node", "a")
        assert not {"agentpool", "team"} & node["metadata"]["labels"].keys()
        assert amounts(node) == {"nvidia.com/mig-3g.20gb": "4"}, "partitioned as they are"


async def test_pools_and_their_nodes_outlive_the_process(tmp_path: Path) -> None:
    database = tmp_path / "objects.db"
    async with cluster_of(EMPTY, tmp_path, database=database):
        add = ("add", "p", "--node-vm-size", A100, "--node-count", "1", "--gpu-instance-profile", "MIG7g")
        await Nodepool(tmp_path)(*add)
    async with cluster_of(EMPTY, tmp_path, database=database) as (cluster, kubectl):

        async def offered() -> bool:
            node = await kubectl.read("node", "p-0")
            return "p-0" in cluster.drivers and amounts(node) == {"nvidia.com/gpu": "8"}

        await eventually(cluster, offered)
        assert len((await kubectl.read("nodes"))["items"]) == 2


async def test_another_vm_size_is_refused_and_the_nodes_stay(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (_, kubectl):
        await Nodepool(tmp_path)("add", "t4", "--node-vm-size", "Standard_NC4as_T4_v3", "--node-count", "1")
        patch = json.dumps({"spec": {"vmSize": A100}})
        await kubectl("patch", "gpunodepool", "t4", "--type=merge", "-p", patch)
        await kubectl("wait", "--for=condition=Ready=false", "gpunodepool/t4", "--timeout=20s")
        pool = await kubectl.read("gpunodepool", "t4")
        (ready, _) = pool["status"]["conditions"]
        assert (ready["reason"], pool["status"]["nodes"]) == ("Invalid", 1)
        assert ready["message"].startswith("vmSize: the VM size of a pool cannot be changed")
        assert "t4-0" in await kubectl("get", "nodes")


async def test_another_pool_of_the_same_name_has_nodes_of_its_own(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (cluster, kubectl):
        nodepool = Nodepool(tmp_path)
        await nodepool("add", "p", "--node-vm-size", "Standard_NC4as_T4_v3", "--node-count", "1")
        await nodepool("delete", "p", "--no-wait")
        await nodepool("add", "p", "--node-vm-size", "Standard_NC8as_T4_v3", "--node-count", "1")

        async def only_the_new_one() -> bool:
            nodes = (await kubectl.read("nodes", "-l", "agentpool=p"))["items"]
            types = [node["metadata"]["labels"]["node.kubernetes.io/instance-type"] for node in nodes]
            return types == ["Standard_NC8as_T4_v3"]

        await eventually(cluster, only_the_new_one)


async def test_a_pool_that_is_cut_as_pods_need_it(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (_, kubectl):
        nodepool = Nodepool(tmp_path)
        words = ("--node-vm-size", A100, "--node-count", "1", "--mig-policy", "on-demand")
        assert "on-demand  mixed" in await nodepool("add", "pool", *words)
        await kubectl("apply", "-f", "-", stdin=article_pod("asks", "nvidia.com/mig-2g.10gb", 1000))
        await running(kubectl, "asks")
        assert "  MIG 2g.10gb     Device  0:" in await kubectl("exec", "asks", "--", "nvidia-smi", "-L")
        # A number of nodes that follows the pods does not follow those that wait for MIG devices yet.
        await nodepool("update", "pool", "--min-count", "1", "--max-count", "2")
        _, scaling = (await kubectl.read("gpunodepool", "pool"))["status"]["conditions"]
        assert scaling["message"].startswith("1 to 2 nodes, as pods of whole GPUs or memory need them; ")
        refused = await nodepool.run("update", "pool", "--min-count", "0")
        assert "--min-count: 0 would stay 0" in refused.output
        zero = '{"spec": {"minCount": 0}}'
        await kubectl("patch", "gpunodepool", "pool", "--type=merge", "-p", zero)
        await kubectl("wait", "--for=condition=Ready=false", "gpunodepool/pool", "--timeout=20s")
        ready, _ = (await kubectl.read("gpunodepool", "pool"))["status"]["conditions"]
        assert (ready["reason"], ready["message"][:23]) == ("Invalid", "minCount: 0 would stay ")


async def test_a_node_that_somebody_deletes_is_made_again(tmp_path: Path) -> None:
    async with cluster_of(EMPTY, tmp_path) as (cluster, kubectl):
        await Nodepool(tmp_path)("add", "t4", "--node-vm-size", "Standard_NC4as_T4_v3", "--node-count", "1")
        await kubectl("delete", "node", "t4-0")
        await kubectl("wait", "--for=create", "node/t4-1", "--timeout=20s")
        await eventually(cluster, lambda: _is(sorted(cluster.drivers) == ["cpu", "t4-1"]))


async def _is(true: bool) -> bool:
    return true
