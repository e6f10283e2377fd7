"""Ids name their GPU in both directions and their list fits into what a kubelet takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.availability import of_health
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.node.grants.deviceids import MESSAGE_LIMIT, DeviceIds, check_unit, message_size, smallest_unit
from gpuslice.node.kubelet.messages import Device
from gpuslice.node.kubelet.wire import encode_devices
from gpuslice.requests.kinds import SHARES, WHOLE_GPUS
from gpuslice.units import GIB, MemoryUnit


def node(*sizes: int, unit: MemoryUnit = GIB, sick: tuple[int, ...] = ()) -> NodeGpus:
    return NodeGpus(
        tuple(
            Gpu(i, f"GPU-{i:08x}-aaaa", "T4", mib, of_health(i not in sick, "lost"))
            for i, mib in enumerate(sizes)
        ),
        unit,
    )


@given(st.lists(st.integers(0, 90_000), max_size=8))
def test_every_id_leads_back_to_its_gpu(sizes: list[int]) -> None:
    """gpushare 9.B.8: an id says which physical GPU it is a part of; no two ids are the same."""
    ids = DeviceIds(node(*sizes))
    seen: set[str] = set()
    for kind in (SHARES, WHOLE_GPUS):
        for gpu in ids.gpus.gpus:
            mine = list(ids.of(kind, gpu))
            assert all(ids.gpu(kind, device_id) == gpu for device_id in mine)
            assert len(mine) == (ids.gpus.units_of(gpu) if kind is SHARES else 1)
            assert seen.isdisjoint(mine)
            seen.update(mine)


def test_ids_do_not_depend_on_the_index() -> None:
    """gpushare 9.B.6 and 9: GPUs that change their numbers at a reboot keep their ids."""
    before, after = node(15109, 15109), node(15109, 15109).gpus
    turned = DeviceIds(NodeGpus((Gpu(1, after[0].uuid, "T4", 15109), Gpu(0, after[1].uuid, "T4", 15109))))
    for gpu in before.gpus:
        for device_id in DeviceIds(before).of(SHARES, gpu):
            found = turned.gpu(SHARES, device_id)
            assert found is not None
            assert found.uuid == gpu.uuid


@pytest.mark.parametrize(
    "text", ["", "-", "zzzz-0", "x", "{tag}-", "{tag}-e", "{tag}-00", "{tag}-A", "{tag}--1"]
)
def test_foreign_ids_are_recognised(text: str) -> None:
    """14 units: 0..d; anything else was never given out."""
    ids = DeviceIds(node(15109))
    tag = next(ids.of(SHARES, ids.gpus.gpus[0])).partition("-")[0]
    assert ids.gpu(SHARES, text.format(tag=tag)) is None


@given(st.lists(st.integers(0, 60_000), max_size=4), st.sampled_from([64, 256, 1024]))
def test_message_size_is_exact(sizes: list[int], mib: int) -> None:
    gpus = node(*sizes, unit=MemoryUnit(mib))
    sent = encode_devices([Device(i, healthy) for i, healthy in DeviceIds(gpus).listed(SHARES)])
    assert len(sent) == message_size(gpus)


def test_finest_unit_of_the_largest_machine() -> None:
    """gpushare 9.B.4: the list must fit into 4 MiB: 8 GPUs of 192 GiB can be cut into 8 MiB, no finer."""
    sizes = [192 * 1024] * 8
    fits = node(*sizes, unit=MemoryUnit(8))
    check_unit(fits)
    assert smallest_unit(node(*sizes)) == MemoryUnit(8)
    assert message_size(fits) <= MESSAGE_LIMIT
    with pytest.raises(InputError, match=r"MiB is too fine for this node.* use 8MiB or more"):
        check_unit(node(*sizes, unit=MemoryUnit(4)))


@pytest.mark.parametrize("sick", [(3,), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_sick_gpus_never_make_the_list_too_large(sick: tuple[int, ...]) -> None:
    """The word for unhealthy is longer; healthy ids are all told whatever is left out."""
    gpus = node(*[192 * 1024] * 8, unit=MemoryUnit(8), sick=sick)
    listed = DeviceIds(gpus).listed(SHARES)
    assert len(encode_devices([Device(i, healthy) for i, healthy in listed])) <= MESSAGE_LIMIT
    assert sum(healthy for _, healthy in listed) == (8 - len(sick)) * 192 * 128


def test_every_gpu_of_many_nodes_has_a_tag_of_its_own() -> None:
    """Among 4,000 GPUs some certainly hash to the same four digits; none may be mistaken for another."""
    from gpuslice.node.grants.deviceids import _tags

    uuids = [f"GPU-{number}" for number in range(4000)]
    tags = _tags(uuids)
    assert len(set(tags.values())) == len(uuids)
    assert tags == _tags(reversed(uuids))
    assert {len(tag) for tag in tags.values()} == {4}
