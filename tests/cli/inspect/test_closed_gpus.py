"""A GPU that is being partitioned, or changes its use, is closed and not unhealthy: in every place where one can look."""

from __future__ import annotations

import json

import msgspec
import pytest
from cli_world import Json, decode, node, pod, remember

from gpuslice import names
from gpuslice.cli.inspect import migtable
from gpuslice.cli.inspect.report import report
from gpuslice.cluster.annotations import decode_gpus, encode_gpus
from gpuslice.devices.availability import OK, Availability, closed, sick
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.node.report.metrics import render
from gpuslice.observe.metrics import Metrics
from gpuslice.placement.verdict import Code
from gpuslice.scheduler.explaining import explain
from gpuslice.scheduler.summary import summed_up
from gpuslice.units import GIB

CUT = closed("being partitioned into MIG devices")
LOST = sick("XID 79")
SMALL = f"{names.MIG_PREFIX}1g.5gb"


def gpus(*availabilities: Availability, mig: bool = False) -> NodeGpus:
    kind = {"resource": SMALL, "parent": "GPU", "shareable": False} if mig else {}
    return NodeGpus(
        tuple(Gpu(i, f"GPU-{i}", "A100", 40536, a, **kind) for i, a in enumerate(availabilities)),  # type: ignore[arg-type]
        GIB,
    )


def published(offered: NodeGpus) -> Json:
    body = node("a", *(gpu.memory_mib for gpu in offered.gpus))
    body["metadata"]["annotations"] = encode_gpus(offered)
    body["status"]["allocatable"] |= dict.fromkeys(offered.resources, "9")
    return body


def test_the_annotation_says_it_so_that_older_readers_give_it_to_nobody() -> None:
    records = json.loads(encode_gpus(gpus(OK, CUT, LOST))[names.NODE_GPUS])
    said = [(r.get("healthy", True), r.get("reason", ""), r.get("closed", False)) for r in records]
    assert said == [(True, "", False), (False, CUT.reason, True), (False, "XID 79", False)]
    assert decode_gpus(encode_gpus(gpus(OK, CUT, LOST))) == gpus(OK, CUT, LOST)


def test_an_annotation_of_an_agent_that_does_not_know_the_word_is_read() -> None:
    text = (
        '[{"index":0,"uuid":"GPU-0","model":"A100","mib":40536},'
        '{"index":1,"uuid":"GPU-1","model":"A100","mib":40536,"healthy":false,"reason":"XID 79"}]'
    )
    assert decode_gpus({names.NODE_GPUS: text}) == gpus(OK, LOST)


@pytest.mark.parametrize(
    ("availabilities", "code"),
    [
        ((CUT, LOST), Code.CLOSED),
        ((LOST, CUT), Code.CLOSED),
        ((LOST, LOST), Code.UNHEALTHY),
        ((CUT, CUT), Code.CLOSED),
    ],
)
@pytest.mark.parametrize("resource", [names.GPU_MEM, names.WHOLE_GPU])
def test_filter_bind_and_explain_tell_what_is_closed_from_what_is_unhealthy(
    availabilities: tuple[Availability, ...], code: Code, resource: str
) -> None:
    waiting = pod("p", 0)
    waiting["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    cluster = remember([published(gpus(*availabilities))])
    (wanted,) = decode([waiting])[1]
    request = cluster.request_of(wanted)
    refused = cluster.filter(request, ["a"]).refused["a"]
    assert refused.code is code
    assert ("closed" in refused.message) == (code is Code.CLOSED)
    assert cluster.check(request, "a").code is code
    (verdict,) = explain(wanted, cluster).nodes
    assert verdict.code is code
    assert [(gpu.verdict.code, gpu.verdict.message) for gpu in verdict.gpus] == [
        (Code.CLOSED, "closed: being partitioned into MIG devices")
        if availability == CUT
        else (Code.UNHEALTHY, "unhealthy: XID 79")
        for availability in availabilities
    ]


def test_inspect_calls_it_closed_and_healthy() -> None:
    views = remember([published(gpus(OK, CUT, LOST))]).snapshots()
    (shown,) = json.loads(msgspec.json.encode(report(views)))["nodes"]
    assert [(g["availability"], g["healthy"], g["reason"]) for g in shown["gpus"]] == [
        ("ok", True, ""),
        ("closed", True, "being partitioned into MIG devices"),
        ("unhealthy", False, "XID 79"),
    ]


def test_the_table_of_mig_devices_calls_it_closed_and_says_who_holds_it() -> None:
    record = {names.ALLOCATION: '{"main":{"GPU-2":40536}}'}
    holder = pod("train", 0, on="a", annotations=record)
    holder["spec"]["containers"][0]["resources"] = {"limits": {SMALL: "1"}}
    views = remember([published(gpus(OK, CUT, CUT, LOST, mig=True)), holder]).snapshots()
    assert "1/4, 2 closed, 1 unhealthy" in migtable.table(views, details=False)
    details = migtable.table(views, details=True).splitlines()
    assert [line.rpartition("  ")[2] for line in details[-4:]] == [
        "-",
        "closed: being partitioned into MIG devices",
        "default/train (closed: being partitioned into MIG devices)",
        "unhealthy: XID 79",
    ]


async def test_metrics_of_scheduler_and_agent_count_it_apart() -> None:
    offered = gpus(OK, CUT, CUT, LOST)
    told = (await summed_up(remember([published(offered)]), Metrics())).decode().splitlines()
    assert "gpuslice_cluster_gpus_unhealthy 1.0" in told
    assert "gpuslice_cluster_gpus_closed 2.0" in told
    agent = render(offered, (), {}, {}).decode()
    for index, (healthy, shut) in enumerate(((1, 0), (1, 1), (1, 1), (0, 0))):
        labels = f'{{gpu="{index}",model="A100",uuid="GPU-{index}"}}'
        assert f"gpuslice_gpu_healthy{labels} {healthy}.0" in agent
        assert f"gpuslice_gpu_closed{labels} {shut}.0" in agent
