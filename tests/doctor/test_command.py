"""`gpuslice doctor` as people type it: the text, its order, JSON and YAML, exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import click.testing
import pytest
import yaml
from doctor_world import NAMESPACE, READY, Json, Site

from gpuslice import names
from gpuslice.cli.main import main
from gpuslice.clock import SystemClock
from gpuslice.local.apiserver.api.serve import serving


@pytest.fixture
async def kubeconfig(site: Site, tmp_path: Path) -> AsyncIterator[Path]:
    """A healthy cluster, served."""
    await site.install()
    path = tmp_path / "kubeconfig"
    async with serving(site.server, clock=SystemClock(), kubeconfig=path):
        yield path


async def doctor(kubeconfig: Path, *words: str) -> click.testing.Result:
    runner = click.testing.CliRunner()
    return await asyncio.to_thread(runner.invoke, main, ["doctor", "--kubeconfig", str(kubeconfig), *words])


async def test_a_healthy_cluster(kubeconfig: Path) -> None:
    result = await doctor(kubeconfig)
    assert (result.exit_code, result.output) == (0, "nothing is wrong\n")
    result = await doctor(kubeconfig, "--strict", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.output) == {"errors": 0, "warnings": 0, "findings": []}


async def three_faults(site: Site) -> None:
    """The last to be mended is made first."""
    await site.pod("miner", on="gpu-1", container={"env": [{"name": names.VISIBLE_DEVICES, "value": "all"}]})
    await site.delete("Service", "gpuslice-webhook", NAMESPACE)
    taints = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    await site.node("gpu-2", published=False, offered=False)
    await site.patch("Node", "gpu-2", {"spec": {"taints": taints}})
    meta = {"name": "unhealthy-gpu-sold", "namespace": "kube-system"}
    await site.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpus": "0"}})


async def test_three_faults_at_once_in_the_order_in_which_they_must_be_mended(
    site: Site, kubeconfig: Path
) -> None:
    await three_faults(site)
    result = await doctor(kubeconfig)
    assert result.exit_code == 1
    blocks = result.output.rstrip("\n").split("\n\n")
    assert [block.splitlines()[0][:60] for block in blocks] == [
        "1. error: node gpu-2 has the taint dedicated=ml:NoSchedule, ",
        "2. error: MutatingWebhookConfiguration/gpuslice leads to Ser",
        "3. error: pod default/miner on node gpu-1 asks for no GPU bu",
        "4. warning: ConfigMap kube-system/unhealthy-gpu-sold marks G",
        "3 errors, 1 warning",
    ]
    assert all("\n   -> " in block for block in blocks[:-1])


async def test_json_and_yaml_say_the_same(site: Site, kubeconfig: Path) -> None:
    await three_faults(site)
    result = await doctor(kubeconfig, "-o", "json")
    assert result.exit_code == 1
    report: Json = json.loads(result.output)
    assert report == yaml.safe_load((await doctor(kubeconfig, "-o", "yaml")).output)
    assert (report["errors"], report["warnings"]) == (3, 1)
    first = report["findings"][0]
    assert (first["level"], first["code"], first["object"]) == ("error", "agent-taint", "Node/gpu-2")
    assert first["remedy"] == [
        f"kubectl -n {NAMESPACE} patch daemonset gpuslice-agent --type=json -p='"
        '[{"op": "add", "path": "/spec/template/spec/tolerations/-", '
        '"value": {"key": "dedicated", "operator": "Exists"}}]\''
    ]


@pytest.mark.parametrize("tolerations", [[], [{"key": "nvidia.com/gpu", "operator": "Exists"}]])
async def test_the_command_that_is_printed_mends_it(
    site: Site, kubeconfig: Path, tolerations: list[Json]
) -> None:
    """The patch is one that the API server takes; with the agent that then comes the doctor is content."""
    spec = {"template": {"spec": {"tolerations": tolerations}}}
    await site.patch("DaemonSet", "gpuslice-agent", {"spec": spec}, NAMESPACE)
    await site.node("gpu-2")
    taints = [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
    await site.patch("Node", "gpu-2", {"spec": {"taints": taints}})
    zero = {"status": {"allocatable": {names.GPU_MEM: "0"}}}
    await site.patch("Node", "gpu-2", zero, None, "status")
    report = json.loads((await doctor(kubeconfig, "-o", "json")).output)
    (finding,) = report["findings"]
    patch = json.loads(finding["remedy"][0].partition("-p='")[2].rstrip("'"))
    await site.patch("DaemonSet", "gpuslice-agent", patch, NAMESPACE)
    await site.agent("gpu-2")
    await site.patch("Node", "gpu-2", {"status": {"allocatable": {names.GPU_MEM: "30"}}}, None, "status")
    assert (await doctor(kubeconfig)).output == "nothing is wrong\n"


async def test_warnings_alone_fail_only_when_strict(site: Site, kubeconfig: Path) -> None:
    await site.delete("MutatingWebhookConfiguration", "gpuslice")
    result = await doctor(kubeconfig)
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "1 warning")
    assert (await doctor(kubeconfig, "--strict")).exit_code == 1


async def test_what_is_typed_wrong(kubeconfig: Path) -> None:
    assert (await doctor(kubeconfig, "--nope")).exit_code == 2
    assert (await doctor(kubeconfig, "-o", "xml")).exit_code == 2
    result = await doctor(Path("/nowhere"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: kubeconfig /nowhere does not exist")


def elsewhere(kubeconfig: Path, path: Path, port: int) -> Path:
    """The same kubeconfig with another port."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_an_api_server_that_is_away_is_no_finding(kubeconfig: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = await doctor(elsewhere(kubeconfig, tmp_path / "away", free.getsockname()[1]), "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


async def test_the_last_line_of_an_agents_log_is_shown(site: Site, kubeconfig: Path) -> None:
    status = {
        **READY,
        "conditions": [{"type": "Ready", "status": "False", "message": "containers with unready status: [agent]"}],
        "containerStatuses": [
            {"name": "agent", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": {"running": {}}}
        ],
    }  # fmt: skip
    await site.node("gpu-2")
    name = await site.agent("gpu-2", status)
    site.transport.logs[f"{name}/log?agent"] = b"starting\nerror: kubelet.sock is not there\n"
    (found,) = await site.findings()
    assert found.code == "agent-failing"
    assert found.sentence.endswith("unready status: [agent]; its last line: error: kubelet.sock is not there")
