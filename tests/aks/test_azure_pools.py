"""Node pools on AKS: what Azure is asked for, and what its answers become. Through the real SDK, over TLS."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from aks_world import HERE, Impatient, Login, World
from fakearm import CLUSTER, GROUP, SECRET, SUBSCRIPTION, Answer, arm_error, error

from gpuslice.capacity import azurepools
from gpuslice.capacity.aks import AksCluster
from gpuslice.capacity.azurepools import AksPools, connected
from gpuslice.capacity.pools import (
    GpuInstanceProfile,
    PoolExists,
    PoolNotFound,
    PoolRefused,
    PoolSpec,
    PoolTaint,
)
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import GpuSliceError, InputError, Unavailable

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
    cut = {"team": "a", "gpushare": "true", "nvidia.com/mig.config": "all-1g.5gb"}
    assert seen == [labels, cut, cut | {"nvidia.com/mig.config": "all-disabled"}]


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


REFUSALS: list[tuple[Answer, type[GpuSliceError], str]] = [
    (
        arm_error(
            403,
            "AuthorizationFailed",
            "The client 'x' with object id 'y' does not have authorization to perform action "
            "'Microsoft.ContainerService/managedClusters/agentPools/write' over scope '/subscriptions/1' or the "
            "scope is invalid. If access was recently granted, please refresh your credentials.",
        ),
        PoolRefused,
        "the login may not do Microsoft.ContainerService/managedClusters/agentPools/write on cluster 'migcluster'; "
        "whoever may give roles can give it 'Azure Kubernetes Service Contributor Role' on that cluster",
    ),
    (
        arm_error(403, "RequestDisallowedByPolicy", "Resource 'p' was disallowed by policy.\nPolicy: costs"),
        PoolRefused,
        "Azure refuses it for pool 'mignode' (RequestDisallowedByPolicy: Resource 'p' was disallowed by policy)",
    ),
    (
        Answer(
            400,
            {
                "code": "InvalidTemplateDeployment",
                "message": "The template deployment is not valid. See inner errors for details.",
                "details": [
                    {
                        "code": "QuotaExceeded",
                        "message": "Operation could not be completed as it results in exceeding approved Total "
                        "Regional Cores quota. Additional details - Deployment Model: Resource Manager, Location: "
                        "eastus, Current Limit: 4, Current Usage: 4, Additional Required: 96, (Minimum) New Limit "
                        "Required: 100. Submit a request for Quota increase at https://aka.ms/x.",
                    }
                ],
            },
        ),
        PoolRefused,
        "Azure's quota does not allow it for pool 'mignode' (Operation could not be completed as it results in "
        "exceeding approved Total Regional Cores quota, current limit 4, current usage 4, additional required 96); "
        "ask Azure for a higher quota, or for fewer nodes, or choose another VM size",
    ),
    (
        error(400, "ZonalAllocationFailed", "We do not have sufficient capacity for the requested VM size."),
        Unavailable,
        "Azure has no free machines for pool 'mignode' now (We do not have sufficient capacity for the requested "
        "VM size); try again later, or choose another VM size or zone",
    ),
    (
        error(
            400,
            "PropertyChangeNotAllowed",
            "Changing property 'properties.gpuInstanceProfile' is not allowed.",
        ),
        PoolRefused,
        "Azure does not change this of pool 'mignode' once it is made (Changing property "
        "'properties.gpuInstanceProfile' is not allowed); add another pool beside it, drain the nodes of 'mignode', "
        "and delete it",
    ),
    (
        Answer(400, None),
        PoolRefused,
        "Azure refuses it for pool 'mignode' (HTTP 400: Operation returned an invalid status 'Bad Request')",
    ),
    (
        Answer(412, None),
        PoolExists,
        "cluster 'migcluster' has a node pool 'mignode' already; choose another name, or change it with update",
    ),
]


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"), REFUSALS, ids=[str(a.body)[:40] for a, _, _ in REFUSALS]
)
async def test_what_azure_refuses_is_one_sentence_with_the_remedy(
    world: World, answer: Answer, kind: type[GpuSliceError], sentence: str
) -> None:
    world.arm.instead, world.arm.instead_of = [answer], "PUT"
    async with world.pools() as pools:
        with pytest.raises(kind) as refused:
            await pools.create(MIG)
    assert str(refused.value) == sentence


async def test_a_pool_of_that_name_is_never_overwritten(world: World) -> None:
    world.arm.add("mignode", count=3)
    async with world.pools() as pools:
        with pytest.raises(PoolExists, match="has a node pool 'mignode' already"):
            await pools.create(MIG)
    assert world.arm.pools["mignode"]["count"] == 3


async def test_too_small_a_quota_is_told_with_its_numbers(world: World) -> None:
    world.arm.quota_vcpus = 10
    async with world.pools() as pools:
        with pytest.raises(PoolRefused) as refused:
            await pools.create(MIG)
    assert str(refused.value) == (
        "Azure's quota does not allow it for pool 'mignode' (Insufficient vcpu quota requested 96, remaining 10 for "
        "family standardNDASv4_A100Family for region southcentralus); ask Azure for a higher quota, or for fewer "
        "nodes, or choose another VM size"
    )
    assert world.arm.pools == {}


async def test_two_at_a_time_are_told_to_wait(world: World) -> None:
    async with world.pools() as pools:
        await pools.create(MIG)
        with pytest.raises(Unavailable) as busy:
            await pools.create(PoolSpec("second", "Standard_NC4as_T4_v3", 1))
    assert str(busy.value) == (
        "Azure is busy with cluster 'migcluster' (Operation is not allowed: Another agentpool operation (mignode - "
        "Creating) is in progress, please wait for it to finish before starting a new operation); try again when "
        "that has ended"
    )


async def test_who_comes_second_with_an_update_changes_nothing(world: World) -> None:
    world.arm.add("p")
    async with world.pools() as pools:
        get = pools._client.agent_pools.get

        async def slow(*where: str) -> Any:
            found = await get(*where)
            world.arm.pools["p"] |= {"eTag": "2", "count": 5}
            return found

        pools._client.agent_pools.get = slow  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="'p' was changed by somebody else in the meantime; try again"):
            await pools.update(PoolSpec("p", "Standard_DS2_v2", 2))
    assert world.arm.pools["p"]["count"] == 5


async def test_a_pool_that_is_not_there_is_told_for_every_verb(world: World) -> None:
    sentence = "cluster 'migcluster' has no node pool 'gone'; `gpuslice nodepool list` shows those there are"
    async with world.pools() as pools:
        for ask in (
            lambda: pools.get("gone"),
            lambda: pools.update(PoolSpec("gone", "Standard_DS2_v2", 1)),
            lambda: pools.delete("gone"),
        ):
            with pytest.raises(PoolNotFound) as refused:
                await ask()
            assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (
            AksCluster("0", GROUP, CLUSTER),
            "there is no subscription 0 for this login; `az account list` shows its own",
        ),
        (
            AksCluster(SUBSCRIPTION, "nogroup", CLUSTER),
            f"subscription {SUBSCRIPTION} has no resource group 'nogroup'; `az group list` shows those that it has",
        ),
        (
            AksCluster(SUBSCRIPTION, GROUP, "nocluster"),
            "resource group 'myresourcegroup' has no cluster 'nocluster'; `az aks list` shows those that there are",
        ),
    ],
)
async def test_a_cluster_that_is_not_there_is_not_taken_for_a_missing_pool(
    world: World, cluster: AksCluster, sentence: str
) -> None:
    async with world.pools(cluster) as pools:
        for ask in (pools.list, lambda: pools.get("p"), lambda: pools.create(MIG), lambda: pools.delete("p")):
            with pytest.raises(PoolRefused) as refused:
                await ask()
            assert str(refused.value) == sentence


async def test_a_name_that_azure_does_not_take_is_told(world: World) -> None:
    async with world.pools() as pools:
        with pytest.raises(PoolRefused, match=r"agentPool\.name is invalid: 'Mig_Node'"):
            await pools.create(PoolSpec("Mig_Node", "Standard_ND96asr_v4", 1))


async def test_a_login_that_azure_does_not_accept(world: World) -> None:
    async with world.pools(token="another") as pools:
        with pytest.raises(PoolRefused) as refused:
            await pools.list()
    assert str(refused.value) == (
        "Azure does not accept the login (InvalidAuthenticationToken: The access token is invalid): log in anew with "
        f"`az login`, and look that subscription {SUBSCRIPTION} belongs to that login's tenant"
    )


async def test_no_login_at_all_names_the_ways_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AZURE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_CLIENT_CERTIFICATE_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    # Of Azure's own chain only what asks nobody.
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    async with connected(HERE) as pools:
        with pytest.raises(PoolRefused) as refused:
            await pools.list()
    assert str(refused.value) == (
        "no login for Azure was found; run `az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and "
        "AZURE_CLIENT_SECRET of a service principal, or run where a managed or a workload identity is"
    )


@pytest.fixture
def principal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service principal in the environment, whose authority is the fake, too."""
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    monkeypatch.setenv("AZURE_TENANT_ID", "66666666-7777-8888-9999-000000000000")
    monkeypatch.setenv("AZURE_CLIENT_ID", "12345678-1234-1234-1234-123456789012")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", SECRET)
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", world.arm.endpoint)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(world.authority))
    monkeypatch.setattr(azurepools, "AksPools", partial(AksPools, endpoint=world.arm.endpoint))


