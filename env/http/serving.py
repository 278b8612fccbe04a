"""What the HTTP servers of `env` share: sockets, bodies with a limit, refusals, an orderly end."""

from __future__ import annotations

import errno
import signal
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

SECONDS_TO_FINISH = 10
"""On SIGTERM, for requests that are under way."""


async def read_body(request: Request, limit: int) -> bytes | None:
    """The whole body; None as soon as it is above `limit` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            return None
    return bytes(body)


def refusal(status: int, error: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)


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


def run(app: Starlette, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, which end the process with 0 after the open requests."""
    # uvicorn finishes its requests, then raises the signal again: being stopped is not a failure.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_FINISH)
    uvicorn.Server(config).run(sockets=[listening])
