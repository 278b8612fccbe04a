"""HTTP to the cluster's own servers, past any proxy."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from entrypoint.net.wait import NotYetError

NOT_READY = frozenset({500, 502, 503, 504})
"""Statuses of a server that is loading its model, or of a proxy whose server is missing."""

ANSWER_SECONDS = 3.0


@functools.cache
def tls() -> ssl.SSLContext:
    """The certificates. A process loads them once, which takes tens of milliseconds of a CPU."""
    return httpx.create_ssl_context()


def direct(
    socket_options: Sequence[tuple[int, int, int]] = (), trust: ssl.SSLContext | None = None
) -> httpx.HTTPTransport:
    """The transport of an httpx.Client that ignores HTTP_PROXY, so no proxy sees the token.

    `trust`: which certificates are accepted; by default as variables such as SSL_CERT_FILE say.
    """
    return httpx.HTTPTransport(verify=trust or tls(), socket_options=socket_options)


def bearer(token: str) -> dict[str, str]:
    """The header that carries a token; none if the token is empty."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def said_by(error: Exception) -> str:
    """Return an error's words without a full stop, as others follow them; its type without any."""
    return str(error).rstrip(". ") or type(error).__name__


@contextmanager
def or_not_yet(begin: str = "") -> Iterator[None]:
    """Raises NotYetError, whose words begin with `begin`, for no answer or an unfit one."""
    try:
        yield
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise NotYetError(f"{begin}{said_by(error)}") from None


def status_of(url: str) -> int:
    """The status of a GET. Nearly any will do: a server that takes only POST says 404, 405 or 501.

    Raises NotYetError if nothing answers within ANSWER_SECONDS, or with a status in NOT_READY.
    """
    try:
        with httpx.Client(transport=direct(), timeout=ANSWER_SECONDS) as http:
            status = http.get(url).status_code
    except httpx.HTTPError as error:
        raise NotYetError(f"{url}: {said_by(error)}") from None
    if status in NOT_READY:
        raise NotYetError(f"{url} answers {status}")
    return status
