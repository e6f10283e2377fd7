"""The admission webhook as a part of the commands that run beside a scheduler: its options, its running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from random import SystemRandom
from typing import Any

import click

from gpuslice.clock import Clock
from gpuslice.errors import InputError
from gpuslice.kube.client import Client

_random = SystemRandom()


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where to serve, with whose certificate. Without `secret` somebody else keeps the files in `folder`."""

    listen: str
    folder: Path
    secret: str | None
    names: tuple[str, ...]
    configuration: str | None


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
    @wraps(command)
    def collecting(
        *args: Any,
        webhook: str | None,
        webhook_certificate: Path | None,
        certificate_secret: str | None,
        certificate_name: tuple[str, ...],
        webhook_configuration: str | None,
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
        options = None
        if webhook is not None and webhook_certificate is not None:
            options = WebhookOptions(
                webhook, webhook_certificate, certificate_secret, certificate_name, webhook_configuration
            )
        command(*args, webhook=options, **others)

    return collecting


class Webhook:
    """A running webhook, or none: then it is ready at once and `run` returns."""

    def __init__(
        self,
        client: Client,
        options: WebhookOptions | None,
        *,
        clock: Clock,
        client_certificate: bool = False,
    ) -> None:
        from gpuslice.admission.rotating import CertificateKeeper
        from gpuslice.observe.serving import parse_listen

        self._options = options
        self._clock = clock
        self._keeper: CertificateKeeper | None = None
        self._certified = asyncio.Event()
        if options is None:
            self._certified.set()
            return
        self._address = parse_listen(options.listen, "--webhook")
        if options.secret is None:
            self._certified.set()
            return
        namespace, _, name = options.secret.partition("/")
        if not namespace or not name or "/" in name:
            text = f"{options.secret!r} is not NAMESPACE/NAME, such as gpuslice-system/gpuslice-tls"
            raise InputError(text, field="--certificate-secret")
        self._keeper = CertificateKeeper(
            client,
            namespace=namespace,
            secret=name,
            names=options.names,
            webhook=options.configuration,
            client_certificate=client_certificate,
            folder=options.folder,
            clock=clock,
            random=_random.random,
        )
        self._certified = self._keeper.written

    def waits_for(self) -> str:
        """Why it does not serve yet, in a few words; "" once it does."""
        return "" if self._certified.is_set() else "the webhook has no certificate yet"

    async def certified(self) -> None:
        """Wait until the certificate's files are there, for whoever serves with them, too."""
        await self._certified.wait()

    async def run(self) -> None:
        """Serve until cancelled. Raises InputError if address or files cannot be used."""
        if self._options is None:
            return
        from gpuslice.admission.webhook import serve

        async with asyncio.TaskGroup() as group:
            if self._keeper is not None:
                group.create_task(self._keeper.run())
            await self._certified.wait()
            host, port = self._address
            group.create_task(serve(host, port, self._options.folder, clock=self._clock))
