"""`gpuslice nodepool`: pools of machines whose GPUs are partitioned alike, in the words of `az aks
nodepool`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import click

from gpuslice.capacity.aks import cluster_of
from gpuslice.capacity.akspools import AksPools
from gpuslice.capacity.clusterpools import ClusterPools, in_one_process
from gpuslice.capacity.nodepool import GPUNodePool, PoolFields, read_pairs
from gpuslice.cli import options
from gpuslice.cli.nodepool import aks
from gpuslice.cli.nodepool.report import PoolsReport, details, report, table
from gpuslice.cli.output import print_as
from gpuslice.cli.process import run
from gpuslice.clock import SystemClock
from gpuslice.errors import InputError
from gpuslice.kube.http import connected

Pools = ClusterPools | AksPools
Command = Callable[..., None]

PROFILES = ("MIG1g", "MIG2g", "MIG3g", "MIG4g", "MIG7g")
NONE = "none"
"""The profile of GPUs that are whole, for `update`."""
OPTIONS = {
    "name": "NAME",
    "vmSize": "--node-vm-size",
    "count": "--node-count",
    "minCount": "--min-count",
    "maxCount": "--max-count",
    "gpuInstanceProfile": "--gpu-instance-profile",
    "migStrategy": "--mig-strategy",
    "migPolicy": "--mig-policy",
    "nodeLabels": "--labels",
    "nodeTaints": "--node-taints",
    "selector": "--selector",
}
"""How the fields of a pool are called on the command line."""


@click.group(
    help="Make, change and delete node pools: a number of equal machines whose GPUs are partitioned into MIG "
    "instances by a profile. The words and options are those of `az aks nodepool`. In a cluster of gpuslice "
    "up the machines are simulated; of an AKS cluster (--resource-group, --cluster-name) Azure makes them; "
    "elsewhere a pool is the existing nodes that a selector names.\n\n"
    + options.examples(
        "gpuslice nodepool add migpool --node-vm-size Standard_ND96asr_v4 --node-count 1 "
        "--gpu-instance-profile MIG1g",
        "gpuslice nodepool update migpool --gpu-instance-profile MIG2g",
        "gpuslice nodepool list",
        "gpuslice nodepool list --resource-group myresourcegroup --cluster-name migcluster",
    ),
)
def nodepool() -> None:
    pass


class _Name(click.Command):
    """A command whose pool is named as an argument, or as az has it: --name NAME."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        named, given = ctx.params.pop("named"), ctx.params.get("name")
        if named and given and named != given:
            raise click.UsageError(f"two names, {given} and {named}; give one", ctx)
        ctx.params["name"] = given or named
        if not ctx.params["name"]:
            raise click.UsageError("say which pool: NAME, or --name NAME", ctx)
        return rest


def _named(command: Command) -> Command:
    argument = click.argument("name", required=False, metavar="NAME")
    option = click.option("-n", "--name", "named", metavar="NAME", help="The same as NAME, as az has it.")
    return argument(option(aks.where(command)))


_no_wait = click.option("--no-wait", is_flag=True, help="Do not wait until it is so.")
_count = click.option("-c", "--node-count", type=click.IntRange(0), metavar="N", help="The number of nodes.")
_strategy = click.option(
    "--mig-strategy",
    type=click.Choice(["single", "mixed"]),
    help="How MIG devices are counted: as nvidia.com/gpu (single, the default), or by their profile, "
    "nvidia.com/mig-1g.5gb and so on (mixed).",
)
_policy = click.option(
    "--mig-policy",
    type=click.Choice(["static", "on-demand", "on-demand-drain"]),
    help="Who says how GPUs are partitioned: the profile (static, the default), or the pods that wait for "
    "MIG devices; with drain idle instances give way.",
)
_labels = click.option(
    "--labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Labels of the nodes; several are separated by commas or blanks, or the option is repeated.",
)
_taints = click.option(
    "--node-taints", multiple=True, metavar="TAINT", help="Taints of the nodes, such as sku=gpu:NoSchedule."
)
_min = click.option(
    "--min-count", type=click.IntRange(0), metavar="N", help="Autoscaling: never fewer nodes than this."
)
_max = click.option(
    "--max-count", type=click.IntRange(1), metavar="N", help="Autoscaling: never more nodes than this."
)
_autoscaler = click.option(
    "-e", "--enable-cluster-autoscaler", is_flag=True, help="As az: goes with --min-count and --max-count."
)


