"""TLS as a client of the control port: by an authority's file, or by the proof of a head.

A head shows at CERTIFICATE that it knows a key of the run: an HMAC of the certificate of that very
connection. Without the key nobody can make one for a certificate of his own, and the client sends
no key before. From then on it accepts this certificate alone. Of a key that another has replaced,
the head knows the mark alone: its proof says so, and opens nothing.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from entrypoint.net.http import direct
from entrypoint.net.paths import CERTIFICATE

MOST_TIME_CHARACTERS = 40
MOST_BYTES = 16 * 1024
"""Of the answer of whoever is there."""
LIMITS = httpx.Timeout(10.0, connect=3.0)
"""Its first proof takes a busy head a second or more."""
SCRYPT_N, SCRYPT_R = 2**14, 8
"""RFC 7914, 16 MiB and about 40 ms: whoever sees a proof has to pay this for each key he tries."""


class NotProvenError(Exception):
    """What answers does not show that it knows the key."""

    def __init__(self, replaced: str = "") -> None:
        """`replaced`: when another key replaced this one, as its head proves; "": no word of it."""
        super().__init__(replaced)
        self.replaced = replaced


@dataclass(frozen=True, slots=True)
class Known:
    """What a client knows of its run."""

    key: str
    mark: str
    """Of the key; all that a head keeps of a key that was replaced."""


@functools.cache
def stretched(secret: str, purpose: str, length: int = 32) -> bytes:
    """Return `length` bytes of the secret for one purpose, at a cost that slows down guessing."""
    salt = f"rollcall {purpose}".encode()
    return hashlib.scrypt(
        secret.encode(), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=1, dklen=length, maxmem=2**26
    )


def proof(key: str, certificate: bytes) -> str:
    """Return what only who knows the key can say of a certificate (DER)."""
    return hmac.digest(stretched(key, "proof of a certificate"), certificate, "sha256").hex()


def trusting(authority: Path) -> ssl.SSLContext:
    """Return the context that trusts these authorities alone. Raises OSError; of PEM, SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=authority)
    return context


class Proven(httpx.BaseTransport):
    """Sends requests to a head once it has proven that it knows the key.

    Raises NotProvenError. A head that was started again has another certificate, and proves anew.
    """

    def __init__(
        self,
        known: Callable[[], Known],
        socket_options: Sequence[tuple[int, int, int]] = (),
        first: ssl.SSLContext | None = None,
    ) -> None:
        """`known`: asked at each proof. `first`: what is tried before a proof is asked for."""
        self._known, self._options = known, socket_options
        self._inner = direct(socket_options, first) if first else None
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            if (inner := self._inner) is None:
                inner = self._inner = self._proven(request.url)
        try:
            return inner.handle_request(request)
        except httpx.ConnectError as error:
            if fault_of(error) is None:
                raise
        with self._lock:
            if self._inner is inner:
                self._inner = self._proven(request.url)
            inner = self._inner or inner
        return inner.handle_request(request)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _proven(self, url: httpx.URL) -> httpx.HTTPTransport:
        certificate = proven_certificate(url, self._known())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # a tunnel or a published port has any name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate)
        return direct(self._options, context)


def proven_certificate(url: httpx.URL, known: Known) -> bytes:
    """Return the certificate (DER) of the head there. Raises NotProvenError, httpx.HTTPError."""
    place = url.copy_with(path=CERTIFICATE, query=None)
    with (
        httpx.Client(transport=direct((), _trusting_all()), timeout=LIMITS) as http,
        http.stream("GET", place) as answer,
    ):
        stream = answer.extensions["network_stream"].get_extra_info("ssl_object")
        certificate: bytes = stream.getpeercert(True)
        body = b""
        for piece in answer.iter_raw():
            body += piece
            if len(body) > MOST_BYTES:
                break
    told = _object(body)
    if _is_among(proof(known.key, certificate), told.get("proofs")):
        return certificate
    raise NotProvenError(_replaced(told.get("replaced"), proof(known.mark, certificate)))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_among(own: str, proofs: object) -> bool:
    found = proofs if isinstance(proofs, Iterable) else ()
    texts = (one for one in found if isinstance(one, str) and one.isascii())
    return any(hmac.compare_digest(own, one) for one in texts)


def _replaced(rows: object, own: str) -> str:
    at = rows.get(own) if isinstance(rows, Mapping) and _is_among(own, rows) else None
    fits = isinstance(at, str) and len(at) <= MOST_TIME_CHARACTERS and at.isprintable()
    return str(at) if fits else ""


def _trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fault_of(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return why a certificate was not accepted; None if `error` has another cause."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None
