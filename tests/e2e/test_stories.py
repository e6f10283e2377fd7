"""The stories of `make demo`, from the same manifests, on a real cluster: real kube-scheduler, kubelet and containers.

The chart's default is a scheduler of our own, which pods ask for by name; test_wirings.py has the manifests unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from gpuslice import names

from .cluster import Object, RealCluster
from .images_of_ours import ROOT, load_busybox_as
from .installation import Installation
from .sides import allocation, assert_sides_agree, environment, gpuslice

EXAMPLES = ROOT / "examples" / "gpushare"
IMAGES = ("nvidia/cuda:11.0-base", "cheyang/gpu-player:v2")
STUCK = "too-large-for-one-gpu"
UNITS = 5 + 3 * 2 + (4 + 1) + 3 * 3


@dataclass(frozen=True)
class Told:
    """The cluster after all stories, and what was said when the first began."""

    gpus: Installation
    warned: str

    @property
    def cluster(self) -> RealCluster:
        return self.gpus.cluster

    def pod(self, name: str) -> Object:
        return self.cluster.get("pods", name)


def manifests(file: str, scheduler: str) -> str:
    """The objects of an example, their pods asking for that scheduler."""
    objects = [*yaml.safe_load_all((EXAMPLES / file).read_text())]
    for one in objects:
        (one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"])["schedulerName"] = (
            scheduler
        )
    return yaml.safe_dump_all(objects)


@pytest.fixture(scope="module")
def told(gpus: Installation) -> Iterator[Told]:
    cluster = gpus.cluster
    load_busybox_as(cluster, *IMAGES)

    def tell(file: str, running: int) -> str:
        text = manifests(file, gpus.scheduler_name)
        said = cluster.kubectl("apply", "--filename=-", stdin=text, check=False)
        assert said.count("created") == text.count("\nkind:"), said
        gpus.wait_for_pods(running)
        return said

    warned = tell("01-gpu-share-test.yaml", 1)
    tell("02-binpack.yaml", 4)
    tell("03-too-large-for-one-gpu.yaml", 4)
    tell("04-two-containers.yaml", 5)
    tell("05-statefulset.yaml", 8)
    yield Told(gpus, warned)
    gpus.clear()


def test_the_usual_pod_sees_its_gpu_whatever_its_env_says_and_the_user_is_warned(told: Told) -> None:
    assert "created" in told.warned
    assert "Warning" in told.warned
    assert names.VISIBLE_DEVICES in told.warned
    ((uuid, mib),) = allocation(told.pod("gpu-share-test"))["cuda"].items()
    assert mib == 5 * 1024
    assert environment(told.cluster, "gpu-share-test")[names.VISIBLE_DEVICES] == uuid
    annotations = told.pod("gpu-share-test")["metadata"]["annotations"]
    assert annotations[names.MEM_POD] == "5"


def test_bin_packing_fills_one_gpu(told: Told) -> None:
    pods = [
        p for p in told.cluster.objects("pods") if p["metadata"]["name"].startswith(("binpack", "gpu-share"))
    ]
    assert len(pods) == 4
    assert len({uuid for pod in pods for gpus in allocation(pod).values() for uuid in gpus}) == 1


def test_a_pod_that_fits_the_sum_but_no_gpu_waits_and_says_why(told: Told) -> None:
    pod = told.pod(STUCK)
    assert pod["status"]["phase"] == "Pending"
    assert "nodeName" not in pod["spec"]
    node = told.cluster.get("nodes", "node-1", None)
    assert int(node["status"]["allocatable"][names.GPU_MEM]) > 40, "the sum would do"
    told.cluster.wait(
        lambda: told.gpus.events(STUCK, "FailedScheduling"), 30, "an event that says why it waits"
    )
    why = told.gpus.events(STUCK, "FailedScheduling")[-1]
    assert "0/2 nodes are available" in why
    assert "Insufficient GPU Memory in one device" in why
    assert "one GPU" in gpuslice(told.cluster, "explain", STUCK, check=False)


def test_each_container_of_a_pod_has_its_own_share(told: Told) -> None:
    held = allocation(told.pod("two-containers"))
    assert {name: sum(gpus.values()) // 1024 for name, gpus in held.items()} == {"trainer": 4, "preview": 1}
    for container, gpus in held.items():
        slice_json = told.cluster.kubectl(
            "exec",
            "two-containers",
            f"--container={container}",
            "--",
            "cat",
            f"{names.SLICE_DIR_IN_CONTAINER}/slice.json",
        )
        assert set(gpus) == {gpu["uuid"] for gpu in json.loads(slice_json)["gpus"]}


def test_a_stateful_set_runs_with_shares(told: Told) -> None:
    for number in range(3):
        assert sum(allocation(told.pod(f"player-{number}"))["player"].values()) == 3 * 1024


def test_every_side_tells_the_same(told: Told) -> None:
    assert_sides_agree(told.cluster)
    table = gpuslice(told.cluster, "inspect")
    assert f"{UNITS}/90" in table, table
