"""What stands in the way on AKS: each refusal is one sentence with the remedy. Through the real SDK, over TLS."""

from __future__ import annotations

from functools import partial

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
)
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import GpuSliceError, Unavailable

MIG = PoolSpec("mignode", "Standard_ND96asr_v4", 1, GpuInstanceProfile.MIG1G, MigStrategy.MIXED)

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
        world.arm.after_get = lambda: world.arm.pools["p"].update(eTag="2", count=5)
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
