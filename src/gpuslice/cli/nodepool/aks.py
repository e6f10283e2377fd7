"""Commands that can speak to an AKS cluster's own API: which cluster, in az's words, and the way there.

Azure's SDK is an extra and slow to import, so it is only loaded when a cluster of AKS was named.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gpuslice.capacity.aks import AksCluster
from gpuslice.capacity.pools import PoolProvider
from gpuslice.cli.lazy import load
from gpuslice.cli.options import kubeconfig as kubeconfig_option
from gpuslice.errors import InputError

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster, as it was typed: by a kubeconfig, or in the words of `capacity.aks.cluster_of`."""

    kubeconfig: Path | None
    subscription: str | None
    resource_group: str | None
    cluster_name: str | None


def where(command: Command) -> Command:
    """Options that say which cluster; the command gets them as one parameter `where`."""

    @functools.wraps(command)
    def called(
        *,
        kubeconfig: Path | None,
        subscription: str | None,
        resource_group: str | None,
        cluster_name: str | None,
        **rest: Any,
    ) -> None:
        if kubeconfig is not None and (resource_group or cluster_name):
            raise click.UsageError(
                "--kubeconfig is for a cluster of Kubernetes, --cluster-name for one of AKS"
            )
        command(where=Where(kubeconfig, subscription, resource_group, cluster_name), **rest)

    cluster = click.option(
        "--cluster-name",
        metavar="NAME",
        help="An AKS cluster, whose own API is then asked (gpuslice[azure]).",
    )
    group = click.option("-g", "--resource-group", metavar="NAME", help="The AKS cluster's resource group.")
    subscription_option = click.option(
        "--subscription",
        envvar="AZURE_SUBSCRIPTION_ID",
        metavar="ID",
        help="The AKS cluster's subscription; default: $AZURE_SUBSCRIPTION_ID.",
    )
    return kubeconfig_option(cluster(group(subscription_option(called))))


@asynccontextmanager
async def provider(cluster: AksCluster, *, wait: bool) -> AsyncIterator[PoolProvider]:
    """The cluster's pools. Raises InputError if the extra is not installed."""
    try:
        connected = load("gpuslice.capacity.azurepools:connected")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("azure"):
            raise
        raise InputError(
            f"node pools on AKS need Azure's SDK, and there is no module {error.name}; "
            "install it with: pip install 'gpuslice[azure]'"
        ) from error
    async with connected(cluster, wait=wait) as pools:
        yield pools
