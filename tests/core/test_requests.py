"""What a pod spec means: limits, roles, arithmetic, and one clear sentence for everything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice import names
from gpuslice.errors import InputError
from gpuslice.kube.wire import PodSpec
from gpuslice.requests.allocation import Allocation, Charge, Grant
from gpuslice.requests.pod import PodRequest, Role, peak, read_request


def spec(*containers: dict[str, object], init: list[dict[str, object]] | None = None) -> PodSpec:
    return msgspec.convert({"containers": list(containers), "initContainers": init or []}, PodSpec)


def ask(name: str, mem: object = None, gpu: object = None, **more: object) -> dict[str, object]:
    limits = {names.GPU_MEM: mem, names.WHOLE_GPU: gpu}
    return {"name": name, "resources": {"limits": {k: v for k, v in limits.items() if v is not None}}, **more}


def test_every_container_keeps_its_own_share() -> None:
    request = read_request(spec(ask("a", 3), ask("b"), ask("c", "5")), {})
    assert [(c.name, c.units) for c in request.containers] == [("a", 3), ("c", 5)]
    assert request.units == 8


def test_a_pod_without_gpu_is_an_empty_request() -> None:
    assert not read_request(spec(ask("a"), ask("b", 0)), {})


def test_requests_without_limits_count() -> None:
    """Defect 9.A.19: gpushare looked at limits of app containers only."""
    container = {"name": "a", "resources": {"requests": {names.GPU_MEM: "4"}}}
    assert read_request(msgspec.convert({"containers": [container]}, PodSpec), {}).units == 4


def test_init_containers_lend_and_sidecars_keep() -> None:
    """kubelet: max over init containers, plus the sidecars that run beside them."""
    init = [ask("i1", 6), ask("side", 2, restartPolicy="Always"), ask("i2", 5)]
    request = read_request(spec(ask("a", 3), init=init), {})
    assert [c.role for c in request.containers] == [Role.INIT, Role.SIDECAR, Role.INIT, Role.APP]
    assert request.units == 7  # side + i2
    assert peak([(Role.INIT, 6), (Role.APP, 3)]) == 6


def test_gpu_count_asks_for_no_gpu() -> None:
    """As in gpushare it is informative: the scheduler subtracts it like any other resource."""
    container = {"name": "a", "resources": {"limits": {names.GPU_COUNT: 1}}}
    assert not read_request(msgspec.convert({"containers": [container]}, PodSpec), {})


def test_shares_over_several_gpus_are_even() -> None:
    request = read_request(spec(ask("a", 10)), {names.SHARES_ACROSS: "2"})
    assert (request.containers[0].across, request.containers[0].units_per_gpu) == (2, 5)


@pytest.mark.parametrize(
    ("container", "annotations", "words"),
    [
        (ask("a", -1), {}, "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: -1 is negative"),
        (ask("a", "1.5"), {}, "not a whole number"),
        (ask("a", "500m"), {}, "not a whole number"),
        (ask("a", "10G"), {}, "more than any GPU has"),
        (ask("a", 2**40), {}, "more than any GPU has"),
        (ask("a", "five"), {}, "is not a quantity"),
        (ask("a", ""), {}, "is not a quantity"),
        (ask("a", 2, 1), {}, "asks for aliyun.com/gpu-mem and nvidia.com/gpu"),
        (ask("a", 5), {names.SHARES_ACROSS: "2"}, "cannot be spread evenly over 2 GPUs"),
        (ask("a", 4), {names.SHARES_ACROSS: "0"}, "not a number of GPUs from 1 to"),
        (ask("a", 4), {names.SHARES_ACROSS: "two"}, "is not a quantity"),
    ],
)
def test_bad_requests_name_the_field(
    container: dict[str, object], annotations: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_request(spec(container), annotations)
    assert words in str(caught.value)


def test_an_init_container_cannot_hold_shares_of_several_gpus() -> None:
    with pytest.raises(InputError, match="init container 'i' cannot hold shares of several GPUs"):
        read_request(spec(ask("a", 4), init=[ask("i", 4)]), {names.SHARES_ACROSS: "2"})


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.integers(), st.floats(allow_nan=False), st.text(max_size=12), st.from_regex(r"[0-9.eEmKG+-]{1,8}")
    ),
    st.text(max_size=4),
)
def test_whatever_is_written_gives_a_request_or_one_sentence(amount: object, across: str) -> None:
    """Fuzz: no other exception, and never a negative or fractional share."""
    document = {"containers": [ask("a", amount)]}
    try:
        pod = msgspec.convert(document, PodSpec)
    except msgspec.ValidationError:
        return
    try:
        request = read_request(pod, {names.SHARES_ACROSS: across})
    except InputError as error:
        assert "\n" not in str(error).replace(repr(amount), "").replace(repr(across), "")
        return
    assert isinstance(request, PodRequest)
    assert all(isinstance(c.units, int) and 0 < c.units < 2**31 for c in request.containers)


def test_charges_follow_the_pods_life() -> None:
    """An init container lends its share to the containers after it, on the same GPU."""
    request = read_request(spec(ask("a", 3), ask("b", 2), init=[ask("i", 4)]), {})
    grants = (Grant("i", "g", 4096), Grant("a", "g", 3072), Grant("b", "g", 2048))
    assert Allocation(grants).charges(request) == (Charge("g", 5120, whole=False),)
