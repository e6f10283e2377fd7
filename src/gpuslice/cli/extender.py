"""`gpuslice extender`: the scheduler extender for kube-scheduler."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options


@click.command(
    short_help="Answer kube-scheduler about GPUs.",
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
    default="127.0.0.1:32766",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; :PORT means all addresses.",
)
@click.option(
    "--policy",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="Fill the fullest node and GPU that fits, or the emptiest.",
)
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
def extender(
    kubeconfig: Path | None,
    listen: str,
    policy: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    token_file: Path | None,
) -> None:
    from gpuslice.cli.process import serve

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if client_ca is not None and tls_cert is None:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")

    async def work() -> None:
        from gpuslice.cli import servers
        from gpuslice.observe.serving import Tls

        tls = Tls(tls_cert, tls_key, client_ca) if tls_cert and tls_key else None
        await servers.extender(kubeconfig, listen, policy=policy, tls=tls, token_file=token_file)

    serve(work())
