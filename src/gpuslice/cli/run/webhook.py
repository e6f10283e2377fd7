"""The options of the admission webhook, which several commands serve (`cli/run/webhookserver.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gpuslice.admission.visibility import RULES, EnvFrom, Rules
from gpuslice.cli import options


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where to serve, with whose certificate. Without `secret` somebody else keeps the files in `folder`."""

    listen: str
    folder: Path
    secret: tuple[str, str] | None
    names: tuple[str, ...]
    configuration: str | None
    client_ca: Path | None = None
    rules: Rules = RULES


def webhook_options(command: Callable[..., None]) -> Callable[..., None]:
    """Click options that arrive as one argument, `webhook`: WebhookOptions, or None for no webhook."""

    @click.option(
        "--webhook",
        metavar="HOST:PORT",
        help="Also answer the API server about new pods here (HTTPS, /mutate); default: nowhere.",
    )
    @click.option(
        "--webhook-certificate",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The folder of its tls.crt and tls.key, read again when they change.",
    )
    @click.option(
        "--certificate-secret",
        type=options.NAMESPACED,
        metavar="NAMESPACE/NAME",
        help="Keep the certificate in this Secret, which must exist, renew it and write it to the folder.",
    )
    @click.option(
        "--certificate-name",
        multiple=True,
        metavar="NAME",
        help="A DNS name or address that it is called by; may be repeated.",
    )
    @click.option(
        "--webhook-configuration",
        metavar="NAME",
        help="Tell the API server in this MutatingWebhookConfiguration whom to trust.",
    )
    @click.option(
        "--webhook-client-ca",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Let in only clients with a certificate that this CA has signed: the API server's, which has to "
        "be told to show one; PEM.",
    )
    @click.option(
        "--env-from",
        type=click.Choice([one.value for one in EnvFrom]),
        default=EnvFrom.REFUSE.value,
        show_default=True,
        help="What becomes of a GPU container's envFrom, which could show it every GPU; resolve: its env "
        "says void, for nodes that hand out GPUs by CDI alone.",
    )
    @click.option(
        "--hide-gpus/--no-hide-gpus",
        default=True,
        show_default=True,
        help="Hide all GPUs from pods that ask for none, whatever their images say.",
    )
    @wraps(command)
    def collecting(
        *args: Any,
        webhook: str | None,
        webhook_certificate: Path | None,
        certificate_secret: tuple[str, str] | None,
        certificate_name: tuple[str, ...],
        webhook_configuration: str | None,
        webhook_client_ca: Path | None,
        env_from: str,
        hide_gpus: bool,
        **others: Any,
    ) -> None:
        if (webhook is None) != (webhook_certificate is None):
            raise click.UsageError("--webhook and --webhook-certificate go together")
        if certificate_secret is not None and webhook is None:
            raise click.UsageError("--certificate-secret needs --webhook")
        if certificate_secret is not None and not certificate_name:
            raise click.UsageError("--certificate-secret needs --certificate-name")
        if certificate_secret is None and (certificate_name or webhook_configuration):
            raise click.UsageError("--certificate-name and --webhook-configuration need --certificate-secret")
        if webhook_client_ca is not None and webhook is None:
            raise click.UsageError("--webhook-client-ca needs --webhook")
        given = None
        if webhook is not None and webhook_certificate is not None:
            given = WebhookOptions(
                webhook,
                webhook_certificate,
                certificate_secret,
                certificate_name,
                webhook_configuration,
                webhook_client_ca,
                Rules(EnvFrom(env_from), hide=hide_gpus),
            )
        command(*args, webhook=given, **others)

    return collecting
