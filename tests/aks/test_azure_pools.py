"""Node pools on AKS: what Azure is asked for, and what its answers become. Through the real SDK, over TLS."""

from __future__ import annotations

import asyncio

import pytest
from aks_world import World
from fakearm import Answer, error

from gpuslice.capacity.pools import (
    GpuInstanceProfile,
    PoolNotFound,
    PoolRefused,
    PoolSpec,
    PoolTaint,
)
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError

MIG = PoolSpec("mignode", "Standard_ND96asr_v4", 1, GpuInstanceProfile.MIG1G, MigStrategy.MIXED)


async def test_a_pool_is_made_without_azures_profile_and_its_nodes_are_born_with_the_label(
    world: World,
) -> None:
    async with world.pools() as pools:
        await pools.create(MIG)
        assert (await pools.get("mignode")).state == "Creating"
    (put,) = world.arm.puts()
    assert "gpuInstanceProfile" not in put
    assert put["nodeLabels"] == {
        "gpushare": "true",
        "nvidia.com/mig.config": "all-1g.5gb",
        "gpuslice.io/mig-strategy": "mixed",
    }
    assert (put["vmSize"], put["count"], put["mode"], put["osType"]) == (
        "Standard_ND96asr_v4",
        1,
        "User",
        "Linux",
    )
    assert put["enableAutoScaling"] is False
    assert not put.keys() & {"minCount", "maxCount"}


async def test_autoscaling_labels_and_taints_are_asked_for_in_azures_words(world: World) -> None:
    taints = (PoolTaint("sku", "NoSchedule", "gpu"), PoolTaint("spare", "PreferNoSchedule"))
    spec = PoolSpec(
        "t4", "Standard_NC4as_T4_v3", 2, min_count=0, max_count=5, labels={"team": "a"}, taints=taints
    )
    async with world.pools() as pools:
        await pools.create(spec)
        (found,) = await pools.list()
    (put,) = world.arm.puts()
    assert (put["enableAutoScaling"], put["minCount"], put["maxCount"]) == (True, 0, 5)
    assert put["nodeTaints"] == ["sku=gpu:NoSchedule", "spare:PreferNoSchedule"]
    assert found.spec == spec


async def test_a_pool_is_made_in_the_network_that_the_cluster_is_in(world: World) -> None:
    world.arm.add("other", vnetSubnetID="/subnets/other")
    world.arm.add("nodepool1", mode="System", vnetSubnetID="/subnets/nodes", podSubnetID="/subnets/pods")
    async with world.pools() as pools:
        await pools.create(MIG)
    (put,) = world.arm.puts()
    assert (put["vnetSubnetID"], put["podSubnetID"]) == ("/subnets/nodes", "/subnets/pods")


@pytest.mark.parametrize(
    ("vm_size", "profile", "config"),
    [
        ("Standard_ND96asr_v4", "MIG1g", "all-1g.5gb"),
        ("Standard_ND96asr_v4", "MIG2g", "all-2g.10gb"),
        ("Standard_ND96asr_v4", "MIG3g", "all-3g.20gb"),
        ("Standard_ND96asr_v4", "MIG4g", "all-4g.20gb"),
        ("Standard_ND96asr_v4", "MIG7g", "all-7g.40gb"),
        ("Standard_NC24ads_A100_v4", "MIG1g", "all-1g.10gb"),
    ],
)
async def test_every_profile_is_found_again_in_what_azure_has(
    world: World, vm_size: str, profile: str, config: str
) -> None:
    spec = PoolSpec("p", vm_size, 1, GpuInstanceProfile(profile), MigStrategy.SINGLE)
    async with world.pools(wait=True) as pools:
        await pools.create(spec)
        found = await pools.get("p")
    assert world.arm.pools["p"]["nodeLabels"]["nvidia.com/mig.config"] == config
    assert (found.spec, found.state, found.settled) == (spec, "Succeeded", True)


async def test_a_profile_that_the_machines_do_not_have_is_not_asked_for(world: World) -> None:
    async with world.pools() as pools:
        with pytest.raises(InputError, match=r"T4.*cannot be partitioned"):
            await pools.create(PoolSpec("t4", "Standard_NC4as_T4_v3", 1, GpuInstanceProfile.MIG1G))
    assert world.arm.requests == []


async def test_the_profile_changes_after_creation_and_nothing_else_does(world: World) -> None:
    async with world.pools(wait=True) as pools:
        await pools.create(MIG)
        before = dict(world.arm.pools["mignode"])
        await pools.update(
            PoolSpec("mignode", MIG.node_vm_size, 1, GpuInstanceProfile.MIG3G, MigStrategy.MIXED)
        )
        after = dict(world.arm.pools["mignode"])
    assert after.pop("nodeLabels")["nvidia.com/mig.config"] == "all-3g.20gb"
    changed = {key for key in before if key != "nodeLabels" and before[key] != after[key]}
    assert changed == {"eTag"}


