"""What is sick, who holds it, and the sentence that says so and is read back."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.devices import DevicesFile
from gpuslice.devices.found import Found
from gpuslice.node.discovery.simulated import SimulatedDriver
from gpuslice.node.report.healthproblems import NAMELESS, HealthProblem, problems, read, recovered, say

HEAD = "apiVersion: gpuslice.io/v1alpha1\nkind: Devices\nspec: "
XID = "XID 79: the GPU has fallen off the bus"


def machine(gpus: str = "{model: A100-40, mig: [3g.20gb, 1g.5gb]}, {model: T4}") -> Found:
    return SimulatedDriver(DevicesFile.parse(f"{HEAD}{{gpus: [{gpus}]}}").machine("n1")).query()


def hurt(found: Found, index: int, reason: str = XID) -> Found:
    gpus = (replace(g, healthy=False, reason=reason) if g.index == index else g for g in found.gpus)
    return replace(found, gpus=tuple(gpus))


def test_a_sick_gpu_is_named_with_its_reason_and_its_pods() -> None:
    found = hurt(machine(), 1)
    uuid = found.gpus[1].uuid
    assert say(problems(found, {uuid: ["b/y", "a/x", "a/x"]}, (), ())) == (
        f"GPU 1 ({uuid}): {XID}, held by a/x, b/y"
    )
    assert say(problems(found, {}, (), ())) == f"GPU 1 ({uuid}): {XID}, held by nobody"


def test_a_sick_gpu_stands_for_its_mig_devices_and_their_pods() -> None:
    found = hurt(machine(), 0)
    (one,) = problems(found, {found.gpus[0].mig_devices[1].uuid: ["a/x"]}, (), ())
    assert (one.name, one.pods) == ("GPU 0", ("a/x",))


def test_a_sick_mig_device_is_named_alone() -> None:
    found = machine()
    gpu = found.gpus[0]
    sick = replace(gpu.mig_devices[0], healthy=False, reason="XID 94: contained memory error")
    found = replace(found, gpus=(replace(gpu, mig_devices=(sick, *gpu.mig_devices[1:])), found.gpus[1]))
    (one,) = problems(found, {sick.uuid: ["a/x"], gpu.mig_devices[1].uuid: ["a/y"]}, (), ())
    assert (
        str(one) == f"MIG {sick.profile} on GPU 0 ({sick.uuid}): XID 94: contained memory error, held by a/x"
    )


def test_a_gpu_that_was_lost_before_the_agent_came_keeps_what_was_said_of_it() -> None:
    """Its driver says no more than the index; who held it and is gone since holds it no more."""
    found = machine("{model: T4, count: 2}")
    uuid = found.gpus[1].uuid
    told = problems(hurt(found, 1), {uuid: ["a/x", "a/y"]}, (), ())
    lost = replace(found, gpus=found.gpus[:1], silent=((1, "does not answer"),))
    assert problems(lost, {}, told, {"a/x"}) == (HealthProblem("GPU 1", uuid, "does not answer", ("a/x",)),)
    assert recovered(lost, told) == ()
    assert problems(lost, {}, (), {"a/x"}) == (HealthProblem("GPU 1", NAMELESS, "does not answer"),)
    moved = replace(found, gpus=(replace(found.gpus[1], index=0),), silent=((1, "does not answer"),))
    assert problems(moved, {}, told, {"a/x"})[0].uuid == NAMELESS, "that one answers, under another index"


def test_what_is_well_again_has_recovered_and_what_is_gone_has_not() -> None:
    found = machine("{model: T4, count: 2}")
    told = (
        HealthProblem("GPU 0", found.gpus[0].uuid, XID),
        HealthProblem("GPU 1", found.gpus[1].uuid, XID),
        HealthProblem("MIG 1g.5gb on GPU 0", "MIG-gone", XID),
    )
    assert recovered(hurt(found, 1), told) == told[:1]


def test_other_peoples_sentences_say_nothing() -> None:
    assert read("kubelet has sufficient memory available") == ()
    assert read("") == ()


NAME = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
DEVICE = st.builds(
    HealthProblem,
    st.from_regex(r"(MIG [1-7]g\.[0-9]{1,2}gb(\+me)? on )?GPU [0-9]{1,2}", fullmatch=True),
    st.uuids().map(lambda one: f"GPU-{one}") | st.just(NAMELESS),
    st.sampled_from(
        ["XID 79: the GPU has fallen off the bus; no answer", "XID 48 (twice)", "a, held by b", ""]
    ),
    st.lists(st.builds("{}/{}".format, NAME, NAME), max_size=3).map(tuple),
)


@given(st.lists(DEVICE, max_size=4).map(tuple))
def test_what_is_said_can_be_read_back(sick: tuple[HealthProblem, ...]) -> None:
    assert read(say(sick)) == sick
