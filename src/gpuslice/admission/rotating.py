"""Keeps our certificates good: in a Secret, in the webhook's caBundle, and as files for the HTTP server.

Every replica does the same, again and again: it renews what is no longer good in the Secret, then writes the
trusted authority into the webhook's caBundle, and only then changes the files. Two replicas that renew at the
same moment are told apart by the Secret's resourceVersion: the slower one takes what the faster has made. So
there is no leader here, and no job to rotate anything.

The Secret must exist, perhaps empty; the right to create Secrets cannot be restricted to one name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import structlog

from gpuslice.admission import certificates
from gpuslice.clock import Clock
from gpuslice.errors import ApiError, Conflict, GpuSliceError, InputError, NotFound
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.kube.wire import KubeObject, Resource, Wire
from gpuslice.observe.certificates import moment

CHECK_SECONDS: Final = 60.0
"""How soon a replica notices what another has renewed, or that somebody has changed the caBundle."""
BACKOFF: Final = Backoff(base=0.5, cap=30.0)
FILES: Final = (certificates.SERVING_KEY, certificates.SERVING, certificates.AUTHORITY)
"""What the HTTP server reads; the other keys stay in the Secret."""

_log = structlog.get_logger(__name__)


class Secret(KubeObject, frozen=True, gc=False):
    """`data` is base64."""

    resource: ClassVar[Resource] = Resource("", "v1", "secrets", "Secret")
    data: dict[str, str] | None = None


class _ClientConfig(Wire, frozen=True, gc=False):
    ca_bundle: str = ""


class _Webhook(Wire, frozen=True, gc=False):
    name: str = ""
    client_config: _ClientConfig = _ClientConfig()


class MutatingWebhookConfiguration(KubeObject, frozen=True, gc=False):
    """The webhooks that the API server calls for new objects, with the certificates that it trusts."""

    resource: ClassVar[Resource] = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    )
    webhooks: tuple[_Webhook, ...] | None = None


class CertificateKeeper:
    """One replica's part. `webhook`: the MutatingWebhookConfiguration to keep up to date, if any.

    `client_certificate`: whether there is to be one, for the client that the extender lets in.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        secret: str,
        names: Sequence[str],
        webhook: str | None,
        client_certificate: bool,
        folder: Path,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self.written = asyncio.Event()
        """Set once the files are there."""
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._names = names
        self._webhook = webhook
        self._client_certificate = client_certificate
        self._folder = folder
        self._clock = clock
        self._random = random

    async def run(self) -> None:
        """For ever. Raises InputError if the files cannot be written."""
        failures = 0
        while True:
            try:
                await self.check()
                failures = 0
            except InputError:
                raise
            except GpuSliceError as error:
                failures += 1
                # After a Conflict the next round takes what another replica has made.
                if failures == 1 and not isinstance(error, Conflict):
                    _log.warning("certificates not in order yet", secret=self._secret, error=self._say(error))
            delay = BACKOFF.delay(failures, self._random) if failures else CHECK_SECONDS
            await self._clock.sleep(delay)

    async def check(self) -> None:
        """One round. Raises what the client raises; Conflict if another replica was faster."""
        stored = await self._settled()
        await self._tell(stored[certificates.AUTHORITY])
        self._write(stored)
        self.written.set()

    async def _settled(self) -> Mapping[str, bytes]:
        """The Secret's content, made good first if need be."""
        secret = await self._client.get(Secret, self._secret, self._namespace)
        stored = {key: _decoded(value) for key, value in (secret.data or {}).items()}
        now = moment(self._clock.now_ns())
        plan = certificates.plan(stored, names=self._names, client=self._client_certificate, now=now)
        if not plan:
            return stored
        changed = certificates.renewed(stored, plan, names=self._names, now=now)
        body = {
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": {key: base64.b64encode(value).decode() for key, value in changed.items()},
        }
        await self._client.patch(Secret, self._secret, body, self._namespace)
        _log.info("certificates renewed", secret=self._secret, because=str(plan))
        return stored | changed

    async def _tell(self, authority: bytes) -> None:
        """Make the webhook's caBundle true."""
        if self._webhook is None:
            return
        wanted = base64.b64encode(authority).decode()
        try:
            found = await self._client.get(MutatingWebhookConfiguration, self._webhook)
            wrong = [one.name for one in found.webhooks or () if one.client_config.ca_bundle != wanted]
            if not wrong:
                return
            hooks = [{"name": name, "clientConfig": {"caBundle": wanted}} for name in wrong]
            await self._client.patch(
                MutatingWebhookConfiguration, self._webhook, {"webhooks": hooks}, patch_type="strategic"
            )
        except NotFound:
            return  # there is no configuration yet; once it is created it is filled within a minute
        _log.info("the API server is told whom to trust", webhook=self._webhook)

    def _write(self, stored: Mapping[str, bytes]) -> None:
        try:
            for name in FILES:
                file = self._folder / name
                if file.exists() and file.read_bytes() == stored[name]:
                    continue
                new = self._folder / f".{name}"
                new.touch(mode=0o600)
                new.write_bytes(stored[name])
                os.replace(new, file)  # noqa: PTH105 (Path.replace returns a path nobody needs)
        except OSError as error:
            raise InputError(f"certificates cannot be written to {self._folder}: {error.strerror}") from error

    def _say(self, error: GpuSliceError) -> str:
        if isinstance(error, NotFound):
            return f"the Secret {self._namespace}/{self._secret} does not exist; an empty one will do"
        if isinstance(error, ApiError) and error.status == 403:
            return f"{error}; the rules in docs/install.md are missing"
        return str(error)


def _decoded(value: str) -> bytes:
    """What is no base64 is no certificate either."""
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return b""