async def test_without_a_profile_gpus_that_were_cut_are_made_whole(world: World) -> None:
    async with world.pools(wait=True) as pools:
        await pools.create(MIG)
        await pools.update(PoolSpec("mignode", MIG.node_vm_size, 1))
        found = await pools.get("mignode")
    assert world.arm.pools["mignode"]["nodeLabels"] == {
        "gpushare": "true",
        "nvidia.com/mig.config": "all-disabled",
    }
    assert found.spec == PoolSpec("mignode", MIG.node_vm_size, 1)


async def test_agents_come_to_a_pool_of_others_with_its_first_profile(world: World) -> None:
    world.arm.add("own", vmSize="Standard_ND96asr_v4", nodeLabels={"team": "a"})
    labels = {"team": "a"}
    async with world.pools(wait=True) as pools:
        await pools.update(PoolSpec("own", MIG.node_vm_size, 2, labels=labels))
        await pools.update(PoolSpec("own", MIG.node_vm_size, 2, GpuInstanceProfile.MIG1G, labels=labels))
        await pools.update(PoolSpec("own", MIG.node_vm_size, 2, labels=labels))
    seen = [put["nodeLabels"] for put in world.arm.puts()]
    partitioned = {"team": "a", "gpushare": "true", "nvidia.com/mig.config": "all-1g.5gb"}
    assert seen == [labels, partitioned, partitioned | {"nvidia.com/mig.config": "all-disabled"}]


async def test_a_configuration_that_is_no_profile_stays_as_it_is(world: World) -> None:
    labels = {"nvidia.com/mig.config": "all-balanced"}
    world.arm.add("own", vmSize="Standard_ND96asr_v4", nodeLabels=labels)
    async with world.pools(wait=True) as pools:
        found = (await pools.get("own")).spec
        assert (found.gpu_instance_profile, found.labels) == (None, labels)
        await pools.update(PoolSpec("own", found.node_vm_size, 2, labels=labels))
    assert world.arm.puts()[0]["nodeLabels"] == labels


async def test_a_profile_of_azures_own_is_for_good_and_the_sentence_names_the_way_out(world: World) -> None:
    world.arm.add("old", vmSize="Standard_ND96asr_v4", gpuInstanceProfile="MIG1g")
    async with world.pools(wait=True) as pools:
        found = (await pools.get("old")).spec
        assert found.gpu_instance_profile is GpuInstanceProfile.MIG1G
        with pytest.raises(PoolRefused) as refused:
            await pools.update(PoolSpec("old", found.node_vm_size, 1, GpuInstanceProfile.MIG2G))
        assert str(refused.value) == (
            "pool 'old' was made with AKS's own GPU instance profile MIG1g, which Azure never changes; add another "
            "pool beside it, drain the nodes of 'old', and delete it (the profile of a pool that gpuslice has made "
            "can change)"
        )
        assert world.arm.puts() == []
        await pools.update(PoolSpec("old", found.node_vm_size, 2, GpuInstanceProfile.MIG1G))
    (put,) = world.arm.puts()
    assert (put["count"], put["gpuInstanceProfile"]) == (2, "MIG1g")
    assert not put.get("nodeLabels")


async def test_what_others_have_set_on_a_pool_survives_an_update(world: World) -> None:
    world.arm.add("p", maxPods=30, vnetSubnetID="/subnets/one", tags={"who": "us"})
    async with world.pools(wait=True) as pools:
        await pools.update(
            PoolSpec("p", "standard_ds2_V2", 3, taints=(PoolTaint("sku", "NoExecute", "gpu"),))
        )
    has = world.arm.pools["p"]
    assert (has["maxPods"], has["vnetSubnetID"], has["tags"]) == (30, "/subnets/one", {"who": "us"})
    assert (has["count"], has["nodeTaints"]) == (3, ["sku=gpu:NoExecute"])


async def test_nothing_is_written_when_nothing_changes(world: World) -> None:
    async with world.pools(wait=True) as pools:
        await pools.create(MIG)
        await pools.update(MIG)
    assert len(world.arm.puts()) == 1


