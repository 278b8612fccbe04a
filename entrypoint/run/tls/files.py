"""The files of a node's TLS, for the control port and for Ray: given ones, or made ones."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from contract.files import private_dir
from contract.run_dir import write_atomically
from entrypoint.config.parsers import Tls
from entrypoint.config.settings import Settings
from entrypoint.run.tls import given, made

NAME = "tls"
"""Of the directory in the node's own."""


@dataclass(frozen=True, slots=True)
class Files:
    """PEM, for this user alone."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class Served:
    """What a server shows."""

    context: ssl.SSLContext
    certificate: bytes
    """DER."""


def files_of(settings: Settings) -> Files:
    """Return where the node's files lie while TLS is on."""
    root = settings.ray_home / NAME
    return Files(root / "cert.pem", root / "key.pem", root / "ca.pem")


def for_ray(settings: Settings) -> dict[str, str]:
    """Return Ray's variables of TLS, by which each of its processes finds the node's files."""
    if settings.tls_mode is Tls.OFF:
        return {}
    files = files_of(settings)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(files.cert),
        "RAY_TLS_SERVER_KEY": str(files.key),
        "RAY_TLS_CA_CERT": str(files.ca),
    }


def kind(settings: Settings) -> str:
    """Return what all nodes must have alike: "" without TLS, "auto", or the given authorities.

    Raises ConfigError.
    """
    if settings.tls_mode is not Tls.GIVEN:
        return "" if settings.tls_mode is Tls.OFF else str(settings.tls_mode)
    if settings.tls_ca is None:
        return str(settings.tls_mode)
    text = given.certificates(given.CA, settings.tls_ca)
    known = "".join(given.CERTIFICATE.findall(text))
    return f"SHA-256 {hashlib.sha256(known.encode()).hexdigest()[:16]}"


def check(settings: Settings, address: str) -> None:
    """Raises ConfigError about a given file that the other nodes would refuse."""
    if settings.tls_mode is Tls.GIVEN:
        given.texts(settings, address)


def prepare(settings: Settings, token: str, address: str, *more: str) -> Served | None:
    """Write the node's files; return what its server shows, None without TLS.

    `address`: the node's, by which Ray's other nodes reach it. `more`: other names of the node.
    Raises ConfigError about a given file, OSError.
    """
    files = files_of(settings)
    if settings.tls_mode is Tls.OFF:
        shutil.rmtree(files.cert.parent, ignore_errors=True)
        return None
    private_dir.make(settings.ray_home)
    files.cert.parent.mkdir(mode=0o700, exist_ok=True)
    if settings.tls_mode is Tls.GIVEN:
        cert, key, ca = given.texts(settings, address)
    else:
        url = urlsplit(settings.url or "").hostname or ""
        names = (address, settings.node_name, socket.gethostname(), url, *more)
        cert, key, ca = made.certificate(token, names)
    for path, text in ((files.cert, cert), (files.key, key), (files.ca, ca)):
        write_atomically(path, text, mode=0o600)
    shown = given.CERTIFICATE.findall(cert)[0]
    return Served(given.serving(files.cert, files.key), ssl.PEM_cert_to_DER_cert(shown))
