"""An authority of a user's own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey, passphrase: bytes = b"") -> bytes:
    lock = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)


@dataclass(slots=True)
class Authority:
    """Its own certificate is in `ca`, from the start."""

    root: Path
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        basic = x509.BasicConstraints(ca=True, path_length=None)
        now = datetime.datetime.now(datetime.UTC)
        cert = self._builder("an authority", now + 99 * DAY).public_key(self.key.public_key())
        signed = cert.add_extension(basic, critical=True).sign(self.key, hashes.SHA256())
        self.ca.write_bytes(signed.public_bytes(Encoding.PEM))

    @property
    def ca(self) -> Path:
        return self.root / "ca.pem"

    def sign(
        self, *names: str, days: float = 30, passphrase: bytes = b"", file: str = "node"
    ) -> tuple[Path, Path]:
        """The files of a certificate and of its key. `days`: from now until it expires."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.datetime.now(datetime.UTC) + days * DAY
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        cert = (
            self._builder("a node", until)
            .public_key(key.public_key())
            .add_extension(alternatives, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        paths = self.root / f"{file}.crt", self.root / f"{file}.key"
        paths[0].write_bytes(cert.public_bytes(Encoding.PEM))
        paths[1].write_bytes(_pem(key, passphrase))
        return paths

    def given(self, *names: str) -> dict[str, str]:
        """The variables of a node."""
        cert, key = self.sign(*names)
        return {
            "ROLLCALL_TLS_CERT": str(cert),
            "ROLLCALL_TLS_KEY": str(key),
            "ROLLCALL_TLS_CA": str(self.ca),
        }

    def _builder(self, subject: str, until: datetime.datetime) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name("an authority"))
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 200 * DAY)
            .not_valid_after(until)
        )
