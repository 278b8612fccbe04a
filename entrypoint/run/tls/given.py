"""Given certificates, checked as the other nodes will check them."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import NoReturn

from contract.options import ConfigError, Fault
from entrypoint.config.settings import Settings
from entrypoint.net.tls import trusting

CERT, KEY, CA = "ROLLCALL_TLS_CERT", "ROLLCALL_TLS_KEY", "ROLLCALL_TLS_CA"
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
ENCRYPTED = re.compile(r"BEGIN ENCRYPTED PRIVATE KEY|Proc-Type: 4,ENCRYPTED")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
MOST_BYTES = 1024 * 1024
"""Of a file."""


def texts(settings: Settings, address: str) -> tuple[str, str, str]:
    """Return the texts of certificate, key and authorities, for the node at this address.

    `address`: "" if it is not known yet; then nobody has looked whether the certificate has it.
    Raises ConfigError, which says which of them the other nodes would refuse, and why.
    """
    cert, key, ca = (
        _set(CERT, settings.tls_cert),
        _set(KEY, settings.tls_key),
        _set(CA, settings.tls_ca),
    )
    found = certificates(CERT, cert), read(KEY, key, PRIVATE_KEY), certificates(CA, ca)
    if ENCRYPTED.search(found[1]):
        _refuse(KEY, key, "is encrypted", "give it without a passphrase")
    try:
        server = serving(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _refuse(KEY, key, f"is not the key of {cert}", "give the key of that certificate")
        _refuse(KEY, key, f"cannot be used with {cert} ({error.reason})", "give both anew")
    try:
        client = trusting(ca)
    except ssl.SSLError as error:
        _refuse(CA, ca, f"cannot be used ({error.reason})", "give certificates in PEM form")
    if not address:
        return found
    try:
        connect(server, client, address)
    except ssl.SSLCertVerificationError as error:
        problem = f"would be refused by the other nodes: {error.verify_message.rstrip('.')}"
        remedy = (
            f"give one that {ca} ({CA}) has signed, that is valid now, and that has {address} in "
            "its subjectAltName"
        )
        _refuse(CERT, cert, problem, remedy)
    return found


def serving(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server. Raises SSLError if the two do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def connect(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Shake hands within this process. Raises SSLError, as the client's side of a connection."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(back, there, server_hostname=name),
        server.wrap_bio(there, back, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


def certificates(variable: str, path: Path) -> str:
    """Return the text of a file with certificates. Raises ConfigError."""
    return read(variable, path, CERTIFICATE)


def read(variable: str, path: Path, wanted: re.Pattern[str]) -> str:
    """Return the text of a file that has what is wanted. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("ascii", errors="replace")
    except OSError as error:
        _refuse(variable, path, f"cannot be read: {error.strerror}", "give a file in PEM form")
    if not wanted.search(text):
        what = "private key" if wanted is PRIVATE_KEY else "certificate"
        _refuse(variable, path, f"has no {what} in PEM form", f"give a file with a {what}")
    return text


def _set(variable: str, path: Path | None) -> Path:
    if path is None:
        problem = "is not set, and another of ROLLCALL_TLS_CERT, _KEY and _CA is"
        remedy = "set all three on every node: its Ray shows them, and checks those of others"
        raise ConfigError([Fault(variable, None, problem, remedy)])
    return path


def _refuse(variable: str, path: Path, problem: str, remedy: str) -> NoReturn:
    raise ConfigError([Fault(variable, str(path), problem, remedy)])
