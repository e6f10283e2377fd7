"""A GPU is used in one way at a time: what is announced otherwise has to wait until it is free."""

from __future__ import annotations

import pytest

from gpuslice.config.devices import DevicesFile
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.devices.availability import closed
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.devices.offered import offered
from gpuslice.devices.sharing import MigStrategy
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.grants.held import Held
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.transition import CHANGING
from gpuslice.node.kubelet.messages import ContainerDevices, ContainerResources, PodResources
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.requests.kinds import REPLICAS, SHARES, WHOLE_GPUS, Kind

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: {gpus: "
FOUND = SimulatedDriver(
    DevicesFile.parse(f"{HEAD}[{{model: T4, uuid: GPU-a}}, {{model: T4, uuid: GPU-b}}]}}").machine("n")
).query()


def as_announced(sharing: str) -> NodeGpus:
    config = NvidiaConfig.parse(f"sharing: {{timeSlicing: {{{sharing}}}}}" if sharing else "")
    return NodeGpus(offered(FOUND, MigStrategy.NONE, config.sharing))


PLAIN = as_announced("")
FOUR = as_announced("resources: [{name: gpu, replicas: 4}]")
TWO = as_announced("resources: [{name: gpu, replicas: 2}]")
RENAMED = as_announced("renameByDefault: true, resources: [{name: gpu, replicas: 4}]")


def healthy(ledger: Ledger, kind: Kind = WHOLE_GPUS) -> list[str]:
    """The ids that a kubelet may give out."""
    return [device_id for device_id, well in ledger.ids.listed(kind) if well]


def give(ledger: Ledger, kind: Kind, *ids: str) -> Held:
    held = ledger.allocate(kind, ids, {}, 0.0)
    assert isinstance(held, Held), held
    return held


def end(ledger: Ledger) -> None:
    """A kubelet has no pods any more, long after."""
    ledger.reconcile([], {}, ledger.calls + 1, 1000.0, fresh=True)


def listed(kind: Kind, *ids: str) -> list[PodResources]:
    """What a kubelet says of a pod."""
    held = ContainerResources("c", (ContainerDevices(kind.resource, ids),))
    return [PodResources("default", "a", (held,))]


A_FREE = [f"GPU-a::{number}" for number in range(4)]
B_FREE = [f"GPU-b::{number}" for number in range(4)]


@pytest.mark.parametrize("kind", [SHARES, WHOLE_GPUS])
def test_replicas_of_a_gpu_in_use_wait_until_it_is_free(kind: Kind) -> None:
    ledger = Ledger(PLAIN)
    (gpu, _) = PLAIN.gpus
    mine = next(iter(ledger.ids.of(kind, gpu)))
    give(ledger, kind, mine)
    ledger.set_gpus(FOUR, PLAIN.gpus)
    assert healthy(ledger) == B_FREE
    assert healthy(ledger, SHARES) == []
    kept = ledger.gpus.find("GPU-a")
    assert kept is not None, "who holds it is still known"
    assert (kept.index, kept.availability) == (0, closed(CHANGING))
    refused = ledger.allocate(WHOLE_GPUS, ["GPU-a::1"], {}, 0.0)
    assert refused == Verdict(Code.CLOSED, f"GPU 3 gets no container; it is closed: {CHANGING}")
    end(ledger)
    assert healthy(ledger) == [*A_FREE, *B_FREE]
    assert ledger.gpus == FOUR


def test_a_gpu_of_which_a_replica_is_held_is_whole_when_that_has_ended() -> None:
    ledger = Ledger(FOUR)
    give(ledger, WHOLE_GPUS, "GPU-a::3")
    ledger.set_gpus(PLAIN, PLAIN.gpus)
    assert healthy(ledger) == ["GPU-b"]
    assert {ledger.ids.locate(SHARES, one) for one in healthy(ledger, SHARES)} == {"GPU-b"}
    end(ledger)
    assert healthy(ledger) == ["GPU-a", "GPU-b"]


def test_fewer_replicas_wait_for_the_one_that_goes() -> None:
    ledger = Ledger(FOUR)
    give(ledger, WHOLE_GPUS, "GPU-a::3")
    give(ledger, WHOLE_GPUS, "GPU-b::1")
    ledger.set_gpus(TWO, PLAIN.gpus)
    assert healthy(ledger) == ["GPU-b::0", "GPU-b::1"], "what is held of GPU b is one of the two"
    end(ledger)
    assert healthy(ledger) == ["GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b::1"]


def test_another_name_waits_too() -> None:
    ledger = Ledger(FOUR)
    give(ledger, WHOLE_GPUS, "GPU-a::0")
    ledger.set_gpus(RENAMED, PLAIN.gpus)
    assert (healthy(ledger), healthy(ledger, REPLICAS)) == ([], B_FREE)
    end(ledger)
    assert healthy(ledger, REPLICAS) == [*A_FREE, *B_FREE]


@pytest.mark.parametrize(
    ("announced", "kind", "mine", "open_"),
    [
        (FOUR, SHARES, "", B_FREE),
        (FOUR, WHOLE_GPUS, "GPU-a", B_FREE),
        (PLAIN, WHOLE_GPUS, "GPU-a::2", ["GPU-b"]),
        (TWO, WHOLE_GPUS, "GPU-a::2", ["GPU-b::0", "GPU-b::1"]),
        (RENAMED, WHOLE_GPUS, "GPU-a::2", []),
    ],
)
def test_an_agent_that_starts_anew_learns_it_from_the_kubelet(
    announced: NodeGpus, kind: Kind, mine: str, open_: list[str]
) -> None:
    """The configuration was changed while it was away."""
    before = Ledger(PLAIN)
    mine = mine or next(iter(before.ids.of(SHARES, PLAIN.gpus[0])))
    ledger = Ledger(announced)
    ledger.set_gpus(announced, PLAIN.gpus)
    ledger.reconcile(listed(kind, mine), {}, 0, 0.0, fresh=True)
    assert healthy(ledger) == open_
    assert [set(holding.gpus) for holding in ledger.held()] == [{mine if kind is not SHARES else "GPU-a"}]
    end(ledger)
    assert ledger.gpus == announced


def test_what_has_its_place_in_the_new_list_closes_nothing() -> None:
    ledger = Ledger(TWO)
    give(ledger, WHOLE_GPUS, "GPU-a::0")
    ledger.set_gpus(FOUR, PLAIN.gpus)
    assert healthy(ledger) == [*A_FREE, *B_FREE]


def test_a_gpu_that_is_gone_is_not_waited_for() -> None:
    ledger = Ledger(PLAIN)
    give(ledger, WHOLE_GPUS, "GPU-a")
    left: tuple[Gpu, ...] = PLAIN.gpus[1:]
    ledger.set_gpus(NodeGpus(left), left)
    assert ledger.gpus == NodeGpus(left)
