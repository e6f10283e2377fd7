"""A certificate authority for tests."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpuslice.observe.serving import Tls

_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates, in PEM files below a folder."""

    def __init__(self, folder: Path, name: str = "test CA") -> None:
        self.folder = folder
        self.file = folder / f"{name}.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        # Python 3.13 checks certificates by the letter of RFC 5280.
        builder = builder.add_extension(_SIGNS, critical=True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        self.file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *, files: Tls | None = None) -> Tls:
        """A certificate for 127.0.0.1, in new files or over those of an earlier one."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = self._builder(_name(name), key).add_extension(alternative, critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        files = files or Tls(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        files.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
