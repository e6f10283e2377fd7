"""A certificate authority of our own and a serving certificate for this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuslice.clock import Clock

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
    moment = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuslice local CA")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuslice local API server")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - timedelta(hours=1))
            .not_valid_after(moment + timedelta(days=VALID_DAYS))
        )

    authority = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [x509.DNSName(one) for one in NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    serving = (
        builder(name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificates(
        authority.public_bytes(pem),
        serving.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """What the key is for: clients that follow RFC 5280 to the letter (Python 3.13) insist on it."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
