"""Our own certificates: which of those in a Secret are still good, and new ones for those that are not.

One authority (10 years) signs the serving certificate (90 days, renewed when a third is left) and, for a
kube-scheduler that shall be the only one to ask the extender, a client certificate. The authority's key
stays in the Secret, so that renewing changes nothing for whoever trusts the authority. A new authority is put
before the old one, not in its place, until that has ended.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVING, SERVING_KEY = "tls.crt", "tls.key"
CLIENT, CLIENT_KEY = "client.crt", "client.key"
"""Keys in the Secret, PEM each; ca.crt and tls.* as cert-manager names them."""

AUTHORITY_DAYS: Final = 3650
AUTHORITY_RENEWED: Final = timedelta(days=365)
SERVING_DAYS: Final = 90
SERVING_RENEWED: Final = timedelta(days=30)
EARLIER: Final = timedelta(hours=1)
"""Certificates begin so long before they are made: clocks differ."""

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

    `names`: DNS names and IP addresses that the serving certificate must carry. `client`: is there to be a
    client certificate, too?
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
        signer, key = _new_authority(now)
        old = [c for c in _all(stored.get(AUTHORITY, b"")) if c.not_valid_after_utc > now]
        changed[AUTHORITY] = b"".join(_pem(one) for one in (signer, *old))
        changed[AUTHORITY_KEY] = _pem_key(key)
    else:
        found = _first(stored[AUTHORITY])
        loaded = serialization.load_pem_private_key(stored[AUTHORITY_KEY], None)
        assert found is not None
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer, key = found, loaded
    if what.serving:
        alternative = x509.SubjectAlternativeName([_general_name(name) for name in names])
        made = _issue(
            signer, key, "gpuslice", ExtendedKeyUsageOID.SERVER_AUTH, now, SERVING_DAYS, alternative
        )
        changed[SERVING], changed[SERVING_KEY] = made
    if what.client:
        left = (signer.not_valid_after_utc - now).days
        changed[CLIENT], changed[CLIENT_KEY] = _issue(
            signer, key, CLIENT_NAME, ExtendedKeyUsageOID.CLIENT_AUTH, now, left
        )
    return changed


# --- looking --------------------------------------------------------------------------------------
def _why_renew(certificate: x509.Certificate | None, key: bytes, now: datetime, early: timedelta) -> str:
    if certificate is None:
        return "there is none"
    if certificate.not_valid_after_utc - now < early:
        return f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if certificate.not_valid_before_utc > now:
        return f"it begins on {certificate.not_valid_before_utc:%Y-%m-%d} only"
    try:
        loaded = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError):
        return "its key cannot be read"
    return "" if loaded.public_key() == certificate.public_key() else "its key is another one's"


def _why_reissue(
    stored: Stored, certificate: str, key: str, authority: x509.Certificate, now: datetime
) -> str:
    found = _first(stored.get(certificate, b""))
    why = _why_renew(found, stored.get(key, b""), now, SERVING_RENEWED)
    if why or found is None:
        return why
    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return "another authority has signed it"
    return ""


def _lacks(stored: Stored, names: Collection[str]) -> str:
    found = _first(stored[SERVING])
    assert found is not None
    try:
        carried = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it has no names"
    has = {str(name.value) for name in carried}
    missing = sorted(name for name in names if str(_general_name(name).value) not in has)
    return f"it lacks the name {missing[0]}" if missing else ""


def _first(pem: bytes) -> x509.Certificate | None:
    found = _all(pem)
    return found[0] if found else None


def _all(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


# --- making ---------------------------------------------------------------------------------------
def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own: clients look for a signer by its name, and there may be two authorities for a while.
    name = _name(f"gpuslice authority of {now:%Y-%m-%d %H:%M:%S}")
    made = (
        _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made, key


def _issue(
    signer: x509.Certificate,
    signing: ec.EllipticCurvePrivateKey,
    name: str,
    purpose: x509.ObjectIdentifier,
    now: datetime,
    days: int,
    names: x509.SubjectAlternativeName | None = None,
) -> tuple[bytes, bytes]:
    """A certificate and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(name), signer.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return _pem(builder.sign(signing, hashes.SHA256())), _pem_key(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """What the key is for: clients that follow RFC 5280 to the letter (Python 3.13) insist on it."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def moment(now_ns: int) -> datetime:
    """A clock's nanoseconds as certificates count time: whole seconds, UTC."""
    return datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
