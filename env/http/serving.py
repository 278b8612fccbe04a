"""What the HTTP servers of `env` share: sockets, bodies with a limit, the key, an orderly end."""

from __future__ import annotations

import base64
import errno
import hmac
import logging
import signal
import socket
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from env.http import connections
from env.http.batching import QueueFullError
from env.http.service_key import INSECURE, VARIABLE

SECONDS_TO_FINISH = 10
"""On SIGTERM, for requests that are under way."""
MOST_HELD = 512 * 2**20
"""Bytes of all bodies that a server reads at a time."""
HEALTH = "/health"
WANTED = (
    f"this server asks for its key: send 'Authorization: Bearer KEY', or give its address as "
    f"http://:KEY@HOST:PORT/PATH. The key is in the variable {VARIABLE} of each node, and the "
    f"trainer sends it by itself. With {INSECURE}=1 the server asks for none"
)


class Held:
    """Bytes of the bodies that are being read now."""

    total = 0


async def read_body(request: Request, limit: int) -> bytes | None:
    """The whole body; None as soon as it is above `limit` bytes.

    Raises QueueFullError if the bodies of all requests together are too large.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            Held.total += len(part)
            if len(body) > limit:
                return None
            if Held.total > MOST_HELD:
                raise QueueFullError(f"the bodies of all requests are above {MOST_HELD} bytes")
        return bytes(body)
    finally:
        Held.total -= len(body)


def refusal(status: int, error: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)


def log_to_stderr() -> None:
    """Log to standard error, as each server does."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(name)s: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S%z",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs whole URLs, with passwords


def listen(host: str, number: int) -> socket.socket:
    """A listening socket, IPv4 or IPv6 as `host` is; `::` takes both. Raises OSError."""
    family, *_, address = socket.getaddrinfo(
        host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=1024, dualstack_ipv6=both)


def why_not_listening(host: str, number: int, error: OSError) -> str:
    taken = error.errno == errno.EADDRINUSE
    reason = "another program has it; choose another --port" if taken else error.strerror
    return f"cannot listen on {host} port {number}: {reason}"


class KeyGuard:
    """Requires the key for every path, and tells a stranger only whether the server is ready."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        """`key`: "" if everyone may ask."""
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            if self._key and not self._has_key(request):
                await _without_key(request)(scope, receive, send)
                return
            scope["extensions"][connections.PROVE]()
        await self._app(scope, receive, send)

    def _has_key(self, request: Request) -> bool:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        sent = text.encode()
        if scheme.lower() == "basic":  # as clients send what an address has before its @
            try:
                sent = base64.b64decode(text, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(sent, self._key)


def _without_key(request: Request) -> JSONResponse:
    if request.scope["path"] == HEALTH and request.method in ("GET", "HEAD"):
        return JSONResponse({"status": "ready"})
    return JSONResponse({"error": WANTED}, 401, {"WWW-Authenticate": "Bearer"})


def run(app: Starlette, listening: socket.socket, key: str) -> None:
    """Serve until SIGTERM or SIGINT, which end the process with 0 after the open requests.

    `key`: what a request needs; "" for nothing.
    """
    # uvicorn finishes its requests, then raises the signal again: being stopped is not a failure.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))
    guarded = KeyGuard(app, key)
    server = connections.Server(guarded, "HTTP", timeout_graceful_shutdown=SECONDS_TO_FINISH)
    server.run(sockets=[listening])
