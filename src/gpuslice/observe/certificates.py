"""Making and judging certificates: an authority, what it signs, and what a certificate is good for.

Everything here is a value: the callers decide where certificates are kept and how long they are good.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

EARLIER: Final = timedelta(hours=1)
"""Certificates are valid from this long before they are made, since clocks differ."""
SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH

Certificate = x509.Certificate


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others, and its key."""

    certificate: Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str, now: datetime, days: int) -> Authority:
        """A new authority that is good for so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder(_name(name), _name(name), key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(made, key)

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Authority:
        """An authority from its PEM. Raises ValueError, or TypeError for another kind of key than ours."""
        loaded = serialization.load_pem_private_key(key, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise TypeError("the key of an authority is one of an elliptic curve")
        return cls(x509.load_pem_x509_certificate(certificate), loaded)

    def key_pem(self) -> bytes:
        """The key, as `read` takes it."""
        return _key_to_pem(self.key)

    def issue(
        self, name: str, purpose: x509.ObjectIdentifier, now: datetime, days: int, names: Sequence[str] = ()
    ) -> tuple[bytes, bytes]:
        """A certificate and its key, as PEM. `names`: DNS names and IP addresses that it carries."""
        key = ec.generate_private_key(ec.SECP256R1())
        signer = self.key.public_key()
        builder = (
            _builder(_name(name), self.certificate.subject, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        )
        if names:
            carried = x509.SubjectAlternativeName([_general_name(one) for one in names])
            builder = builder.add_extension(carried, critical=False)
        return to_pem(builder.sign(self.key, hashes.SHA256())), _key_to_pem(key)


def from_pem(text: bytes) -> list[Certificate]:
    """The certificates in a PEM file; none if it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        return []


def from_der(raw: bytes) -> Certificate:
    """A certificate as TLS shows it. Raises ValueError."""
    return x509.load_der_x509_certificate(raw)


def to_pem(certificate: Certificate) -> bytes:
    """As files and Secrets hold it."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def moment(now_ns: int) -> datetime:
    """A clock's nanoseconds as certificates count time: whole seconds, UTC."""
    return datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)


# --- judging --------------------------------------------------------------------------------------
def belongs(key: bytes, certificate: Certificate) -> bool:
    """Whether a PEM key is the certificate's own. Raises ValueError if it cannot be read."""
    try:
        loaded = serialization.load_pem_private_key(key, None)
    except TypeError as error:  # it asks for a password
        raise ValueError(str(error)) from error
    return loaded.public_key() == certificate.public_key()


def issued_by(certificate: Certificate, authority: Certificate) -> bool:
    """Whether the authority has signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def carries(certificate: Certificate, host: str) -> bool:
    """Whether it is good for a server of that name or address."""
    try:
        carried = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ipaddress.ip_address(host) in carried.get_values_for_type(x509.IPAddress)
    except ValueError:
        wildcard = f"*.{host.partition('.')[2]}"
        return not {host, wildcard}.isdisjoint(carried.get_values_for_type(x509.DNSName))


# --- making ---------------------------------------------------------------------------------------
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


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """The key usage, on which clients that follow RFC 5280 to the letter (Python 3.13) insist."""
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


def _key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
