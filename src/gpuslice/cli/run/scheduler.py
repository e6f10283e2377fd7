"""`gpuslice scheduler`: the complete scheduler for pods that name it."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.process import serve
from gpuslice.cli.run import servers
from gpuslice.cli.run.webhook import WebhookOptions, webhook_options
from gpuslice.cli.scoring import policy as policy_option
from gpuslice.placement.policies.policy import Policy


@click.command(
    help="Schedule the pods whose spec.schedulerName is gpuslice.\n\n"
    + options.examples("gpuslice scheduler --kubeconfig ~/.kube/config")
)
@options.kubeconfig
@policy_option
@options.mig_idle
@options.lease
@options.identity
@options.probes
@webhook_options
def scheduler(
    kubeconfig: Path | None,
    policy: Policy,
    mig_idle: int,
    lease: tuple[str, str] | None,
    identity: str,
    probes: options.Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    async def work() -> None:

        await servers.scheduler(
            kubeconfig,
            policy=policy,
            mig_idle=mig_idle,
            lease=lease,
            identity=identity,
            probes=probes,
            webhook=webhook,
        )

    serve(work())
