"""Ray's job API, in small, on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from entrypoint.job.ray_jobs import JobClient
from entrypoint.job.recipes.base import JobCommand
from tests.support.control import TOKEN

SECRET = "9f86d081884c7d659a2feaa0c55ad015"
NEVER = threading.Event()
NOWHERE = Path("/proc/no/such/directory")


class FakeRay:
    """Answers as Ray 2.55's dashboard does; what it answers is set by the test."""

    def __init__(self) -> None:
        self.refusals: list[tuple[int, str]] = []
        """What the next submissions are answered; then they are taken."""
        self.submitted: list[dict[str, Any]] = []
        self.packages: dict[str, bytes] = {}
        """Archives of working directories."""
        self.brought: list[str] = []
        """The names of archives, as often as they were brought."""
        self.stopped: list[str] = []
        self.status = "RUNNING"
        self.output = ""
        """What a job has printed."""
        self.statuses: dict[str | None, str] = {}
        """Submission → status, as the list of all jobs has it."""
        self.tokens: set[str | None] = set()
        routes = [
            Route("/api/jobs/", self._submit, methods=["POST"]),
            Route("/api/jobs/", self._list),
            Route("/api/jobs/{id}", self._info),
            Route("/api/jobs/{id}/logs", self._logs),
            Route("/api/jobs/{id}/stop", self._stop, methods=["POST"]),
            Route("/api/packages/gcs/{name}", self._package, methods=["GET", "PUT"]),
        ]
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> FakeRay:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(5)

    @property
    def url(self) -> str:
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def _submit(self, request: Request) -> Response:
        self.tokens.add(request.headers.get("authorization"))
        if self.refusals:
            status, text = self.refusals.pop(0)
            return PlainTextResponse(text, status)
        self.submitted.append(await request.json())
        return JSONResponse({"submission_id": self.submitted[-1]["submission_id"]})

    async def _package(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "PUT":
            self.packages[name] = await request.body()
            self.brought.append(name)
        return Response(status_code=200 if name in self.packages else 404)

    async def _info(self, request: Request) -> Response:
        code = {"SUCCEEDED": 0, "FAILED": 3}.get(self.status)
        row = {"status": self.status, "message": None, "driver_exit_code": code}
        return JSONResponse(row, 404 if request.path_params["id"] == "unknown" else 200)

    async def _list(self, request: Request) -> Response:
        rows = [{"submission_id": name, "status": to} for name, to in self.statuses.items()]
        return JSONResponse(rows)

    async def _logs(self, request: Request) -> Response:
        return JSONResponse({"logs": self.output})

    async def _stop(self, request: Request) -> Response:
        self.stopped.append(request.path_params["id"])
        if self.stopped[-1] in self.statuses:
            self.statuses[self.stopped[-1]] = "STOPPED"
        return JSONResponse({"stopped": True})


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    with FakeRay() as ray:
        yield ray


def client(url: str, ray_dir: Path = NOWHERE) -> JobClient:
    return JobClient(url, TOKEN, ray_dir, [SECRET])


def submit(ray: FakeRay, stop: threading.Event = NEVER) -> None:
    command = JobCommand(("python", "train.py"), {"STEP": "7"})
    with TemporaryDirectory() as home:  # the driver's variables lie there
        client(ray.url, Path(home, "ray")).submit("one", command, stop)
