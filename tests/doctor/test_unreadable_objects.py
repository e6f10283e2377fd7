"""Commands that read a cluster name what they cannot read, and show the rest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from builders import agent_node, pod

from gpuslice import names
from gpuslice.cluster.reading import read_cluster, read_views
from gpuslice.cluster.state import Cluster
from gpuslice.doctor.checks import examine, memory
from gpuslice.doctor.look import look
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Node, Pod

HUGE = "9" * 4301


class Api:
    """An API server with one node of two GPUs and these pods."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.there = {"nodes": [msgspec.to_builtins(agent_node("n", 15, 15))], "pods": list(pods)}

    async def request(self, method: str, path: str, **_: object) -> Response:
        assert method == "GET"
        if path == "/version":
            return Response(200, b'{"gitVersion":"v1.36.0"}')
        items = self.there.get(path.rpartition("/")[2], [])
        return Response(200, msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items}))


def client(*pods: dict[str, Any]) -> Client:
    return Client(Api(*pods))  # type: ignore[arg-type]


def body(one: Pod) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(one)
    return made


def broken() -> dict[str, Any]:
    made = body(pod("bad", 4, node="n", index=1))
    made["spec"]["tolerations"] = "all"
    return made


async def test_inspect_counts_what_can_be_read_and_names_the_rest() -> None:
    good = body(pod("good", 3, node="n", index=0))
    liar = body(pod("liar", 2, node="n", annotations={names.GPUSHARE_ALLOCATION: f'{{"{HUGE}":{{"0":2}}}}'}))
    (view,), unreadable = await read_views(client(good, broken(), liar), None)
    assert [gpu.used_mib // 1024 for gpu in view.gpus] == [3, 4]
    assert [(share.name, share.mib) for share in view.pending] == [("liar", 2048)]
    assert unreadable == [
        "Pod default/bad cannot be read: Expected `array | null`, got `str` - at `$.spec.tolerations`"
    ]


async def test_whatever_one_object_raises_a_command_shows_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    believed = Cluster.set_pod

    def stumble(self: Cluster, one: Pod) -> None:
        if one.name == "odd":
            raise ValueError("nobody foresaw this")
        believed(self, one)

    monkeypatch.setattr(Cluster, "set_pod", stumble)
    api = client(body(pod("odd", 3, node="n", index=0)), body(pod("good", 3, node="n", index=0)))
    cluster = await read_cluster(api, await api.list(Node), await api.list(Pod))
    assert cluster.pod("uid-good") is not None
    assert cluster.quarantine.sentences() == [
        "Pod default/odd cannot be read: ValueError: nobody foresaw this"
    ]


async def test_doctor_names_what_cannot_be_read_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_early(_facts: object) -> list[object]:
        raise KeyError("gone")

    monkeypatch.setattr(memory, "check", ends_early)
    now = datetime.now(UTC)
    found = {finding.code: finding for finding in examine(await look(client(broken())), now)}
    assert found["unreadable"].object == "Pod/default/bad"
    assert "Expected `array | null`, got `str` - at `$.spec.tolerations`" in found["unreadable"].sentence
    assert found["unreadable"].remedy.startswith("kubectl -n default get pod bad -o yaml")
    assert "KeyError: 'gone'" in found["check-failed"].sentence
    assert len(found) > 2
