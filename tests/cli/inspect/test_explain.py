"""`gpuslice explain`: the sentences for pods that wait, that cannot be placed, and that have their place."""

from __future__ import annotations

from cli_world import Json, decode, node, pod, remember

from gpuslice import names
from gpuslice.cli.inspect.explain import tell
from gpuslice.cli.inspect.explainreport import report
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.spread import SPREAD
from gpuslice.scheduler.explaining import Explanation, explain


def explained(name: str, *bodies: Json, policy: Policy = BINPACK) -> Explanation:
    everything = list(bodies)
    _nodes, pods = decode(everything)
    (wanted,) = [one for one in pods if one.name == name]
    return explain(wanted, remember(everything, policy))


def on_gpu(index: int) -> Json:
    return {"annotations": {names.MEM_IDX: str(index)}}


def test_a_pod_that_fits_the_sum_but_no_gpu_is_told_the_numbers_of_every_gpu() -> None:
    text = tell(explained("big", node("a", 15360, 15360), pod("x", 5, on="a", **on_gpu(0)), pod("big", 20)))
    assert text.splitlines() == [
        "pod default/big must wait; it asks for 20 GiB of GPU memory (container main), "
        "and none of 1 nodes can take it",
        "a: no, Insufficient GPU Memory in one device (wanted 20 GiB, at most 15 GiB free on one GPU)",
        "  GPU0 Tesla T4: too little room, 10 GiB of 15 GiB free",
        "  GPU1 Tesla T4: too little room, 15 GiB of 15 GiB free",
    ]


def test_where_it_would_go_is_said_before_the_scheduler_acts() -> None:
    explanation = explained("p", node("a", 15360, 15360), pod("x", 5, on="a", **on_gpu(1)), pod("p", 6))
    (verdict,) = explanation.nodes
    assert verdict.ok
    assert [gpu.verdict.message for gpu in verdict.gpus] == [
        "fits, 15 GiB of 15 GiB free",
        "fits, 10 GiB of 15 GiB free: the choice",
    ]


def test_what_is_not_about_gpus_is_said_in_kube_schedulers_words() -> None:
    explanation = explained("p", node("a", 15360), pod("p", 6, nodeSelector={"disk": "ssd"}))
    (verdict,) = explanation.nodes
    assert not verdict.ok
    assert verdict.code is None
    assert verdict.sentence == "node(s) didn't match Pod's node affinity/selector"
    assert verdict.gpus[0].verdict.ok


def test_programs_are_told_every_filter_that_says_no_with_its_numbers() -> None:
    asking = pod("p", 20, nodeSelector={"disk": "ssd"})
    asking["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "900"}
    (node_report,) = report(explained("p", node("a", 15360), asking)).nodes
    assert [(one.filter, one.code, one.numbers) for one in node_report.against] == [
        ("NodeAffinity", "node_affinity_differs", {}),
        ("NodeResourcesFit", "insufficient_resource", {"wanted": 900_000, "free": 64_000}),
        ("GPU", "insufficient_memory_in_one_gpu", {"wanted_mib": 20480, "largest_free_mib": 15360}),
    ]
    assert node_report.message == "; ".join(one.message for one in node_report.against)


def test_an_unhealthy_gpu_says_why() -> None:
    explanation = explained("p", node("a", 15360, unhealthy=(0,)), pod("p", 6))
    (verdict,) = explanation.nodes
    assert not verdict.ok
    assert verdict.gpus[0].verdict.message == "unhealthy: ECC error"


def test_a_request_that_cannot_be_read_is_quoted() -> None:
    body = pod("p", 1)
    body["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM] = "1500m"
    assert "can be placed on no node" in tell(explained("p", node("a", 15360), body))
    assert "'1500m' is not a whole number" in tell(explained("p", node("a", 15360), body))


def test_a_placed_pod_is_told_where_and_why() -> None:
    text = tell(
        explained(
            "p",
            node("a", 15360, 15360),
            pod("x", 5, on="a", **on_gpu(1)),
            pod("p", 6, on="a", **on_gpu(1)),
        )
    )
    assert text.splitlines() == [
        "pod default/p is on node a",
        "  container main: 6 GiB of GPU1 Tesla T4 (GPU-a-1); 11 GiB of 15 GiB are taken, "
        "shared with 1 other pod",
        "  why: binpack: the tightest fit (10 GiB free on GPU1 without this pod), so that larger rooms "
        "stay whole",
    ]


def test_the_reason_is_that_of_the_policy_that_is_asked() -> None:
    bodies = (node("a", 15360, 15360), pod("x", 5, on="a", **on_gpu(1)))
    placed = explained("p", *bodies, pod("p", 6, on="a", **on_gpu(0)), policy=SPREAD)
    assert placed.why == "spread: the emptiest GPU (15 GiB free on GPU0 without this pod)"
    (waiting,) = explained("p", *bodies, pod("p", 6), policy=SPREAD).nodes
    assert [gpu.verdict.message for gpu in waiting.gpus] == [
        "fits, 15 GiB of 15 GiB free: the choice",
        "fits, 10 GiB of 15 GiB free",
    ]


def test_a_place_that_the_engine_would_not_choose_today_is_called_so() -> None:
    text = tell(
        explained(
            "p",
            node("a", 15360, 15360),
            pod("x", 5, on="a", **on_gpu(1)),
            pod("p", 6, on="a", **on_gpu(0)),
        )
    )
    assert "today it would be GPU1" in text


def test_a_pod_on_a_node_without_a_recorded_gpu_says_so() -> None:
    text = tell(explained("p", node("a", 15360, 15360), pod("p", 6, on="a")))
    assert "is on node a, but nobody recorded which GPU it got" in text
    assert "extender" in text


def test_pods_without_gpus_and_ended_pods_hold_none() -> None:
    assert "holds no GPU" in tell(explained("p", node("a", 15360), pod("p", 0, on="a")))
    assert "holds nothing" in tell(explained("p", node("a", 15360), pod("p", 3, on="a", phase="Failed")))


def test_a_cluster_without_nodes_is_called_so() -> None:
    assert "there are no nodes" in tell(explained("p", pod("p", 3)))


def test_explaining_changes_nothing() -> None:
    bodies = [node("a", 15360), pod("x", 5, on="a", **on_gpu(0)), pod("p", 6)]
    _nodes, pods = decode(bodies)
    cluster = remember(bodies)
    before = cluster.snapshots()
    for one in pods:
        explain(one, cluster)
    assert cluster.snapshots() == before
