"""The commands as people type them: help, exit codes, sentences on stderr, tables and JSON from a served API."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest
import pytest_asyncio
import yaml
from cli_world import Json, node, pod

from gpuslice import names
from gpuslice.cli.inspect.command import kubectl_plugin
from gpuslice.cli.main import COMMANDS, main
from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.kube.http import connect
from gpuslice.kube.leading import Lease
from gpuslice.kube.wire import Node, Pod
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.serve import serving

HEAVY = (
    "numpy",
    "lightkube",
    "httpx2",
    "grpc",
    "rich",
    "yaml",
    "structlog",
    "uvicorn",
    "cryptography",
    "asyncio",
    "azure",
)


def invoke(*words: str, command: click.Command = main) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, words)


def elsewhere(kubeconfig: Path, path: Path) -> Path:
    """The same kubeconfig with an address at which nobody listens."""
    config = yaml.safe_load(kubeconfig.read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free.getsockname()[1]}"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Path]:
    """A kubeconfig for an API server with one node of two GPUs, a pod on it and one that waits."""
    server = ApiServer(clock=SystemClock(), new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    kubeconfig = tmp_path / "kubeconfig"
    async with serving(server, clock=SystemClock(), kubeconfig=kubeconfig):
        client = Client(server.transport())
        body = node("gpu-1", 15360, 15360)
        await client.create(Node.resource, body)
        await client.patch(Node, "gpu-1", {"status": body["status"]}, subresource="status")
        placed: Json = pod("placed", 5, on="gpu-1", annotations={names.MEM_IDX: "1"})
        for one in (placed, pod("waiting", 20)):
            del one["metadata"]["uid"]
            await client.create(Pod.resource, one, "default")
        yield kubeconfig
    await server.stop()


@pytest.mark.parametrize("words", [[name] for name in sorted(COMMANDS)], ids=lambda words: words[0])
def test_every_command_has_help_with_an_example(words: list[str]) -> None:
    result = invoke(*words, "--help")
    assert result.exit_code == 0
    assert "Examples:\n  " in result.output


def test_help_imports_nothing_heavy() -> None:
    """The list of commands, and what kubectl's plugin costs before it is called."""
    code = (
        "import sys; from gpuslice.cli.main import kubectl_plugin, main; main(['--help'], standalone_mode=False);"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_agent_starts_without_what_kubelet_does_not_wait_for() -> None:
    """Pods of its node get no GPU until it is there."""
    late = ("numpy", "lightkube", "httpx2", "uvicorn", "prometheus_client", "rich", "cryptography", "azure")
    code = (
        "import sys; from gpuslice.cli.lazy import load; load('gpuslice.cli.run.agent:agent');"
        f"print([name for name in {late} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_list_of_commands_has_each_with_its_summary() -> None:
    output = invoke("--help").output
    assert all(f"  {name} " in output and summary in output for name, (_, summary) in COMMANDS.items())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["inspect", "--nope"], "No such option"),
        (["agent"], "Missing option"),
        (["explain"], "Missing argument 'POD'"),
        (["up", "--port", "70000"], "70000 is not in the range"),
        (["up", "--cluster", "/nowhere.yaml"], "error: /nowhere.yaml: there is no such file\n"),
        (["inspect", "--kubeconfig", "/nowhere"], "error: kubeconfig /nowhere does not exist"),
        (["explain", "pod", "--kubeconfig", "/nowhere"], "error: kubeconfig /nowhere does not exist"),
        (["scheduler", "--kubeconfig", "/nowhere"], "error: kubeconfig /nowhere does not exist"),
        (["extender", "--listen", "nonsense"], "error: --listen: 'nonsense' is not HOST:PORT"),
        (["extender", "--tls-cert", "a"], "--tls-cert and --tls-key go together"),
        (["extender", "--client-ca", "a"], "--client-ca needs --tls-cert and --tls-key"),
        (["extender", "--token-file", "/nowhere"], "error: --token-file: /nowhere cannot be read"),
        (["scheduler", "--lease", "x"], "'--lease': 'x' is not NAMESPACE/NAME"),
        (["extender", "--follow-lease", "a/b/c"], "'--follow-lease': 'a/b/c' is not NAMESPACE/NAME"),
        (["extender", "--lease", "a/b", "--follow-lease", "a/b"], "exclude each other"),
        (["extender", "--label-leader"], "--label-leader needs --lease"),
        (
            ["extender", "--listen", ":0"],
            "error: --listen: anyone who reaches :0 could bind pods: restrict access",
        ),
        (
            ["extender", "--listen", "192.0.2.1:1"],
            "error: --listen: anyone who reaches 192.0.2.1:1 could bind pods",
        ),
        (["scheduler", "--metrics-token-file", "a"], "--metrics-token-file needs --probes"),
        (["agent", "--node", "n", "--devices", "/nowhere"], "error: /nowhere: there is no such file\n"),
        (
            ["agent", "--node", "n", "--device-list-strategy", "envvar,cdi"],
            "error: --device-list-strategy: 'envvar,cdi' is not understood; write one of envvar, volume-mounts, ",
        ),
        (["agent", "--node", "n", "--driver-root", "run"], "'run' is not a folder of the host, such as /run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_typed_wrong_is_one_sentence_on_stderr_and_exit_code_2(
    words: list[str], sentence: str
) -> None:
    """gpushare 9.B.11 among them: an agent without its devices ends with a sentence and does not wait for ever."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuslice.cli.main", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


async def test_inspect_prints_gpushares_table(served: Path) -> None:
    result = await asyncio.to_thread(invoke, "inspect", "--kubeconfig", str(served))
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[1].split() == ["gpu-1", "10.0.0.1", "0/15", "5/15", "5/30"]
    result = await asyncio.to_thread(
        invoke, "-d", "gpu-1", "--kubeconfig", str(served), command=kubectl_plugin
    )
    assert "placed       default    0                5                \n" in result.output


async def test_inspect_prints_json_and_yaml(served: Path) -> None:
    as_json = await asyncio.to_thread(invoke, "inspect", "-o", "json", "--kubeconfig", str(served))
    as_yaml = await asyncio.to_thread(invoke, "inspect", "-o", "yaml", "--kubeconfig", str(served))
    report = json.loads(as_json.output)
    assert report == yaml.safe_load(as_yaml.output)
    assert (report["usedMiB"], report["totalMiB"]) == (5 * 1024, 2 * 15360)
    (one,) = report["nodes"]
    assert (one["name"], one["memoryUnit"]) == ("gpu-1", "GiB")
    assert one["gpus"][1]["uuid"] == "GPU-gpu-1-1"
    assert one["gpus"][1]["pods"][0] | {"uid": ""} == {
        "namespace": "default", "name": "placed", "uid": "", "MiB": 5120, "whole": False,
    }  # fmt: skip


async def test_an_unknown_node_is_an_error_and_the_plugin_says_it_like_gpushares(served: Path) -> None:
    result = await asyncio.to_thread(invoke, "inspect", "ghost", "--kubeconfig", str(served))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", 'error: nodes "ghost" not found\n')
    result = await asyncio.to_thread(invoke, "ghost", "--kubeconfig", str(served), command=kubectl_plugin)
    assert (result.exit_code, result.stdout) == (1, 'Failed due to nodes "ghost" not found')


async def test_explain_says_why_a_pod_waits(served: Path) -> None:
    result = await asyncio.to_thread(invoke, "explain", "waiting", "--kubeconfig", str(served))
    assert result.exit_code == 0, result.output
    assert (
        "gpu-1: no, Insufficient GPU Memory in one device (wanted 20 GiB, at most 15 GiB free"
        in result.output
    )
    result = await asyncio.to_thread(invoke, "explain", "waiting", "-o", "json", "--kubeconfig", str(served))
    report = json.loads(result.output)
    assert report["nodes"][0]["code"] == "insufficient_memory_in_one_gpu"
    assert [gpu["freeMiB"] for gpu in report["nodes"][0]["gpus"]] == [15360, 10240]
    result = await asyncio.to_thread(invoke, "explain", "ghost", "--kubeconfig", str(served))
    assert (result.exit_code, result.stderr) == (1, 'error: pods "ghost" not found\n')


async def test_a_server_that_is_away_is_one_sentence_and_exit_code_1(served: Path, tmp_path: Path) -> None:
    away = elsewhere(served, tmp_path / "away")
    result = await asyncio.to_thread(invoke, "inspect", "--kubeconfig", str(away))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


async def test_a_port_that_is_taken_is_said_so(served: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                "-m",
                "gpuslice.cli.main",
                "extender",
                "--kubeconfig",
                str(served),
                "--listen",
                address,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert f"error: cannot listen on {address}: Address already in use; choose another port\n" in done.stderr


@pytest.mark.timeout(90)
async def test_of_two_schedulers_one_acts_and_the_other_takes_over(served: Path) -> None:
    """Both keep their caches; the second binds only once the first has gone."""

    async def start(identity: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuslice.cli.main", "scheduler", "--kubeconfig", str(served),
            "--lease", "default/gpuslice-scheduler", "--identity", identity,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    client = connect(served)

    async def watched(kind: type[Pod] | type[Lease], name: str, true: Callable[[Any], bool]) -> None:
        version = (await client.list(kind, "default")).resource_version
        if true(await client.get(kind, name, "default")):
            return
        async for event in client.watch(kind, "default", resource_version=version):
            if event.object.name == name and true(event.object):
                return

    async def asks(name: str) -> None:
        body = pod(name, 1)
        body["spec"]["schedulerName"] = "gpuslice"
        del body["metadata"]["uid"]
        await client.create(Pod.resource, body, "default")
        await watched(Pod, name, lambda one: bool(one.spec.node_name))

    first = await start("first")
    async with asyncio.timeout(60):
        await asks("one")
        second = await start("second")
        await asks("two")
        lease = await client.get(Lease, "gpuslice-scheduler", "default")
        assert lease.spec.holder_identity == "first"
        first.terminate()
        assert await first.wait() == 0
        await asks("three")
        await watched(Lease, "gpuslice-scheduler", lambda one: one.spec.holder_identity == "second")
        second.terminate()
        assert await second.wait() == 0
    await client.transport.aclose()
