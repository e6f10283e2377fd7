"""The admission webhook as a part of a process that does something else, too."""

from __future__ import annotations

import asyncio
from random import SystemRandom

from gpuslice.admission.nodename import Offered
from gpuslice.admission.rotating import CertificateKeeper
from gpuslice.admission.webhook import serve
from gpuslice.cli.run.webhook import WebhookOptions
from gpuslice.clock import Clock
from gpuslice.kube.client import Client
from gpuslice.observe.addresses import parse_listen

_random = SystemRandom()


class Webhook:
    """A running webhook, or none: then it is ready at once and `run` returns."""

    def __init__(
        self,
        client: Client,
        options: WebhookOptions | None,
        *,
        clock: Clock,
        offered: Offered,
        client_certificate: bool = False,
    ) -> None:
        self._options = options
        self._clock = clock
        self._offered = offered
        self._keeper: CertificateKeeper | None = None
        self._certified = asyncio.Event()
        if options is None:
            self._certified.set()
            return
        self._address = parse_listen(options.listen, "--webhook")
        if options.secret is None:
            self._certified.set()
            return
        namespace, name = options.secret
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
        async with asyncio.TaskGroup() as group:
            if self._keeper is not None:
                group.create_task(self._keeper.run())
            await self._certified.wait()
            host, port = self._address
            options = self._options
            group.create_task(
                serve(
                    host,
                    port,
                    options.folder,
                    clock=self._clock,
                    offered=self._offered,
                    client_ca=options.client_ca,
                    rules=options.rules,
                )
            )
