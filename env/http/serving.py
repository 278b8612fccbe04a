"""What the HTTP servers of `env` share: sockets, bodies with a limit, refusals, an orderly end."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from env.http import connections
from env.http.batching import QueueFullError
from env.http.key_guard import KeyGuard

SECONDS_TO_FINISH = 10
"""On SIGTERM, for requests that are under way."""


MOST_HELD = 512 * 2**20
"""Bytes of all bodies that a server reads at a time."""


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
