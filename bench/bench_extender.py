"""Filter and bind latency of the extender over HTTP, beside gpushare's own extender.

Both extenders run in their own process against the same embedded API server (a third process) with the same
nodes and pods, and get the same requests one after the other.

    python bench/bench_extender.py                                 # ours, 5,000 nodes
    GPUSHARE_EXTENDER=/path/to/gpushare-sche-extender python bench/bench_extender.py

The peer is built from its own repository (`go build ./cmd`). It is compared at fewer nodes, as it needs about
0.1 ms per node, and its binds are counted only: it is limited to 5 API requests a second by its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from gpuslice import names
from gpuslice.clock import SystemClock
from machine import percentiles, report, resident_mib

GPUS = 8
UNITS = 15
PEER = os.environ.get("GPUSHARE_EXTENDER")


def node(number: int) -> dict[str, object]:
    amounts = {names.GPU_MEM: str(GPUS * UNITS), names.GPU_COUNT: str(GPUS), "pods": "110", "cpu": "64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number:05d}"},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, units: int, *, node_name: str = "", index: int | None = None) -> dict[str, object]:
    marks = {}
    if index is not None:
        marks = {
            names.MEM_IDX: str(index),
            names.MEM_POD: str(units),
            names.MEM_DEV: str(UNITS),
            names.MEM_ASSIGNED: "true",
            names.MEM_ASSUME_TIME: "1",
        }
    container = {"name": "c", "image": "x", "resources": {"limits": {names.GPU_MEM: str(units)}}}
    spec: dict[str, object] = {"containers": [container], "schedulerName": "none"}
    if node_name:
        spec["nodeName"] = node_name
    metadata = {"name": name, "namespace": "default", "annotations": marks}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def serve_api(nodes: int, pods: int, pending: int, kubeconfig: Path) -> None:
    """The embedded API server, filled."""
    from gpuslice.kube.client import Client
    from gpuslice.kube.wire import Node, Pod
    from gpuslice.local.apiserver.api.app import ApiServer
    from gpuslice.local.apiserver.api.serve import serving

    clock = SystemClock()
    server = ApiServer(clock=clock, new_uid=lambda: str(uuid.uuid4()))
    await server.start()
    client = Client(server.transport())
    for number in range(nodes):
        await client.create(Node.resource, node(number))
    chance = random.Random(1)
    for number in range(pods):
        where = f"node-{number % nodes:05d}"
        body = pod(f"old-{number}", chance.randint(1, 3), node_name=where, index=number // nodes % GPUS)
        await client.create(Pod.resource, body, "default")
    for number in range(pending):
        await client.create(Pod.resource, pod(f"new-{number}", 2), "default")
    async with serving(server, clock=clock, kubeconfig=kubeconfig):
        await asyncio.Event().wait()


async def serve_extender(kubeconfig: Path, port: int) -> None:
    """Our extender in a process of its own."""
    from gpuslice.kube.http import connect
    from gpuslice.scheduler.core import EXTENDER, Core
    from gpuslice.scheduler.extender.service import ExtenderSettings, extender

    core = Core(
        connect(kubeconfig),
        component=EXTENDER,
        clock=SystemClock(),
        random=random.random,
        new_id=lambda: uuid.uuid4().hex[:16],
    )
    async with core.running(), extender(core, ExtenderSettings(port=port)):
        await core.feed.wait_synced()
        gc.collect()
        gc.freeze()  # as `gpuslice extender` does
        await asyncio.Event().wait()


@contextlib.contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()


def wait_for(port: int, path: str, ready: str) -> None:
    for _ in range(1200):
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            if ready in connection.getresponse().read().decode():
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing ready on port {port}")


def measure(port: int, nodes: int, rounds: int, pending: list[dict[str, object]]) -> dict[str, object]:
    """Serial filters as kube-scheduler sends them, then binds, eight at a time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    listed = [f"node-{number:05d}" for number in range(nodes)]
    seconds = []
    fitting = 0
    for round_number in range(rounds + 3):
        one = pod(f"probe-{round_number}", 2 + round_number % 12)
        one["metadata"]["uid"] = str(uuid.UUID(int=round_number))  # type: ignore[index]
        body = json.dumps({"Pod": one, "Nodes": None, "NodeNames": listed})
        start = time.perf_counter()
        connection.request("POST", "/gpushare-scheduler/filter", body, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        if round_number >= 3:
            seconds.append(time.perf_counter() - start)
        fitting = len(json.loads(answer)["NodeNames"])
    result: dict[str, object] = {"filter": percentiles(seconds), "nodes_that_fit_the_last": fitting}
    if pending:
        result["binds_per_second"] = asyncio.run(bind_all(port, nodes, pending))
    return result


async def bind_all(port: int, nodes: int, pending: list[dict[str, object]]) -> float:
    todo = list(enumerate(pending))
    start = time.perf_counter()

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while todo:
            number, one = todo.pop()
            meta = one["metadata"]
            assert isinstance(meta, dict)
            body = json.dumps(
                {
                    "PodName": meta["name"],
                    "PodNamespace": "default",
                    "PodUID": meta["uid"],
                    "Node": f"node-{number * 7 % nodes:05d}",
                }
            )
            head = f"POST /gpushare-scheduler/bind HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write((head + body).encode())
            status = await reader.readline()
            length = 0
            while (line := await reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            answer = await reader.readexactly(length)
            assert b" 200 " in status, answer
        writer.close()

    await asyncio.gather(*(worker() for _ in range(8)))
    return round(len(pending) / (time.perf_counter() - start), 1)


def pending_pods(kubeconfig: Path) -> list[dict[str, object]]:
    from gpuslice.kube.http import connect
    from gpuslice.kube.wire import Pod

    async def read() -> list[dict[str, object]]:
        client = connect(kubeconfig)
        listing = await client.list(Pod, "default", field_selector="spec.nodeName=")
        await client.transport.aclose()
        return [{"metadata": {"name": p.name, "uid": p.uid}} for p in listing.items]

    return asyncio.run(read())


def run(nodes: int, pods: int, pending: int, *, peer: bool, rounds: int) -> dict[str, object]:
    result: dict[str, object] = {"nodes": nodes, "gpus_per_node": GPUS, "pods": pods}
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        me = [sys.executable, __file__]
        with process(*me, "api", str(nodes), str(pods), str(pending), str(kubeconfig)):
            while not kubeconfig.exists():
                time.sleep(0.1)
            waiting = pending_pods(kubeconfig)
            half = len(waiting) // 2 if peer else len(waiting)
            with process(*me, "extender", str(kubeconfig), "32801") as ours:
                wait_for(32801, "/readyz", "ok")
                result["gpuslice"] = measure(32801, nodes, rounds, waiting[:half])
                result["gpuslice"]["resident_mib"] = resident_mib(ours.pid)  # type: ignore[index]
            if peer and PEER:
                with process(PEER, KUBECONFIG=str(kubeconfig), PORT="32802", LOG_LEVEL="error") as theirs:
                    wait_for(32802, "/version", "0.1.0")
                    time.sleep(3)
                    result["gpushare"] = measure(32802, nodes, min(rounds, 50), waiting[half : half + 30])
                    result["gpushare"]["resident_mib"] = resident_mib(theirs.pid)  # type: ignore[index]
    return result


def main() -> None:
    match sys.argv[1:]:
        case ["api", nodes, pods, pending, kubeconfig]:
            asyncio.run(serve_api(int(nodes), int(pods), int(pending), Path(kubeconfig)))
        case ["extender", kubeconfig, port]:
            asyncio.run(serve_extender(Path(kubeconfig), int(port)))
        case _:
            runs = [run(5000, 20000, 600, peer=False, rounds=500)]
            if PEER:
                runs += [run(n, 2 * n, 120, peer=True, rounds=200) for n in (100, 1000)]
            else:
                print("peer skipped: set GPUSHARE_EXTENDER to gpushare's binary", file=sys.stderr)
            report("extender", {"runs": runs})


if __name__ == "__main__":
    main()
