"""The certificates of a cluster, as an installer makes them: everything is verified, nothing is `insecure`."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)


class Authority:
    """The cluster's certificate authority; writes what it signs into one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuslice-e2e")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = self._builder(self._name, self._key).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.key = folder / "ca.key"
        self._write_key(self.key, self._key)

    def issue(
        self, name: str, common_name: str, organisation: str = "", names: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """A certificate for a server (with `names`, hosts and addresses) or a client; return its file and its key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organisation:
            subject.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(x509.Name(subject), key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(n) for n in names]), critical=False
            )
        certificate = self._folder / f"{name}.crt"
        signed = builder.sign(self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        self._write_key(key_file := self._folder / f"{name}.key", key)
        return certificate, key_file

    def signing_key(self) -> tuple[Path, Path]:
        """The pair that service account tokens are signed with and checked against: public file, private file."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = self._folder / "service-accounts.pub"
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        self._write_key(private := self._folder / "service-accounts.key", key)
        return public, private

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )

    @staticmethod
    def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
