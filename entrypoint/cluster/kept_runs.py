"""Serves the page of runs from their directories, for `rollcall open RUN`: read-only, on loopback.

The handlers are those of the head; only the state has another source.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract.run_dir import RunFiles
from entrypoint.cluster import browser
from entrypoint.cluster.access import Keys, page_link
from entrypoint.cluster.gpu_history import GpuHistory
from entrypoint.cluster.serving import Listener, Serving
from entrypoint.cluster.view_routes import ViewRoutes
from entrypoint.run import run_dir_state, run_list
from entrypoint.run.run_dir_reads import RunDirReads

LOOPBACK = "127.0.0.1"


class KeptRuns:
    """A run directory with the jobs in it, or the runs below a directory."""

    def __init__(self, root: Path) -> None:
        """`root`: a run directory, or one with runs."""
        self._root = root
        self.is_run = RunFiles(root).journal.exists()
        self._found: dict[str, RunFiles] = {}
        """The runs as the page has listed them last."""

    def listed(self) -> dict[str, RunFiles]:
        self._found = run_list.find(self._root)
        return self._found

    def files_of(self, request: Request) -> RunFiles:
        job = request.query_params.get("job", "")
        if not job:
            found = RunFiles(self._root) if self.is_run else None
        elif (found := self._found.get(job)) is None:
            found = self.listed().get(job)
        if found is None:
            raise HTTPException(404, f"there is no run {job} in {self._root}")
        run_list.check(found)
        return found


class KeptRunsServer:
    """Start with `with`: then `link` opens the page."""

    def __init__(self, root: Path, port: int = 0) -> None:
        """`port`: 0: a free one. Raises OSError if the port is taken."""
        self._runs = KeptRuns(root.resolve())
        self._reads = RunDirReads()
        self._closing = asyncio.Event()
        page = browser.PAGE if self._runs.is_run else browser.page_of_list(root.resolve().name)
        views = ViewRoutes(self._runs, self._reads, self._closing, GpuHistory(), page)
        routes = [Route("/healthz", self._health), Route("/v1/state", self._state)]
        listener = Listener(socket.create_server((LOOPBACK, port)))
        keys = Keys(secrets.token_urlsafe(32))
        self._serving = Serving([*routes, *views.routes()], keys, listener, self._closing.set)
        own = f"http://{LOOPBACK}:{listener.socket.getsockname()[1]}"
        self.link = page_link(own, keys.read_only)

    def __enter__(self) -> KeptRunsServer:
        self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _state(self, request: Request) -> Response:
        job = request.query_params.get("job") or None
        look = partial(self._state_of, request, job)
        return JSONResponse(await self._reads.ask(look))

    def _state_of(self, request: Request, job: str | None) -> dict[str, object]:
        return run_dir_state.read(self._runs.files_of(request), job)
