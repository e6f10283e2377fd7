"""Beside the real components: what the agent costs a kubelet, and the extender a kube-scheduler.

python bench/bench_real_kubernetes.py       # root; needs what `make e2e` needs

1. One real kubelet: pods per second from created to Running, plain pods without a plugin and pods that ask
   for GPU memory with ours, by turns.
2. The real kube-scheduler and 1,000 nodes x 8 GPUs that kwok plays: the same pods with the extender and
   without it (then only the sum of a node is looked at).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("NO_COLOR", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.alone import Alone, extenders, gpu_pod
from tests.e2e.cluster import Object, RealCluster
from tests.e2e.kwok import fake_nodes

from gpuslice import names
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.units import GIB
from machine import percentiles, report, resident_mib

PODS = 80
ROUNDS = 3
FAKE_NODES = 1000
FAKE_PODS = 2000
SINGLE_PODS = 200
GPUS = [{"model": "A100-80", "count": 8}]
LOOK_SECONDS = 0.1


def create(cluster: RealCluster, pods: list[Object]) -> None:
    def one(pod: Object) -> None:
        cluster.request("POST", "/api/v1/namespaces/default/pods", pod)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, pods))


def until_none(cluster: RealCluster, fields: str = "", seconds: float = 300) -> None:
    """Wait until no pod matches a field selector. It asks for one: a list of all would be most load."""
    end = time.monotonic() + seconds
    while cluster.objects("pods", limit="1", **({"fieldSelector": fields} if fields else {})):
        dead = [process.failed for process in cluster.processes if process.failed]
        if dead or time.monotonic() > end:
            raise RuntimeError("; ".join(dead) or cluster.report())
        time.sleep(LOOK_SECONDS)


def clear(cluster: RealCluster) -> None:
    cluster.request("DELETE", "/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
    until_none(cluster)


def running(cluster: RealCluster, units: int) -> float:
    """Pods per second from the first create to the last Running."""
    pods = [gpu_pod(f"pod-{number}", units) for number in range(PODS)]
    start = time.perf_counter()
    create(cluster, pods)
    until_none(cluster, "status.phase!=Running")
    rate = PODS / (time.perf_counter() - start)
    clear(cluster)
    return round(rate, 2)


def kubelet() -> dict[str, object]:
    plain: list[float] = []
    shared: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as work,
        RealCluster(Path(work), nodes=1) as cluster,
    ):
        running(cluster, 0)  # caches of image and kubelet
        memory: dict[str, int] = {}
        for _ in range(ROUNDS):
            plain.append(running(cluster, 0))
            alone = Alone(cluster, [GPUS])
            alone.start()
            shared.append(running(cluster, 4))
            memory = {process.name: resident_mib(process.pid) for process in alone.processes}
            alone.stop()
        memory |= {process.name: resident_mib(process.pid) for process in cluster.processes}
    return {
        "pods": PODS,
        "plain_per_second": plain,
        "gpu_memory_per_second": shared,
        "ratio": round(sum(shared) / sum(plain), 3),
        "resident_mib": memory,
    }


def binding(cluster: RealCluster, prefix: str) -> float:
    pods = [gpu_pod(f"{prefix}-{number}", 5, nodeSelector={"type": "kwok"}) for number in range(FAKE_PODS)]
    start = time.perf_counter()
    create(cluster, pods)
    until_none(cluster, "spec.nodeName=")
    rate = FAKE_PODS / (time.perf_counter() - start)
    clear(cluster)
    return round(rate, 1)


def single(cluster: RealCluster, prefix: str) -> dict[str, float]:
    """Milliseconds from the answer to create until the pod is bound, one pod at a time on a quiet cluster."""
    seconds: list[float] = []
    for number in range(SINGLE_PODS):
        name = f"{prefix}-{number}"
        create(cluster, [gpu_pod(name, 5, nodeSelector={"type": "kwok"})])
        start = time.perf_counter()
        while not cluster.get("pods", name)["spec"].get("nodeName"):
            pass
        seconds.append(time.perf_counter() - start)
    clear(cluster)
    return percentiles(seconds)


def metrics(cluster: RealCluster, url: str) -> dict[str, float]:
    code = (
        "import ssl,sys,urllib.request as u;"
        "c=ssl.create_default_context();c.check_hostname=False;c.verify_mode=ssl.CERT_NONE;"
        "r=u.Request(sys.argv[1],headers={'Authorization':'Bearer '+sys.argv[2]});"
        "more={'context':c} if sys.argv[1].startswith('https') else {};"
        "print(u.urlopen(r,**more).read().decode())"
    )
    text = cluster.plane.namespace.run(sys.executable, "-c", code, url, cluster.plane.token)
    found: dict[str, float] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+(?:\{.*\})?) (\S+)", line):
            found[match[1]] = float(match[2])
    return found


def mean_ms(values: dict[str, float], name: str, label: str) -> float:
    total = sum(v for k, v in values.items() if k.startswith(f"{name}_sum") and label in k)
    count = sum(v for k, v in values.items() if k.startswith(f"{name}_count") and label in k)
    return round(total / count * 1000, 2) if count else 0.0


def scheduler() -> dict[str, object]:
    gpus = NodeGpus(tuple(Gpu(i, f"GPU-{i}", "NVIDIA A100-SXM4-80GB", 81920) for i in range(8)), GIB)
    capacity = {names.GPU_MEM: "640", names.GPU_COUNT: "8", names.WHOLE_GPU: "8"}
    attempts = "scheduler_scheduling_attempt_duration_seconds"
    result: dict[str, object] = {"nodes": FAKE_NODES, "pods": FAKE_PODS}
    with (
        tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as work,
        RealCluster(Path(work), nodes=1) as cluster,
    ):
        fake_nodes(cluster, FAKE_NODES, capacity=capacity, annotations=encode_gpus(gpus))
        cluster.configure_scheduler({})
        binding(cluster, "warm")
        rate = binding(cluster, "without")
        seen = metrics(cluster, "https://127.0.0.1:10259/metrics")
        result["without"] = {
            "one_pod": single(cluster, "single"),
            "bound_per_second": rate,
            "attempt_mean_ms": mean_ms(seen, attempts, 'result="scheduled"'),
        }
        alone = Alone(cluster, [GPUS])
        alone.start()
        cluster.configure_scheduler({"extenders": extenders(f"http://{alone.extender_address}")})
        binding(cluster, "warm")
        rate = binding(cluster, "with")
        seen = metrics(cluster, "https://127.0.0.1:10259/metrics")
        busy = metrics(cluster, f"http://{alone.extender_address}/metrics")
        one_pod = single(cluster, "alone")
        ours = metrics(cluster, f"http://{alone.extender_address}/metrics")
        quiet = {key: value - busy.get(key, 0.0) for key, value in ours.items()}
        result["with"] = {
            "one_pod": one_pod,
            "bound_per_second": rate,
            "attempt_mean_ms": mean_ms(seen, attempts, 'result="scheduled"'),
            "extender_mean_ms": {
                when: {
                    verb: mean_ms(seen, "gpuslice_extender_request_seconds", f'verb="{verb}"')
                    for verb in ("filter", "prioritize", "bind")
                }
                for when, seen in (("one_pod", quiet), ("burst", busy))
            },
            "extender_resident_mib": resident_mib(alone.extender.pid),
        }
        alone.stop()
    return result


def main() -> None:
    wanted = sys.argv[1:] or ["kubelet", "scheduler"]
    parts: dict[str, Callable[[], dict[str, object]]] = {"kubelet": kubelet, "scheduler": scheduler}
    for part in wanted:
        report(f"real_{part}", parts[part]())


if __name__ == "__main__":
    main()
