"""Our own certificates: judges which of those in a Secret are still good, and replaces the rest.

One authority (10 years) signs the serving certificate (90 days, renewed when a third is left) and, for a
kube-scheduler that shall be the only one to ask the extender, a client certificate. The authority's key
stays in the Secret, so that renewing changes nothing for whoever trusts the authority. A new authority is put
before the old one, not in its place, until that has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuslice.observe import certificates
from gpuslice.observe.certificates import Authority, Certificate

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVING, SERVING_KEY = "tls.crt", "tls.key"
CLIENT, CLIENT_KEY = "client.crt", "client.key"
"""Keys in the Secret, PEM each; ca.crt and tls.* as cert-manager names them."""

AUTHORITY_DAYS: Final = 3650
AUTHORITY_RENEWED: Final = timedelta(days=365)
SERVING_DAYS: Final = 90
SERVING_RENEWED: Final = timedelta(days=30)

CLIENT_NAME: Final = "gpuslice-kube-scheduler"

Stored = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Plan:
    """Why each certificate must be made anew, in a few words; "" if it stays."""

    authority: str = ""
    serving: str = ""
    client: str = ""

    def __bool__(self) -> bool:
        return bool(self.authority or self.serving or self.client)

    def __str__(self) -> str:
        parts = (("authority", self.authority), ("serving", self.serving), ("client", self.client))
        return ", ".join(f"{what}: {why}" for what, why in parts if why)


def plan(stored: Stored, *, names: Collection[str], client: bool, now: datetime) -> Plan:
    """Compare a Secret's content with what should be in it at that time.

    `names`: DNS names and IP addresses that the serving certificate must carry. `client`: whether there is to
    be a client certificate, too.
    """
    authority = _first(stored.get(AUTHORITY, b""))
    why = _why_renew(authority, stored.get(AUTHORITY_KEY, b""), now, AUTHORITY_RENEWED)
    if why or authority is None:
        return Plan(why, "its authority is new", "its authority is new" if client else "")
    return Plan(
        "",
        _why_reissue(stored, SERVING, SERVING_KEY, authority, now) or _lacks(stored, names),
        _why_reissue(stored, CLIENT, CLIENT_KEY, authority, now) if client else "",
    )


def renewed(stored: Stored, what: Plan, *, names: Sequence[str], now: datetime) -> dict[str, bytes]:
    """Make what the plan asks for. Returns the entries of the Secret that change."""
    changed: dict[str, bytes] = {}
    if what.authority:
        # A name of its own: clients look for a signer by its name, and there may be two for a while.
        signer = Authority.new(f"gpuslice authority of {now:%Y-%m-%d %H:%M:%S}", now, AUTHORITY_DAYS)
        old = [c for c in certificates.from_pem(stored.get(AUTHORITY, b"")) if c.not_valid_after_utc > now]
        changed[AUTHORITY] = b"".join(map(certificates.to_pem, (signer.certificate, *old)))
        changed[AUTHORITY_KEY] = signer.key_pem()
    else:
        signer = Authority.read(stored[AUTHORITY], stored[AUTHORITY_KEY])
    if what.serving:
        made = signer.issue("gpuslice", certificates.SERVER, now, SERVING_DAYS, names)
        changed[SERVING], changed[SERVING_KEY] = made
    if what.client:
        left = (signer.certificate.not_valid_after_utc - now).days
        changed[CLIENT], changed[CLIENT_KEY] = signer.issue(CLIENT_NAME, certificates.CLIENT, now, left)
    return changed


def _why_renew(certificate: Certificate | None, key: bytes, now: datetime, early: timedelta) -> str:
    if certificate is None:
        return "there is none"
    if certificate.not_valid_after_utc - now < early:
        return f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if certificate.not_valid_before_utc > now:
        return f"it begins on {certificate.not_valid_before_utc:%Y-%m-%d} only"
    try:
        return "" if certificates.belongs(key, certificate) else "its key is another one's"
    except ValueError:
        return "its key cannot be read"


def _why_reissue(stored: Stored, certificate: str, key: str, authority: Certificate, now: datetime) -> str:
    found = _first(stored.get(certificate, b""))
    why = _why_renew(found, stored.get(key, b""), now, SERVING_RENEWED)
    if why or found is None:
        return why
    return "" if certificates.issued_by(found, authority) else "another authority has signed it"


def _lacks(stored: Stored, names: Collection[str]) -> str:
    found = _first(stored[SERVING])
    assert found is not None
    missing = sorted(name for name in names if not certificates.carries(found, name))
    return f"it lacks the name {missing[0]}" if missing else ""


def _first(pem: bytes) -> Certificate | None:
    return next(iter(certificates.from_pem(pem)), None)
