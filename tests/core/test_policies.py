"""A third policy is one object that is known by its name: everything else finds it there.

The one made here is fragmentation gradient descent in small (Weng et al., USENIX ATC '23): it holds the sizes
that pods of this cluster typically ask for and spoils as little as it can for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.placement.fleet import Fleet
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.node import place
from gpuslice.placement.policies import KNOWN, find
from gpuslice.placement.policies.nodes import Nodes, Scores
from gpuslice.placement.policies.policy import Gpus, Policy
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import SHARES
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import GIB


@dataclass(frozen=True)
class Gradient(Policy):
    """`typical`: MiB that pods ask for, and which part of them does."""

    typical: Mapping[int, float]
    name = "gradient"
    summary = "spoil the least for the pods that are usual here"

    def wasted(self, free: Sequence[int]) -> float:
        """MiB of one node that the usual pods cannot use."""
        return sum(
            share * sum(mib for mib in free if mib < size or max(free) < size)
            for size, share in self.typical.items()
        )

    def order(self, gpus: Gpus) -> Sequence[int]:
        def wasted(at: int) -> float:
            return self.wasted([mib - gpus.need * (at == i) for i, mib in enumerate(gpus.free)])

        return sorted(range(gpus.first, gpus.count), key=wasted)

    def device(self, siblings_in_use: int) -> int:
        return 0

    def score(self, nodes: Nodes) -> Scores:
        scores = []
        for free, unit in zip(nodes.free.T.tolist(), nodes.unit.tolist(), strict=True):
            need = unit * nodes.request.units
            ways = (
                [mib - need * (i == at) for i, mib in enumerate(free)]
                for at, room in enumerate(free)
                if room >= need
            )
            scores.append(1000 - int(min(map(self.wasted, ways)) - self.wasted(free)) * 1000 // need)
        return np.clip(np.array(scores, np.int64), 0, 1000)

    def reason(self, free: str) -> str:
        return f"the least is spoilt ({free} without this pod)"


GRADIENT = Gradient({5 * 1024: 1.0})


def share(units: int) -> PodRequest:
    return PodRequest((ContainerRequest("main", Role.APP, SHARES, units),))


@pytest.mark.parametrize(("policy", "gpu"), [("binpack", "five"), ("spread", "ten"), ("gradient", "seven")])
def test_each_policy_chooses_its_own_gpu(policy: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, GRADIENT.name, GRADIENT)
    rooms = [
        FreeGpu(Gpu(index, name, "m", 10 * 1024), gib * 1024, holders=1)
        for index, (name, gib) in enumerate({"ten": 10, "five": 5, "seven": 7}.items())
    ]
    chosen = place(share(2), GIB, rooms, find(policy))
    assert not isinstance(chosen, Verdict)
    assert chosen.gpus == (gpu,)


def test_each_policy_chooses_its_own_node() -> None:
    fleet = Fleet()
    for name, gib in (("ten", 10), ("five", 5), ("seven", 7)):
        fleet.set_node(name, NodeGpus((Gpu(0, name, "m", gib * 1024),)))
    names = fleet.names()

    def best(policy: Policy) -> list[str]:
        scores = fleet.scores(share(2), names, policy)
        return [name for name, score in zip(names, scores, strict=True) if score == max(scores)]

    assert best(GRADIENT) == ["seven", "ten"]
    assert (best(find("binpack")), best(find("spread"))) == (["five"], ["ten"])


def test_of_gpus_with_equally_much_free_the_first_is_taken_whatever_the_policy() -> None:
    rooms = [FreeGpu(Gpu(index, f"g{index}", "m", 10 * 1024), 9 * 1024, holders=1) for index in range(3)]
    for policy in (*KNOWN.values(), GRADIENT):
        chosen = place(share(2), GIB, rooms, policy)
        assert not isinstance(chosen, Verdict)
        assert chosen.gpus == ("g0",), policy.name


def test_an_unknown_policy_is_told_which_there_are() -> None:
    with pytest.raises(InputError, match=r"^spec\.policy: 'x' is not one of the policies binpack, spread$"):
        find("x", field="spec.policy")