async def test_autoscaling_is_turned_on_moved_and_off(world: World) -> None:
    world.arm.add("p", count=1)

    def spec(count: int, low: int | None = None, high: int | None = None) -> PoolSpec:
        return PoolSpec("p", "Standard_DS2_v2", count, min_count=low, max_count=high)

    async with world.pools(wait=True) as pools:
        await pools.update(spec(1, 1, 3))
        world.arm.pools["p"]["count"] = 3  # the autoscaler's doing
        await pools.update(spec(1, 1, 4))
        await pools.update(spec(1, 1, 2))
        await pools.update(spec(1))
    seen = [(put["enableAutoScaling"], put["count"], put.get("maxCount")) for put in world.arm.puts()]
    assert seen == [(True, 1, 3), (True, 3, 4), (True, 2, 2), (False, 1, None)]
    assert "minCount" not in world.arm.puts()[-1] and "maxCount" not in world.arm.puts()[-1]


async def test_another_vm_size_is_refused_before_azure_is_asked(world: World) -> None:
    world.arm.add("p")
    async with world.pools() as pools:
        with pytest.raises(
            PoolRefused, match="'p' has machines of type Standard_DS2_v2, which Azure never changes"
        ):
            await pools.update(PoolSpec("p", "Standard_NC4as_T4_v3", 1))
    assert world.arm.puts() == []


async def test_a_pool_is_removed_and_is_there_until_azure_has_done_so(world: World) -> None:
    world.arm.add("p")
    async with world.pools() as pools:
        await pools.delete("p")
        going = await pools.get("p")
        assert (going.state, going.settled) == ("Deleting", False)
        world.arm.finish()
        with pytest.raises(PoolNotFound):
            await pools.get("p")


async def test_the_list_is_of_all_pages_and_by_name(world: World) -> None:
    world.arm.page = 2
    for name in ("c", "a", "e", "b", "d"):
        world.arm.add(name)
    async with world.pools() as pools:
        assert [pool.spec.name for pool in await pools.list()] == ["a", "b", "c", "d", "e"]


async def test_a_pool_without_gpus_is_listed_too(world: World) -> None:
    world.arm.add("nodepool1", mode="System", enableAutoScaling=False, minCount=1, maxCount=3)
    world.arm.pools["nodepool1"]["nodeTaints"] = ["kubernetes.azure.com/scalesetpriority=spot:NoSchedule"]
    async with world.pools() as pools:
        (found,) = await pools.list()
    spot = PoolTaint("kubernetes.azure.com/scalesetpriority", "NoSchedule", "spot")
    assert found.spec == PoolSpec("nodepool1", "Standard_DS2_v2", 1, taints=(spot,))


@pytest.mark.parametrize("header", ["Azure-AsyncOperation", "Location"])
async def test_with_wait_operations_are_followed_to_their_end(world: World, header: str) -> None:
    world.arm.followed_by, world.arm.polls = header, 3
    async with world.pools(wait=True) as pools:
        await pools.create(MIG)
        assert (await pools.get("mignode")).state == "Succeeded"
        await pools.delete("mignode")
        assert await pools.list() == []
    assert world.waited == [7] * 6


async def test_the_time_that_azure_names_is_waited(world: World) -> None:
    world.arm.retry_after, world.arm.polls = "41", 2
    async with world.pools(wait=True) as pools:
        await pools.create(MIG)
    assert world.waited == [41, 41]


async def test_an_operation_that_fails_later_says_why_at_once_and_afterwards(world: World) -> None:
    said = "Provisioning of resource(s) for Agent Pool mignode failed. See https://aka.ms/x for details."
    world.arm.operation_fails = ("VMExtensionProvisioningError", said)
    async with world.pools(wait=True) as pools:
        with pytest.raises(PoolRefused) as refused:
            await pools.create(MIG)
        found = await pools.get("mignode")
    sentence = "Provisioning of resource(s) for Agent Pool mignode failed"
    assert str(refused.value) == (
        f"Azure refuses it for pool 'mignode' (VMExtensionProvisioningError: {sentence})"
    )
    assert (found.state, found.settled, found.reason) == ("Failed", True, sentence)


async def test_a_wait_that_is_cancelled_ends_at_once_and_azure_goes_on(world: World) -> None:
    world.arm.polls = None
    async with world.pools(wait=True) as pools:
        task = asyncio.create_task(pools.create(MIG))
        await asyncio.to_thread(world.arm.polled.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        world.arm.finish()
        assert (await pools.get("mignode")).state == "Succeeded"


async def test_azure_that_is_asked_too_often_is_asked_again_when_it_says(world: World) -> None:
    busy = "The request is being throttled."
    world.arm.instead = [error(429, "TooManyRequests", busy, **{"Retry-After": "17"}) for _ in range(2)]
    async with world.pools() as pools:
        await pools.create(MIG)
    assert world.waited == [17, 17]
    assert "mignode" in world.arm.pools


async def test_a_fault_of_azures_own_is_tried_again(world: World) -> None:
    world.arm.instead = [Answer(503, None)]
    async with world.pools() as pools:
        assert await pools.list() == []
    assert len(world.arm.requests) == 2
