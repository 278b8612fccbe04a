"""An HTTP application in a thread with its own event loop: that of a head, or of runs on disk."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract import lease
from entrypoint.cluster import browser
from entrypoint.cluster.access import Keys
from entrypoint.cluster.auth import Authentication
from entrypoint.run.tls.files import Served
from env.http import connections

SMALL_BYTES = 2048
"""Longer answers are compressed: the state of 1,000 nodes has 400 KB."""
CLOSE_SECONDS = 1.0
"""Time for open requests to end when the server ends."""


def application(routes: Sequence[Route], keys: Keys) -> Starlette:
    """Return the application with these paths, each of which needs one of the keys."""
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(browser.StrictHeaders),
            Middleware(Authentication, keys=keys),
            Middleware(GZipMiddleware, minimum_size=SMALL_BYTES, compresslevel=4),
        ],
        exception_handlers={
            OSError: _not_now,
            lease.SupersededError: _not_now,
            HTTPException: _explain,
        },
    )


def refused(status: int, *faults: str) -> Response:
    return JSONResponse({"error": "\n".join(faults)}, status_code=status)


def _explain(request: Request, error: Exception) -> Response:
    """Answer with the reason of an HTTPException."""
    assert isinstance(error, HTTPException)
    return refused(error.status_code, error.detail)


def _not_now(request: Request, error: Exception) -> Response:
    """Answer 503 if storage fails, so that the client retries."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return refused(503, f"{where}{error.strerror or error}")
    return refused(503, str(error))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a server listens, and what it shows."""

    socket: socket.socket
    tls: Served | None = None


class Serving:
    """Start with `with`; every method may be called from any thread."""

    def __init__(
        self, routes: Sequence[Route], keys: Keys, listener: Listener, end: Callable[[], None]
    ) -> None:
        """`end`: called in the loop when the server ends, so that open answers end in time."""
        self._socket, tls = listener.socket, listener.tls
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = connections.Server(
            application(routes, keys),
            "the control port",
            tls=tls.context if tls else None,
            lifespan="off",
        )
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answer open requests; close connections that do not take their answer in time."""
        self._server.should_exit = True
        self.in_loop(self._end_answers)
        self._thread.join(2 * CLOSE_SECONDS)

    def in_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _end_answers(self) -> None:
        """End all handlers in time: Python would cancel each with a traceback."""
        self._end()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._hang_up)

    def _hang_up(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def _serve(self) -> None:
        import_module("entrypoint.cluster.request_format")  # 0.2 s for pydantic, while Ray starts
        asyncio.run(self._run_server())

    async def _run_server(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._socket])
