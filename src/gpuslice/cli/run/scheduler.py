"""`gpuslice scheduler`: the complete scheduler for pods that name it."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.deciding import core_options
from gpuslice.cli.process import serve
from gpuslice.cli.run.servers import Election, run_own_scheduler
from gpuslice.cli.run.webhook import WebhookOptions, webhook_options
from gpuslice.scheduler.core import CoreSettings


@click.command(
    help="Schedule the pods whose spec.schedulerName is gpuslice.\n\n"
    + options.examples("gpuslice scheduler --kubeconfig ~/.kube/config")
)
@options.kubeconfig
@core_options
@options.lease
@options.identity
@options.probes
@webhook_options
def scheduler(
    kubeconfig: Path | None,
    core: CoreSettings,
    lease: tuple[str, str] | None,
    identity: str,
    probes: options.Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    election = Election(lease, identity)
    serve(run_own_scheduler(kubeconfig, core, election=election, probes=probes, webhook=webhook))
