"""Changes the run's token while the run goes on: the head's side of `rollcall rotate-token`.

A worker that is there gets the new token by its own key, which the head gave it when it checked in.
The old token gets nothing any more, from the first moment on: whoever has it learns no new one.
Ray cannot change its token while it runs: Ray, and the key of the services, stay as they were at
the head's start.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract.journal import timestamp
from contract.options import ParseError
from contract.run_dir import RunFiles, write_atomically
from entrypoint.cluster.access import RENEWAL, TOKEN, Keys
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.request_io import body_of
from entrypoint.cluster.roll_observer import RollObserver
from entrypoint.cluster.serving import refused
from entrypoint.config import parsers
from entrypoint.run import token as run_token

MOST_BYTES = 2**16
TOLD_SECONDS = 10.0
"""Limit for the wait until all workers have the new token."""
LOOK_SECONDS = 0.05
GIVE_IT = (
    "the head has its token by ROLLCALL_TOKEN, and writes none: give the new one by --token-file"
)
NOT_NEW = "the new token is, or was, a key of this run: give another one"


class RotationError(Exception):
    """The token is not changed; the sentence says why."""


@dataclass(slots=True)
class TokenRotation:
    run: RunFiles
    keys: Keys
    registry: NodeRegistry
    observer: RollObserver
    wake: Callable[[], None]
    """Ends all open polls; called in the server's loop."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def routes(self) -> list[Route]:
        return [
            Route(TOKEN, self._change, methods=["POST"]),
            Route(RENEWAL, self._renew, methods=["POST"]),
        ]

    def rotate(self, given: str | None) -> list[str]:
        """Change the token; return the names of the workers that may get it.

        `given`: the new one; None: one is made. Raises RotationError, OSError, SupersededError.
        """
        with self._lock:
            if given is None and self.keys.is_given:
                raise RotationError(GIVE_IT)
            new = given or secrets.token_hex(24)
            if self.keys.access(new) or self.keys.retired(new) or run_token.is_derived(new):
                raise RotationError(NOT_NEW)
            self.observer.token_changes()  # before a file changes: a head that was superseded ends
            at = timestamp()
            run_token.retire(self.run, self.keys.token, at)
            if not self.keys.is_given:
                write_atomically(self.run.token, new, mode=0o600)
            own = self.registry.own_keys()
            self.keys.rotate(new, at, own)
            return sorted(own)

    async def _change(self, request: Request) -> Response:
        try:
            given = _token_in(await body_of(request, MOST_BYTES))
            workers = await asyncio.to_thread(self.rotate, given)
        except (RotationError, ValueError) as error:
            return refused(400, str(error))
        self.wake()
        deadline = time.monotonic() + TOLD_SECONDS
        while (told := self.keys.renewed()) < set(workers) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
        missing = sorted(set(workers) - told)
        await asyncio.to_thread(self.observer.token_changed, sorted(told), missing)
        row = {"told": sorted(told), "not_told": missing, "is_given": self.keys.is_given}
        return JSONResponse(row)

    async def _renew(self, request: Request) -> Response:
        """Answer a worker, which has shown its own key, with the new token."""
        return JSONResponse({"token": self.keys.token})


def _token_in(body: bytes) -> str | None:
    """Return the token that the body gives; None if it gives none. Raises ValueError."""
    from entrypoint.cluster import request_format

    if (text := request_format.token_change(body or b"{}").token) is None:
        return None
    try:
        return parsers.token(text).reveal()
    except ParseError as error:
        raise ValueError(f"the new token {error}") from None