@nodepool.command(
    cls=_Name,
    short_help="Make a pool.",
    help="Make a pool and wait until its nodes offer their GPUs. With --min-count and --max-count the number "
    "of nodes follows the pods that wait, and nodes without pods go after a time.\n\n"
    + options.examples(
        "gpuslice nodepool add migpool --node-vm-size Standard_ND96asr_v4 --node-count 1 "
        "--gpu-instance-profile MIG1g --mig-strategy mixed",
        "gpuslice nodepool add t4 --node-vm-size Standard_NC4as_T4_v3 --min-count 0 --max-count 3",
        "gpuslice nodepool add old --selector nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB "
        "--gpu-instance-profile MIG3g",
    ),
)
@_named
@click.option(
    "-s",
    "--node-vm-size",
    default="",
    metavar="SIZE",
    help="The machines' type, such as Standard_ND96asr_v4.",
)
@_count
@click.option("--gpu-instance-profile", type=click.Choice(PROFILES), help="How every GPU is partitioned.")
@_strategy
@_policy
@_autoscaler
@_min
@_max
@_labels
@_taints
@click.option(
    "--selector",
    multiple=True,
    metavar="KEY=VALUE",
    help="The pool is the existing nodes with these labels; no machines are made.",
)
@_no_wait
@options.output
def add(
    where: aks.Where,
    name: str,
    node_vm_size: str,
    node_count: int | None,
    gpu_instance_profile: str | None,
    mig_strategy: str | None,
    mig_policy: str | None,
    enable_cluster_autoscaler: bool,
    min_count: int | None,
    max_count: int | None,
    labels: tuple[str, ...],
    node_taints: tuple[str, ...],
    selector: tuple[str, ...],
    no_wait: bool,
    output: str | None,
) -> None:
    if enable_cluster_autoscaler and max_count is None:
        raise click.UsageError("--enable-cluster-autoscaler needs --min-count and --max-count")

    def fields() -> PoolFields:
        return PoolFields(
            vm_size=node_vm_size,
            count=node_count,
            min_count=min_count,
            max_count=max_count,
            gpu_instance_profile=gpu_instance_profile,
            mig_strategy=mig_strategy or ("single" if gpu_instance_profile else None),
            mig_policy=mig_policy,
            node_labels=read_pairs(labels, "--labels") or None,
            node_taints=_split(node_taints),
            selector=read_pairs(selector, "--selector") or None,
        )

    async def work(pools: Pools) -> None:
        _print(await pools.add(name, fields(), wait=not no_wait), output)

    _run(where, work)


@nodepool.command(
    cls=_Name,
    short_help="Change a pool.",
    help="Change a pool and wait until it is so. The profile can be changed at any time: nodes are "
    "repartitioned one after the other, each GPU as soon as nothing on it is in use, and no pod is ended. "
    'What is given replaces what was; --labels "" takes all labels away.\n\n'
    + options.examples(
        "gpuslice nodepool update migpool --gpu-instance-profile MIG2g",
        "gpuslice nodepool update migpool --node-count 3",
        "gpuslice nodepool update migpool --enable-cluster-autoscaler --min-count 1 --max-count 5",
    ),
)
@_named
@_count
@click.option(
    "--gpu-instance-profile",
    type=click.Choice((*PROFILES, NONE)),
    help="How every GPU is partitioned; none: they are whole again.",
)
@_strategy
@_policy
@_autoscaler
@click.option("--disable-cluster-autoscaler", is_flag=True, help="Keep the number of nodes as it is now.")
@_min
@_max
@_labels
@_taints
@_no_wait
@options.output
def update(
    where: aks.Where,
    name: str,
    node_count: int | None,
    gpu_instance_profile: str | None,
    mig_strategy: str | None,
    mig_policy: str | None,
    enable_cluster_autoscaler: bool,
    disable_cluster_autoscaler: bool,
    min_count: int | None,
    max_count: int | None,
    labels: tuple[str, ...],
    node_taints: tuple[str, ...],
    no_wait: bool,
    output: str | None,
) -> None:
    if disable_cluster_autoscaler and (
        enable_cluster_autoscaler or min_count is not None or max_count is not None
    ):
        raise click.UsageError("--disable-cluster-autoscaler takes the limits away; leave them out")

    def change(pool: GPUNodePool) -> Mapping[str, Any]:
        changes: dict[str, Any] = {}
        if disable_cluster_autoscaler:
            changes |= {"minCount": None, "maxCount": None, "count": pool.status.nodes}
        given = {
            "minCount": min_count,
            "maxCount": max_count,
            "migStrategy": mig_strategy,
            "migPolicy": mig_policy,
        }
        changes |= {key: value for key, value in given.items() if value is not None}
        follows = changes.get("maxCount", pool.spec.max_count) is not None
        if node_count is not None and follows:
            raise InputError(
                "the number of nodes follows the pods; change --min-count and --max-count, or give "
                "--disable-cluster-autoscaler, too",
                field="--node-count",
            )
        if follows and pool.spec.max_count is None:
            changes["count"] = None
        if enable_cluster_autoscaler and not follows:
            raise InputError("needs --min-count and --max-count", field="--enable-cluster-autoscaler")
        if node_count is not None:
            changes["count"] = node_count
        if gpu_instance_profile == NONE:
            changes |= {"gpuInstanceProfile": None, "migStrategy": None}
        elif gpu_instance_profile is not None:
            changes["gpuInstanceProfile"] = gpu_instance_profile
        if labels:
            wanted = read_pairs(labels, "--labels")
            changes["nodeLabels"] = dict.fromkeys(pool.spec.node_labels or {}) | wanted
        if node_taints:
            changes["nodeTaints"] = list(_split(node_taints))
        if not changes:
            raise InputError("nothing to change; say what, such as --node-count 2")
        return changes

    async def work(pools: Pools) -> None:
        _print(await pools.update(name, change, wait=not no_wait), output)

    _run(where, work)


