"""The engine against the slow reference, and the array view against the exact search."""

from __future__ import annotations

from dataclasses import replace

from builders import mig_device
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import allowed, possible

from gpuslice.devices.availability import OK, closed, sick
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.names import MIG_PREFIX, WHOLE_GPU
from gpuslice.placement.fleet import CODES, Fleet
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.node import place
from gpuslice.placement.policies import KNOWN
from gpuslice.placement.policies.binpack import BINPACK
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.spread import SPREAD
from gpuslice.placement.preempt import Holder, choose_victims
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS, WholeDevices
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import MemoryUnit

MIG = f"{MIG_PREFIX}1g.5gb"
UNITS = st.sampled_from([MemoryUnit(1024), MemoryUnit(256), MemoryUnit(1)])


@st.composite
def rooms(draw: st.DrawFn) -> list[FreeGpu]:
    found = []
    rule = draw(
        st.sampled_from(
            [ReplicaRule.ANY, ReplicaRule.OTHER_DEVICES, ReplicaRule.OTHER_DEVICES, ReplicaRule.ALONE]
        )
    )
    packed = draw(st.booleans())
    for index in range(draw(st.integers(1, 5))):
        total = draw(st.sampled_from([0, 4, 8, 15])) * 1024 + draw(st.sampled_from([0, 773]))
        holders = draw(st.integers(0, 2))
        used = draw(st.integers(0, 18)) * 1024 if holders else 0
        resource = draw(st.sampled_from([WHOLE_GPU, WHOLE_GPU, WHOLE_GPU, MIG]))
        parent = draw(st.sampled_from(["GPU-a", "GPU-b"])) if resource == MIG else ""
        replica_of = draw(st.sampled_from(["", "", "GPU-a", "GPU-b"]))
        found.append(
            FreeGpu(
                Gpu(
                    index,
                    f"{replica_of}::{index}" if replica_of else f"GPU-{index}",
                    "m",
                    total,
                    draw(st.sampled_from([OK, OK, OK, sick("XID 79"), closed("being partitioned")])),
                    resource,
                    parent,
                    # MIG devices need not be kept from sharing; a GPU that NVIDIA's replicas have can be.
                    draw(st.sampled_from([not parent, not parent, not parent, bool(parent)])),
                    rule if replica_of else ReplicaRule.ANY,
                    packed,
                ),
                total - used,
                holders,
            )
        )
    return found