@pytest.mark.usefixtures("principal")
async def test_a_service_principals_secret_is_login_enough(world: World) -> None:
    world.arm.add("p")
    async with connected(HERE) as pools:
        assert [pool.spec.name for pool in await pools.list()] == ["p"]


@pytest.mark.usefixtures("principal")
async def test_a_wrong_secret_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    async with connected(HERE) as pools:
        with pytest.raises(PoolRefused) as refused:
            await pools.list()
    assert str(refused.value).startswith(
        "Azure does not accept the login (AADSTS7000215: Invalid client secret provided); run `az login`, or set"
    )


async def test_azure_that_cannot_be_reached_is_not_there_now(world: World) -> None:
    transport = Impatient(world.authority, world.waited)
    nobody = "https://127.0.0.1:1"
    async with AksPools(HERE, Login(), endpoint=nobody, transport=transport) as pools:
        with pytest.raises(Unavailable, match="Azure cannot be reached: "):
            await pools.list()


async def test_a_throttle_that_does_not_end_is_told_with_its_time(world: World) -> None:
    world.arm.instead = [error(429, "TooManyRequests", "Wait.", **{"Retry-After": "30"}) for _ in range(20)]
    async with world.pools() as pools:
        with pytest.raises(Unavailable, match=r"^Azure has been asked too often; try again in 30 s$"):
            await pools.list()