@nodepool.command(
    "list",
    short_help="All pools.",
    help="All pools: how many nodes each has, how they are partitioned, and whether that is so.\n\n"
    + options.examples("gpuslice nodepool list", "gpuslice nodepool list -o json"),
)
@aks.where
@options.output
def list_(where: aks.Where, output: str | None) -> None:
    async def work(pools: Pools) -> None:
        reports = [report(pool) for pool in await pools.list()]
        if output is not None:
            print_as(PoolsReport(reports), output)
        elif reports:
            click.echo(table(reports), nl=False)
        else:
            click.echo("there are no node pools")

    _run(where, work)


@nodepool.command(
    cls=_Name,
    short_help="One pool.",
    help="One pool, and what is being waited for.\n\n" + options.examples("gpuslice nodepool show migpool"),
)
@_named
@options.output
def show(where: aks.Where, name: str, output: str | None) -> None:
    async def work(pools: Pools) -> None:
        _print(await pools.get(name), output)

    _run(where, work)


@nodepool.command(
    cls=_Name,
    short_help="Delete a pool.",
    help="Delete a pool and wait until its nodes are gone. Their pods are evicted, as disruption budgets "
    "allow. Existing nodes that a selector named stay, partitioned as they are, without the pool's labels "
    "and taints.\n\n" + options.examples("gpuslice nodepool delete migpool"),
)
@_named
@_no_wait
def delete(where: aks.Where, name: str, no_wait: bool) -> None:
    async def work(pools: Pools) -> None:
        await pools.delete(name, wait=not no_wait)

    _run(where, work)


def _split(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for text in words for part in text.replace(",", " ").split())


def _print(pool: GPUNodePool, output: str | None) -> None:

    if output is not None:
        print_as(report(pool), output)
    else:
        click.echo(details(report(pool)), nl=False)


def _run(where: aks.Where, work: Callable[[Pools], Coroutine[Any, Any, None]]) -> None:

    async def connect() -> None:
        named = where.resource_group or where.cluster_name
        if named and await in_one_process(where.kubeconfig):
            _tell(
                "this cluster is gpuslice up's, not AKS's; --resource-group and --cluster-name have no effect"
            )
        elif (
            cluster := cluster_of(where.subscription, where.resource_group, where.cluster_name)
        ) is not None:
            await work(AksPools(partial(aks.provider, cluster), _tell))
            return
        async with connected(where.kubeconfig) as client:
            await work(ClusterPools(client, SystemClock(), _tell))

    async def by_option() -> None:
        try:
            await connect()
        except InputError as error:
            option = OPTIONS.get(error.field.partition("[")[0])
            if option is None:
                raise
            raise InputError(str(error).removeprefix(f"{error.field}: "), field=option) from error

    run(by_option())


def _tell(text: str) -> None:
    click.echo(text, err=True)