@st.composite
def pod_requests(draw: st.DrawFn, unit: MemoryUnit) -> PodRequest:
    containers = []
    across = draw(st.sampled_from([1, 1, 1, 2]))
    for number in range(draw(st.integers(1, 3))):
        roles = [Role.APP, Role.APP, Role.SIDECAR] + ([Role.INIT] if across == 1 else [])
        role = draw(st.sampled_from(roles))
        if draw(st.integers(0, 3)) == 0:
            resource = draw(st.sampled_from([WHOLE_GPU, MIG]))
            count = draw(st.integers(1, 3))
            containers.append(ContainerRequest(f"c{number}", role, WholeDevices(resource), count))
        else:
            units = draw(st.integers(1, 9)) * (1024 // unit.mib)
            containers.append(ContainerRequest(f"c{number}", role, SHARES, units * across, across))
    # Init and sidecar containers come first, as in a pod.
    return PodRequest(tuple(sorted(containers, key=lambda c: c.role is Role.APP)))


@settings(max_examples=400, deadline=None)
@given(st.data(), UNITS, st.sampled_from(list(KNOWN.values())))
def test_engine_places_exactly_what_can_be_placed(
    data: st.DataObject, unit: MemoryUnit, policy: Policy
) -> None:
    """A pod is placed if and only if some assignment exists, and the one chosen breaks no rule."""
    node = data.draw(rooms())
    request = data.draw(pod_requests(unit))
    outcome = place(request, unit, node, policy)
    if isinstance(outcome, Verdict):
        assert not outcome.ok
        assert not possible(request, unit, node)
    else:
        assert allowed(outcome, request, unit, node)
        assert {g.container for g in outcome.grants} == {c.name for c in request.containers}


@settings(max_examples=300, deadline=None)
@given(st.data(), UNITS)
def test_arrays_and_exact_search_give_the_same_verdict(data: st.DataObject, unit: MemoryUnit) -> None:
    """Filtering the whole cluster at once says about each node what asking it alone says, reason included."""
    fleet = Fleet()
    request = data.draw(pod_requests(unit))
    for number in range(data.draw(st.integers(1, 4))):
        node = data.draw(rooms())
        name = f"n{number}"
        gpus = tuple(replace(r.gpu, uuid=f"{name}-{r.gpu.uuid}", packed=False) for r in node)
        limits = data.draw(
            st.sampled_from([{}, {"units": 3}, {"whole": {WHOLE_GPU: 1}}, {"whole": {MIG: 1}}])
        )
        fleet.set_node(name, NodeGpus(gpus, unit), **limits)
        for room in node:
            if room.holders:
                share = Charge(f"{name}-{room.gpu.uuid}", room.gpu.memory_mib - room.free_mib, whole=False)
                fleet.charge(name, [share], PodRequest())
    names = [*fleet.names(), "ghost"]
    codes = fleet.codes(request)[fleet.rows(names)]
    for name, number in zip(names, codes, strict=True):
        assert CODES[number] is fleet.verdict(request, name).code, name


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_charging_and_releasing_leaves_nothing_behind(data: st.DataObject) -> None:
    """After any order of charges and releases the rooms are those of the pods that are left."""
    unit = MemoryUnit(1024)
    fleet = Fleet()
    fleet.set_node(
        "n",
        NodeGpus((*(Gpu(i, f"g{i}", "m", 16000) for i in range(3)), mig_device(3, "n", "1g.5gb")), unit),
        units=45,
        whole={WHOLE_GPU: 3, MIG: 1},
    )
    before = fleet.free_gpus("n")
    held: list[tuple[Allocation, PodRequest]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if held and data.draw(st.booleans()):
            allocation, request = held.pop(data.draw(st.integers(0, len(held) - 1)))
            fleet.release("n", allocation.charges(request), request)
            continue
        request = data.draw(pod_requests(unit))
        outcome = fleet.place(request, "n")
        if isinstance(outcome, Allocation):
            fleet.charge("n", outcome.charges(request), request)
            held.append((outcome, request))
            assert all(room.free_mib >= 0 for room in fleet.free_gpus("n"))
    for allocation, request in held:
        fleet.release("n", allocation.charges(request), request)
    assert fleet.free_gpus("n") == before
    assert fleet.place(PodRequest((ContainerRequest("c", Role.APP, WHOLE_GPUS, 3),)), "n")


def share(units: int, **more: int) -> PodRequest:
    return PodRequest((ContainerRequest("c", Role.APP, SHARES, units, **more),))


GIB = MemoryUnit(1024)


def room(index: int, free: int, total: int = 16276, holders: int | None = None) -> FreeGpu:
    used = holders if holders is not None else int(free < total)
    return FreeGpu(Gpu(index, f"GPU-{index}", "m", total), free, used)


def test_best_fit_takes_the_tightest_gpu_of_the_design_document() -> None:
    """gpushare's example: free {12207, 8138, 4069, 16276} MiB, a request of 8138 goes to GPU 1."""
    node = [room(0, 12207), room(1, 8138), room(2, 4069), room(3, 16276)]
    outcome = place(share(8138), MemoryUnit(1), node)
    assert isinstance(outcome, Allocation)
    assert outcome.gpus == ("GPU-1",)


def test_ties_go_to_the_lowest_index() -> None:
    outcome = place(share(3), GIB, [room(0, 5000), room(1, 5000)])
    assert isinstance(outcome, Allocation)
    assert outcome.gpus == ("GPU-0",)


def test_spread_takes_the_emptiest_gpu() -> None:
    outcome = place(share(3), GIB, [room(0, 5000), room(1, 16276), room(2, 9000)], SPREAD)
    assert isinstance(outcome, Allocation)
    assert outcome.gpus == ("GPU-1",)


def test_the_sum_of_a_node_is_not_enough() -> None:
    """9 GiB on each of two GPUs is no place for 10: the reason is gpushare's own sentence."""
    verdict = place(share(10), GIB, [room(0, 9 * 1024), room(1, 9 * 1024)])
    assert isinstance(verdict, Verdict)
    assert verdict.message == "Insufficient GPU Memory in one device"
    assert verdict.numbers == {"wanted_mib": 10240, "largest_free_mib": 9216}


def test_an_overcommitted_gpu_takes_nothing() -> None:
    """Defect 9.A.1: gpushare's unsigned arithmetic made 2**64 of it and let a million units in."""
    verdict = place(share(1_000_000), GIB, [room(0, -2048), room(1, 15 * 1024)])
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.INSUFFICIENT
    fleet = Fleet()
    fleet.set_node("n", NodeGpus((Gpu(0, "g", "m", 15 * 1024),), GIB))
    fleet.charge("n", [Charge("g", 20 * 1024, whole=False)], share(20))
    assert fleet.free_gpus("n")[0].free_mib == -5 * 1024
    assert CODES[fleet.codes(share(1))[fleet.rows(["n"])[0]]] is Code.INSUFFICIENT


def test_a_claim_beyond_32_bits_does_not_wrap_round() -> None:
    fleet = Fleet()
    fleet.set_node("n", NodeGpus((Gpu(0, "g", "m", 15 * 1024),), GIB))
    huge = Charge("g", (2**31 - 1) * 1024, whole=False)
    fleet.charge("n", [huge], share(2**31 - 1))
    assert fleet.free_gpus("n")[0].free_mib == -(2**31)
    fleet.release("n", [huge], share(2**31 - 1))
    assert fleet.free_gpus("n")[0].free_mib == 15 * 1024


def test_a_whole_gpu_and_shares_never_meet() -> None:
    whole = PodRequest((ContainerRequest("c", Role.APP, WHOLE_GPUS, 1),))
    node = [room(0, 15 * 1024, holders=1), room(1, 16276)]
    outcome = place(whole, GIB, node)
    assert isinstance(outcome, Allocation)
    assert outcome.gpus == ("GPU-1",)
    verdict = place(whole, GIB, [room(0, 15 * 1024, holders=1)])
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.NO_WHOLE_GPU


def test_scores_prefer_the_tightest_gpu_of_the_cluster() -> None:
    """Bin-packing across nodes (defect 9.A.14: gpushare packed only within one)."""
    fleet = Fleet()
    for name in ("empty", "half", "tight"):
        fleet.set_node(name, NodeGpus((Gpu(0, f"{name}0", "m", 15360), Gpu(1, f"{name}1", "m", 15360)), GIB))
    fleet.charge("half", [Charge("half0", 8 * 1024, whole=False)], share(8))
    fleet.charge("tight", [Charge("tight1", 12 * 1024, whole=False)], share(12))
    empty, half, tight = fleet.scores(share(3), ["empty", "half", "tight"], BINPACK)
    assert empty < half < tight <= 1000
    empty, half, tight = fleet.scores(share(3), ["empty", "half", "tight"], SPREAD)
    assert empty > half > tight


def test_node_rows_survive_removal_and_growth() -> None:
    fleet = Fleet()
    for number in range(40):
        fleet.set_node(f"n{number}", NodeGpus((Gpu(0, f"g{number}", "m", 1024 * number),), GIB))
    fleet.drop_node("n30")
    fleet.set_node("big", NodeGpus(tuple(Gpu(i, f"b{i}", "m", 40 * 1024) for i in range(16)), GIB))
    fitting = [n for n in fleet.names() if fleet.verdict(share(35), n).ok]
    assert fitting == ["big", *[f"n{i}" for i in range(35, 40)]]
    assert fleet.verdict(share(1), "n30").code is Code.NODE_NOT_FOUND


def holder(uid: str, priority: int, gpu: str, gib: int) -> Holder:
    return Holder(uid, priority, (Charge(gpu, gib * 1024, whole=False),))


def test_who_is_leaving_anyhow_costs_nothing_however_important() -> None:
    rooms = [room(i, 5 * 1024, 15 * 1024) for i in range(2)]
    stays, leaves = (
        holder("stays", 1, "GPU-0", 10),
        replace(holder("leaves", 8, "GPU-1", 10), terminating=True),
    )
    assert choose_victims(share(12), GIB, rooms, [stays, leaves], 9) == (leaves,)


def test_victims_free_one_gpu_with_the_fewest_and_least_important_pods() -> None:
    node = [room(0, 0), room(1, 0), room(2, 0)]
    holders = [
        holder("a1", 5, "GPU-0", 8), holder("a2", 5, "GPU-0", 7),
        holder("b1", 1, "GPU-1", 4), holder("b2", 1, "GPU-1", 11),
        holder("c1", 9, "GPU-2", 15),
    ]  # fmt: skip
    victims = choose_victims(share(9), GIB, node, holders, priority=10)
    assert [v.uid for v in victims or ()] == ["b2"]
    assert choose_victims(share(9), GIB, node, holders, priority=1) is None
    assert choose_victims(share(9), GIB, [room(0, 10 * 1024)], holders, priority=10) == ()


def test_victims_on_different_gpus_are_never_added_up() -> None:
    """kube-scheduler's own preemption would: it only knows the node's sum (defect 9.A.14)."""
    node = [room(0, 0, holders=2), room(1, 0, holders=2)]
    holders = [
        holder("low0", 0, "GPU-0", 5), holder("high0", 100, "GPU-0", 10),
        holder("low1", 0, "GPU-1", 5), holder("high1", 100, "GPU-1", 10),
    ]  # fmt: skip
    assert choose_victims(share(8), GIB, node, holders, priority=50) is None


def test_a_whole_gpu_is_freed_of_all_its_pods() -> None:
    whole = PodRequest((ContainerRequest("c", Role.APP, WHOLE_GPUS, 1),))
    node = [room(0, 6 * 1024, holders=2), room(1, 1024, holders=1)]
    holders = [holder("x", 0, "GPU-0", 5), holder("y", 0, "GPU-0", 5), holder("z", 3, "GPU-1", 15)]
    # One more important victim is worse than two unimportant ones.
    node = [room(0, 16276 - 10240, holders=2), room(1, 16276 - 15360, holders=1)]
    victims = choose_victims(whole, GIB, node, holders, priority=10)
    assert sorted(v.uid for v in victims or ()) == ["x", "y"]
