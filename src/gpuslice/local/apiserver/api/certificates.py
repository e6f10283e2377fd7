"""A certificate authority of our own and a serving certificate for this machine."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.clock import Clock
from gpuslice.observe.certificates import SERVER, Authority, moment, to_pem

VALID_DAYS = 365
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts. The authority's key is thrown away: nothing else will ever be signed by it."""

    authority: bytes
    certificate: bytes
    key: bytes


def issue(clock: Clock, *, addresses: tuple[str, ...] = ("127.0.0.1", "::1")) -> Certificates:
    """Make a CA and a serving certificate for localhost and these IP addresses."""
    now = moment(clock.now_ns())
    authority = Authority.new("gpuslice local CA", now, VALID_DAYS)
    name = "gpuslice local API server"
    certificate, key = authority.issue(name, SERVER, now, VALID_DAYS, (*NAMES, *addresses))
    return Certificates(to_pem(authority.certificate), certificate, key)
