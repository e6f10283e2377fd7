"""Pods of all kinds come and go while everything is killed, frozen and restarted: no GPU is ever given out twice.

    make chaos                 # 500 pods, 100 accidents: the better part of an hour
    make chaos SEED=7          # the same pods and accidents again (not the same moments)

Without CHAOS_PODS it is a short one. Pods may be turned away, which a controller would mend; what runs is right.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from gpuslice import names

from . import truth
from .alone import Alone, gpu_container, gpu_pod
from .cluster import Object, RealCluster
from .watching import WHO, Watcher

PODS = int(os.environ.get("CHAOS_PODS", "24"))
ACCIDENTS = int(os.environ.get("CHAOS_ACCIDENTS", "6"))
SEED = int(os.environ.get("SEED") or Random().randrange(10**6))
AT_ONCE = 20
"""Pods that are there at a time: two cores start about three containers a second."""
GIB = 21
STUBBORN = "trap '' TERM; while :; do sleep 1; done"


@pytest.fixture
def cluster(alone: Alone) -> Iterator[RealCluster]:
    alone.cluster.wait_for_nodes()
    yield alone.cluster
    alone.cluster.kubectl("delete", "pods", "--all", "--force", "--wait=false")


class Pods:
    """Pods of all kinds, each with a name of its own unless it takes an earlier one's place."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._count = 0
        self._kinds: list[Callable[[int], Object]] = [
            self._share,
            self._share,
            self._large,
            self._whole,
            self._several,
            self._prepared,
            self._twice_prepared,
            self._sidecar,
            self._stubborn,
            self._restarting,
            self._brief,
        ]

    def make(self) -> Object:
        self._count += 1
        kind = self._random.choice(self._kinds)
        pod = kind(self._random.randint(1, 5))
        pod["metadata"]["name"] = f"{kind.__name__.strip('_').replace('_', '-')}-{self._count:03}"
        for part in ("initContainers", "containers"):
            for container in pod["spec"].get(part, ()):
                container["env"] = [{"name": WHO, "value": container["name"]}]
        return pod

    def _share(self, units: int) -> Object:
        return gpu_pod("", units)

    def _large(self, units: int) -> Object:
        return gpu_pod("", 10 + units)

    def _whole(self, units: int) -> Object:
        return gpu_pod("", 1 + units // 4, names.WHOLE_GPU)

    def _several(self, units: int) -> Object:
        return gpu_pod("", units, containers=[gpu_container(f"c{n}", units + n) for n in range(2)])

    def _prepared(self, units: int) -> Object:
        return gpu_pod("", units, initContainers=[gpu_container("prepare", units + 2, script="true")])

    def _twice_prepared(self, units: int) -> Object:
        first = gpu_container("first", units + 1, script="true")
        return gpu_pod("", 1, initContainers=[first, gpu_container("second", 2, script="true")])

    def _sidecar(self, units: int) -> Object:
        return gpu_pod("", units, initContainers=[gpu_container("beside", units + 1, restartPolicy="Always")])

    def _stubborn(self, units: int) -> Object:
        return gpu_pod("", units + 4, script=STUBBORN, terminationGracePeriodSeconds=4)

    def _restarting(self, units: int) -> Object:
        return gpu_pod("", units, script="sleep 3")

    def _brief(self, units: int) -> Object:
        return gpu_pod("", units, script="sleep 5", restartPolicy="Never")


class Accidents:
    """One thing at a time is hurt, and comes back."""

    def __init__(self, alone: Alone, random: Random) -> None:
        self._alone = alone
        self._random = random
        self._cluster = alone.cluster
        self.happened: Counter[str] = Counter()
        self._kinds = (
            self._kill_agent,
            self._kill_agent,
            self._freeze_agent,
            self._restart_kubelet,
            self._kill_kubelet,
            self._kill_both,
            self._restart_containerd,
            self._kill_extender,
            self._freeze_extender,
            self._lose_api_server,
            self._freeze_api_server,
        )

    def one(self) -> None:
        accident = self._random.choice(self._kinds)
        self.happened[accident.__name__.strip("_")] += 1
        accident()

    def _node(self) -> int:
        return self._random.randrange(len(self._cluster.nodes))

    def _pause(self, low: float, high: float) -> None:
        """Let some time pass, as outages do."""
        until = time.monotonic() + self._random.uniform(low, high)
        self._cluster.wait(lambda: time.monotonic() >= until, 60, "an accident to be over")

    def _kill_agent(self) -> None:
        agent = self._alone.agents[self._cluster.nodes[self._node()].name]
        agent.kill()
        agent.start()

    def _freeze_agent(self) -> None:
        agent = self._alone.agents[self._cluster.nodes[self._node()].name]
        agent.freeze()
        self._pause(1, 4)
        agent.thaw()

    def _restart_kubelet(self) -> None:
        self._cluster.nodes[self._node()].kubelet.restart()

    def _kill_kubelet(self) -> None:
        kubelet = self._cluster.nodes[self._node()].kubelet
        kubelet.kill()
        self._pause(0, 2)
        kubelet.start()

    def _kill_both(self) -> None:
        node = self._cluster.nodes[self._node()]
        node.kubelet.kill()
        self._alone.agents[node.name].kill()
        self._alone.agents[node.name].start()
        node.kubelet.start()

    def _restart_containerd(self) -> None:
        self._cluster.nodes[self._node()].containerd.restart()

    def _kill_extender(self) -> None:
        self._alone.extender.kill()
        self._alone.extender.start()

    def _freeze_extender(self) -> None:
        self._alone.extender.freeze()
        self._pause(1, 3)
        self._alone.extender.thaw()

    def _lose_api_server(self) -> None:
        self._cluster.apiserver.kill()
        self._pause(1, 5)
        self._cluster.apiserver.start()
        self._cluster.wait_for_apiserver()

    def _freeze_api_server(self) -> None:
        self._cluster.apiserver.freeze()
        self._pause(1, 4)
        self._cluster.apiserver.thaw()
        self._cluster.wait_for_apiserver()


@pytest.mark.timeout(7200, func_only=True)
def test_nothing_is_given_out_twice_whatever_is_killed(alone: Alone, cluster: RealCluster) -> None:
    print(f"SEED={SEED} CHAOS_PODS={PODS} CHAOS_ACCIDENTS={ACCIDENTS}")
    random = Random(SEED)
    pods, accidents = Pods(random), Accidents(alone, random)
    made = rejected = 0
    with Watcher(cluster, GIB) as watcher:
        while made < PODS or sum(accidents.happened.values()) < ACCIDENTS:
            there = cluster.objects("pods")
            over = [p for p in there if p["status"]["phase"] in truth.OVER]
            rejected += sum(p["status"]["phase"] == "Failed" for p in over)
            delete(cluster, over)
            living = [p for p in there if p not in over and "deletionTimestamp" not in p["metadata"]]
            if len(living) >= AT_ONCE // 2:
                leaving = random.sample(living, random.randint(2, len(living) // 2))
                forced = [p for p in leaving if random.random() < 0.5]
                delete(cluster, forced, "--force", "--grace-period=0")
                delete(cluster, [p for p in leaving if p not in forced])
                living = [p for p in living if p not in leaving]
            wanted = min(AT_ONCE - len(living), random.randint(3, 8), PODS - made)
            if wanted > 0:
                cluster.apply([pods.make() for _ in range(wanted)])
                made += wanted
            some_run(cluster, random)
            if sum(accidents.happened.values()) * PODS <= made * ACCIDENTS:
                accidents.one()
            assert not watcher.violations, "\n".join([*watcher.violations, cluster.report()])
        cluster.wait_for_nodes()
        settle(cluster)
        truth.demand(cluster)
        cluster.kubectl("delete", "pods", "--all", "--wait=true", "--timeout=120s")
        truth.demand(cluster)
    print(
        f"{made} pods, {rejected} turned away or failed, {len(watcher.seen)} containers, {watcher.looks} looks, "
        f"{sum(accidents.happened.values())} accidents: {dict(accidents.happened)}"
    )
    assert not watcher.violations, "\n".join([*watcher.violations, cluster.report()])
    assert len(watcher.seen) >= made // 2, "hardly anything ran"


def delete(cluster: RealCluster, pods: list[Object], *how: str) -> None:
    if pods:
        named = [p["metadata"]["name"] for p in pods]
        cluster.kubectl("delete", "pods", *named, "--wait=false", "--ignore-not-found", *how)


def some_run(cluster: RealCluster, random: Random) -> None:
    """Go on when part of what waits has started, or when nothing starts for a while: nodes may be full."""
    began = time.monotonic()
    share = random.random()

    def enough() -> bool:
        there = cluster.objects("pods")
        return time.monotonic() - began > 8 or sum(
            p["status"]["phase"] != "Pending" for p in there
        ) >= share * len(there)

    cluster.wait(enough, 60, "the API server to answer")


def settle(cluster: RealCluster) -> None:
    """Leave only what will stay as it is, and wait until all of it runs: so the witnesses can be compared."""
    there = cluster.objects("pods")
    names_ = ("restarting", "brief")
    delete(
        cluster, [p for p in there if p["metadata"]["name"].startswith(names_)], "--force", "--grace-period=0"
    )

    def still() -> bool:
        found = cluster.objects("pods")
        delete(cluster, [p for p in found if p["status"]["phase"] in truth.OVER])
        fits = [p for p in found if p["spec"].get("nodeName")]
        ready = all(
            any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions") or ())
            for p in fits
        )
        return ready and not any("deletionTimestamp" in p["metadata"] for p in found)

    cluster.wait(still, 180, "what has a node to run")
