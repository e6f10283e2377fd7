"""`gpuslice extender`: the scheduler extender for kube-scheduler."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.deciding import core_options
from gpuslice.cli.process import serve
from gpuslice.cli.run.probing import read_token
from gpuslice.cli.run.servers import Election, run_extender
from gpuslice.cli.run.webhook import WebhookOptions, webhook_options
from gpuslice.errors import InputError
from gpuslice.observe.addresses import is_loopback, parse_listen
from gpuslice.observe.serving import Tls
from gpuslice.scheduler.core import CoreSettings
from gpuslice.scheduler.extender.service import DEFAULTS, ExtenderSettings


@click.command(
    help="Answer kube-scheduler's questions about GPUs (filter, prioritize, bind, preempt), as gpushare's "
    "extender does, and the API server's about new pods (/mutate).\n\n"
    + options.examples(
        "gpuslice extender --kubeconfig ~/.kube/config --listen 127.0.0.1:32766",
        "gpuslice extender --listen :8443 --tls-cert tls.crt --tls-key tls.key --token-file token",
    ),
)
@options.kubeconfig
@click.option(
    "--listen",
    default=f"{DEFAULTS.host}:{DEFAULTS.port}",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; :PORT means all addresses.",
)
@core_options
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="Serve HTTPS; PEM.")
@click.option(
    "--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="The certificate's key; PEM."
)
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Let in only clients with a certificate that this CA has signed; PEM.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Let in only requests with this bearer token; probes need none.",
)
@click.option(
    "--open",
    "open_to_all",
    is_flag=True,
    help="Answer whoever reaches the address, who can then bind pods; for networks that nobody else is on.",
)
@options.lease
@options.identity
@click.option(
    "--label-leader",
    is_flag=True,
    help="While it holds the Lease, its pod (the identity, in the Lease's namespace) has the label "
    "gpuslice.io/leader=true.",
)
@click.option(
    "--follow-lease",
    type=options.NAMESPACED,
    metavar="NAMESPACE/NAME",
    help="Act while the kube-scheduler of the same pod holds this Lease.",
)
@click.option(
    "--scheduler-name",
    "schedulers",
    multiple=True,
    metavar="NAME",
    help="A scheduler for whose pods it makes room; may be repeated; default: all but gpuslice.",
)
@options.probes
@webhook_options
def extender(
    kubeconfig: Path | None,
    listen: str,
    core: CoreSettings,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    token_file: Path | None,
    open_to_all: bool,
    lease: tuple[str, str] | None,
    identity: str,
    label_leader: bool,
    follow_lease: tuple[str, str] | None,
    schedulers: tuple[str, ...],
    probes: options.Probes | None,
    webhook: WebhookOptions | None,
) -> None:
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if client_ca is not None and tls_cert is None:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")

    if lease and follow_lease:
        raise click.UsageError("--lease and --follow-lease exclude each other")
    if label_leader and not lease:
        raise click.UsageError("--label-leader needs --lease")

    election = Election(lease, identity, label=label_leader, follow=follow_lease)

    async def work() -> None:
        tls = Tls(tls_cert, tls_key, client_ca) if tls_cert and tls_key else None
        host, port = parse_listen(listen)
        if not (open_to_all or token_file or client_ca or is_loopback(host)):
            raise InputError(
                f"anyone who reaches {listen} could bind pods: restrict access with --client-ca or "
                "--token-file, listen on 127.0.0.1, or allow it with --open",
                field="--listen",
            )
        settings = ExtenderSettings(
            host,
            port,
            tls=tls,
            token=read_token(token_file, "--token-file") if token_file else None,
            serves=(lambda name: name in schedulers) if schedulers else DEFAULTS.serves,
        )
        await run_extender(kubeconfig, core, settings, election=election, probes=probes, webhook=webhook)

    serve(work())
