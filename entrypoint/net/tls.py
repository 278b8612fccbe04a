"""TLS as a client of the control port: by an authority's file, or by the proof of a head.

A head shows at CERTIFICATE that it knows a key of the run: an HMAC of the certificate of that very
connection. Without the key nobody can make one for a certificate of his own, and the client sends
no key before. From then on it accepts this certificate alone.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx

from entrypoint.net.http import direct
from entrypoint.net.paths import CERTIFICATE

MOST_BYTES = 16 * 1024
"""Of the answer of whoever is there."""
SECONDS = 3.0
SCRYPT_N, SCRYPT_R = 2**14, 8
"""RFC 7914, 16 MiB and about 40 ms: whoever sees a proof has to pay this for each key he tries."""


class NotProvenError(Exception):
    """What answers does not show that it knows the key."""


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
        key: str,
        socket_options: Sequence[tuple[int, int, int]] = (),
        first: ssl.SSLContext | None = None,
    ) -> None:
        """`first`: what is tried before a proof is asked for."""
        self._key, self._options = key, socket_options
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
        certificate = proven_certificate(url, self._key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # a tunnel or a published port has any name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate)
        return direct(self._options, context)


def proven_certificate(url: httpx.URL, key: str) -> bytes:
    """Return the certificate (DER) of the head there. Raises NotProvenError, httpx.HTTPError."""
    place = url.copy_with(path=CERTIFICATE, query=None)
    with (
        httpx.Client(transport=direct((), _trusting_all()), timeout=SECONDS) as http,
        http.stream("GET", place) as answer,
    ):
        stream = answer.extensions["network_stream"].get_extra_info("ssl_object")
        certificate: bytes = stream.getpeercert(True)
        body = b""
        for piece in answer.iter_raw():
            body += piece
            if len(body) > MOST_BYTES:
                break
    own = proof(key, certificate)
    if not any(hmac.compare_digest(own, one) for one in _proofs(body)):
        raise NotProvenError
    return certificate


def _proofs(body: bytes) -> list[str]:
    try:
        found = httpx.Response(200, content=body).json()["proofs"]
    except (ValueError, KeyError, TypeError):
        return []
    return [one for one in found if isinstance(one, str) and one.isascii()]


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
