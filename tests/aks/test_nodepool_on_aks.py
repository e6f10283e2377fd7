"""`gpuslice nodepool` with --resource-group and --cluster-name, against the fake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click.testing
import pytest
from aks_world import World
from fakearm import CLUSTER, GROUP, SUBSCRIPTION, error

from gpuslice.cli.main import main

WHERE = ("--resource-group", GROUP, "--cluster-name", CLUSTER, "--subscription", SUBSCRIPTION)
Type = Callable[..., click.testing.Result]


@pytest.fixture
def nodepool(world: World, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.setattr("gpuslice.capacity.azurepools.connected", world.pools)
    monkeypatch.delenv("AZURE_SUBSCRIPTION_ID", raising=False)

    def invoke(*words: str, where: tuple[str, ...] = WHERE) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, ["nodepool", *words, *where])

    return invoke


MIG = ("--node-vm-size", "Standard_ND96asr_v4", "--node-count", "1", "--gpu-instance-profile", "MIG1g")


def test_the_articles_command_makes_a_pool(world: World, nodepool: Type) -> None:
    done = nodepool("add", "--name", "mignode", *MIG)
    assert (done.exit_code, done.stdout) == (
        0,
        "NAME     VM SIZE              NODES  READY  PROFILE  STRATEGY  AUTOSCALING  STATE\n"
        "mignode  Standard_ND96asr_v4  1      1      MIG1g    single    -            Succeeded\n",
    )
    assert done.stderr == (
        "Azure is asked to make node pool 'mignode'; it takes minutes, and goes on if you stop waiting\n"
    )
    assert world.arm.pools["mignode"]["nodeLabels"]["nvidia.com/mig.config"] == "all-1g.5gb"


def test_without_waiting_the_pool_is_shown_as_azure_has_it(nodepool: Type) -> None:
    done = nodepool("add", "mignode", *MIG, "--no-wait")
    assert done.stdout.splitlines()[1].split()[2:4] == ["1", "0"]
    assert done.stdout.splitlines()[1].endswith("Creating")
    assert done.stderr == ""


def test_the_profile_changes_and_counts_stay(world: World, nodepool: Type) -> None:
    nodepool(
        "add",
        "mignode",
        *MIG,
        "--mig-strategy",
        "mixed",
        "--labels",
        "team=a",
        "--node-taints",
        "sku=gpu:NoSchedule",
    )
    before = world.arm.pools["mignode"]
    done = nodepool("update", "mignode", "--gpu-instance-profile", "MIG2g")
    assert (done.exit_code, "MIG2g" in done.stdout) == (0, True)
    after = world.arm.pools["mignode"]
    assert after["nodeLabels"] == before["nodeLabels"] | {"nvidia.com/mig.config": "all-2g.10gb"}
    assert (after["nodeTaints"], after["count"]) == (["sku=gpu:NoSchedule"], 1)


def test_the_profile_none_makes_gpus_whole(world: World, nodepool: Type) -> None:
    nodepool("add", "mignode", *MIG)
    done = nodepool("update", "mignode", "--gpu-instance-profile", "none")
    assert done.exit_code == 0
    assert world.arm.pools["mignode"]["nodeLabels"] == {
        "gpushare": "true",
        "nvidia.com/mig.config": "all-disabled",
    }


def test_the_autoscaler_begins_with_the_nodes_that_there_are(world: World, nodepool: Type) -> None:
    nodepool("add", "t4", "--node-vm-size", "Standard_NC4as_T4_v3", "--node-count", "3")
    on = nodepool("update", "t4", "-e", "--min-count", "1", "--max-count", "5")
    assert (on.exit_code, "1 to 5" in on.stdout) == (0, True)
    has = world.arm.pools["t4"]
    assert (has["count"], has["minCount"], has["maxCount"]) == (3, 1, 5)
    off = nodepool("update", "t4", "--disable-cluster-autoscaler")
    assert off.exit_code == 0
    has = world.arm.pools["t4"]
    assert (has["count"], has["enableAutoScaling"], "maxCount" in has) == (3, False, False)


def test_a_configuration_of_the_users_own_survives_an_update(world: World, nodepool: Type) -> None:
    labels = {"nvidia.com/mig.config": "all-balanced", "team": "a"}
    world.arm.add("own", vmSize="Standard_ND96asr_v4", nodeLabels=labels)
    done = nodepool("update", "own", "--node-count", "2")
    assert (done.exit_code, done.stderr[:5]) == (0, "Azure")
    assert world.arm.pools["own"]["nodeLabels"] == labels
    nodepool("update", "own", "--labels", "team=b")
    assert world.arm.pools["own"]["nodeLabels"] == labels | {"team": "b"}
    nodepool("update", "own", "--gpu-instance-profile", "none")
    assert world.arm.pools["own"]["nodeLabels"] == {"nvidia.com/mig.config": "all-disabled", "team": "b"}


def test_the_labels_of_a_pool_that_aks_cuts_stay(world: World, nodepool: Type) -> None:
    labels = {"gpushare": "true", "team": "a"}
    world.arm.add("old", vmSize="Standard_ND96asr_v4", gpuInstanceProfile="MIG1g", nodeLabels=labels)
    assert nodepool("update", "old", "--node-count", "2").exit_code == 0
    assert (world.arm.pools["old"]["count"], world.arm.pools["old"]["nodeLabels"]) == (2, labels)
    assert nodepool("update", "old", "--mig-strategy", "mixed").exit_code == 0
    assert world.arm.pools["old"]["nodeLabels"] == labels | {"gpuslice.io/mig-strategy": "mixed"}


def test_all_pools_are_listed_and_one_is_shown(world: World, nodepool: Type) -> None:
    world.arm.add("nodepool1", mode="System", count=2)
    world.arm.operation_fails = (
        "VMExtensionProvisioningError",
        "The driver could not be installed. See logs.",
    )
    assert nodepool("add", "mignode", *MIG).exit_code == 1
    assert nodepool("list").stdout == (
        "NAME       VM SIZE              NODES  READY  PROFILE  STRATEGY  AUTOSCALING  STATE\n"
        "mignode    Standard_ND96asr_v4  1      0      MIG1g    single    -            Failed\n"
        "nodepool1  Standard_DS2_v2      2      2      -        none      -            Succeeded\n"
    )
    assert nodepool("show", "mignode").stdout.splitlines()[-1] == "The driver could not be installed"
    pools: Any = json.loads(nodepool("list", "-o", "json").stdout)
    assert [(pool["name"], pool["count"]) for pool in pools["pools"]] == [("mignode", 1), ("nodepool1", 2)]


def test_a_pool_is_deleted(world: World, nodepool: Type) -> None:
    world.arm.add("old")
    done = nodepool("delete", "old")
    assert (done.exit_code, world.arm.pools) == (0, {})
    assert nodepool("list").stdout == "there are no node pools\n"


@pytest.mark.parametrize(
    ("words", "where", "code", "sentence"),
    [
        (
            ("add", "Mig_Node", *MIG),
            WHERE,
            2,
            "NAME: 'Mig_Node' is not the name of a node pool; use up to 12 lower-case letters and digits, a letter "
            "first, such as mignode",
        ),
        (
            ("add", "a", "--selector", "pool=a"),
            WHERE,
            2,
            "--selector: on AKS a pool is machines that are made for it; leave it out",
        ),
        (("list",), WHERE[:2], 2, f"--cluster-name: say which cluster of resource group '{GROUP}'"),
        (("list",), WHERE[2:4], 2, f"--resource-group: say in which resource group cluster '{CLUSTER}' is"),
        (
            ("list",),
            WHERE[:4],
            2,
            "--subscription: say which, or set AZURE_SUBSCRIPTION_ID; `az account show --query id` prints your own",
        ),
        (
            ("list",),
            (*WHERE[:4], "--subscription", "pay as you go"),
            2,
            "--subscription: 'pay as you go' is not a subscription's id; `az account list` shows names with their ids",
        ),
        (
            ("show", "gone"),
            WHERE,
            1,
            f"cluster '{CLUSTER}' has no node pool 'gone'; `gpuslice nodepool list` shows those there are",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    nodepool: Type, words: tuple[str, ...], where: tuple[str, ...], code: int, sentence: str
) -> None:
    done = nodepool(*words, where=where)
    assert (done.exit_code, done.stderr) == (code, f"error: {sentence}\n")


def test_what_azure_refuses_is_one_sentence(world: World, nodepool: Type) -> None:
    world.arm.instead = [error(400, "ErrCode_InsufficientVCPUQuota", "Insufficient vcpu quota requested 96.")]
    world.arm.instead_of = "PUT"
    done = nodepool("add", "mignode", *MIG, "--no-wait")
    assert done.exit_code == 1
    assert done.stderr == (
        "error: Azure's quota does not allow it for pool 'mignode' (Insufficient vcpu quota requested 96); ask Azure "
        "for a higher quota, or for fewer nodes, or choose another VM size\n"
    )


def test_one_cluster_at_a_time(nodepool: Type) -> None:
    done = nodepool("list", "--kubeconfig", "config")
    assert (done.exit_code, "--kubeconfig is for a cluster of Kubernetes" in done.stderr) == (2, True)


def test_without_the_extra_the_sentence_says_how_to_get_it(
    nodepool: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gpuslice.capacity.azurepools")
    monkeypatch.setitem(sys.modules, "azure.core.credentials_async", None)
    done = nodepool("list")
    assert done.exit_code == 2
    assert done.stderr == (
        "error: node pools on AKS need Azure's SDK, and there is no module "
        "azure.core.credentials_async; install it with: "
        "pip install 'gpuslice[azure]'\n"
    )


def test_without_a_login_there_is_one_sentence_and_nothing_of_the_sdks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "AZURE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_CLIENT_CERTIFICATE_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # it asks nobody
    words = [sys.executable, "-m", "gpuslice.cli.main", "nodepool", "list", *WHERE]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no login for Azure was found; run `az login`")
    assert done.stderr.count("\n") == 1
