"""What `gpuslice up` shows on a terminal while it runs: a small live table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rich.live import Live
from rich.table import Table

from gpuslice.clock import Clock
from gpuslice.cluster.records import GpuView, NodeView
from gpuslice.local.up import LocalCluster

NODES: Final = 12
"""Lines of the table; the fullest nodes of a larger cluster are shown."""
PAUSE_SECONDS: Final = 0.25
"""The least time between two pictures."""
BAR: Final = 10


async def watch_cluster(cluster: LocalCluster, clock: Clock) -> None:
    """Show the cluster until cancelled."""
    changed = asyncio.Event()

    cluster.cluster.subscribe(lambda _change: changed.set())
    with Live(picture(cluster.cluster.snapshots()), auto_refresh=False, transient=True) as live:
        while True:
            await changed.wait()
            await clock.sleep(PAUSE_SECONDS)
            changed.clear()
            live.update(picture(cluster.cluster.snapshots()), refresh=True)


def picture(views: Sequence[NodeView]) -> Table:
    """The fullest nodes, one line each."""
    shown = sorted(views, key=lambda view: (-_used(view), view.name))[:NODES]
    table = Table(box=None, pad_edge=False)
    for title in ("node", "GPU memory", "pods", ""):
        table.add_column(title)
    for view in sorted(shown, key=lambda view: view.name):
        pods = {share.uid for gpu in view.gpus for share in gpu.pods} | {p.uid for p in view.pending}
        bars = "  ".join(_bar(gpu) for gpu in view.gpus)
        table.add_row(view.name, bars, str(len(pods)), view.problem)
    if len(views) > len(shown):
        table.caption = f"and {len(views) - len(shown)} more nodes"
    return table


def _used(view: NodeView) -> int:
    return sum(gpu.used_mib for gpu in view.gpus)


def _bar(one: GpuView) -> str:
    filled = min(BAR, -(-one.used_mib * BAR // one.gpu.memory_mib)) if one.gpu.memory_mib else 0
    text = "#" * filled + "." * (BAR - filled)
    colour = "yellow" if one.gpu.availability.closed else "red"
    return f"[green]{text}[/]" if one.gpu.availability.ok else f"[{colour}]{text}[/]"
