"""A node's certificate from an authority whose key is derived from the cluster's token.

Each node that has the token makes its own, and accepts those of the others: no file is copied.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from entrypoint.net.tls import stretched

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256 (SEC 2, 2.4.2)."""
SECRET_BYTES = 48
"""128 bits more than the order has, so that no key is likelier (FIPS 186-5, A.2.1)."""
BEGINS = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
NEVER_ENDS = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280, 4.1.2.5: a certificate without a well-defined end."""
VALID = datetime.timedelta(days=825)
"""Of a node's certificate, the longest that browsers take. Each start of a node makes a new one."""
EARLY = datetime.timedelta(days=1)
"""For clocks that are behind."""
OWN_NAMES = ("rollcall", "localhost", "127.0.0.1", "::1")
"""In every certificate: for a client that comes by another name, and for Ray's own daemons."""
HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def certificate(token: str, names: Iterable[str]) -> tuple[str, str, str]:
    """Return a certificate with these names, its key, and the authority of the token."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509 import (
        AuthorityKeyIdentifier,
        BasicConstraints,
        CertificateBuilder,
        ExtendedKeyUsage,
        SubjectAlternativeName,
        random_serial_number,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signer, authority = _authority(token)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    cert = (
        CertificateBuilder()
        .subject_name(_name("Rollcall node"))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + VALID)
        .add_extension(BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(ExtendedKeyUsage(usage), critical=False)
        .add_extension(SubjectAlternativeName(_alternatives((*names, *OWN_NAMES))), critical=False)
        .add_extension(
            AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    pem = Encoding.PEM
    private = key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption())
    texts = cert.public_bytes(pem), private, authority.public_bytes(pem)
    return texts[0].decode(), texts[1].decode(), texts[2].decode()


def _authority(token: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return key and certificate of the token's authority: the same bytes on every node."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import (
        BasicConstraints,
        CertificateBuilder,
        KeyUsage,
        SubjectKeyIdentifier,
    )

    secret = int.from_bytes(stretched(token, "authority", SECRET_BYTES))
    key = ec.derive_private_key(secret % (ORDER - 1) + 1, ec.SECP256R1())
    identity = SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _name(f"Rollcall cluster {identity.digest.hex()[:16]}")
    signs = KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    cert = (
        CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(BEGINS)
        .not_valid_after(NEVER_ENDS)
        .add_extension(BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(identity, critical=False)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )
    return key, cert


def _name(common: str) -> x509.Name:
    from cryptography.x509 import Name, NameAttribute
    from cryptography.x509.oid import NameOID

    return Name([NameAttribute(NameOID.COMMON_NAME, common)])


def _alternatives(names: Iterable[str]) -> list[x509.GeneralName]:
    from cryptography.x509 import DNSName, IPAddress

    found: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            found.append(IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if HOST_NAME.fullmatch(name):
                found.append(DNSName(name))
    return found
