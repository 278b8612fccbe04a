"""The control port's paths for submitted jobs and their working directories."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.job_queue_protocol import JobQueueProtocol, SubmissionError, which_job
from entrypoint.cluster.request_io import body_of
from entrypoint.cluster.serving import refused
from entrypoint.config.runtime_env import PACKAGE
from entrypoint.run import run_attempts
from entrypoint.run.flight_record import run_end
from entrypoint.run.run_dir_reads import RunDirReads

MOST_BYTES = 2**20
"""Limit for a submission without its working directory."""
NO_QUEUE = (
    "this head runs the job that it was started with: start the nodes with `rollcall up "
    "--wait-for-jobs` for a cluster that takes jobs"
)


@dataclass(slots=True)
class JobRoutes:
    run: RunFiles
    reads: RunDirReads
    queue: JobQueueProtocol | None = None
    """None if the head runs a job of its own."""
    shown: str | None = None
    """The submitted job that runs."""

    @property
    def shown_files(self) -> RunFiles:
        """The files of the run that the page shows."""
        return self._files(self.shown or "")

    def routes(self) -> list[Route]:
        return [
            Route("/v1/jobs", self._list),
            Route("/v1/jobs", self._submit, methods=["POST"]),
            Route("/v1/jobs/{job}", self._show),
            Route("/v1/pipelines", self._submit_stages, methods=["POST"]),
            Route("/v1/jobs/{job}/stop", self._stop, methods=["POST"]),
            Route("/v1/packages/{name}", self._upload, methods=["PUT"]),
        ]

    def files_of(self, request: Request) -> RunFiles:
        """Return the files of the job that `?job=` names; without it, those of the head's run."""
        job = request.query_params.get("job", "")
        return self._files(self._row(job)["id"] if job else "")

    def listed(self) -> dict[str, RunFiles]:
        """Return the runs of the queue's jobs."""
        rows = self.queue.rows() if self.queue else []
        return {row["id"]: self._files(row["id"]) for row in rows}

    def _files(self, job: str) -> RunFiles:
        return RunFiles(self.run.jobs / job) if job else self.run

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"jobs": self._taken().rows()})

    async def _submit(self, request: Request) -> Response:
        from entrypoint.cluster import request_format

        queue = self._taken()
        try:
            asked = request_format.submission(await body_of(request, MOST_BYTES))
            row = await asyncio.to_thread(
                queue.submit, asked.job, asked.runtime_env, asked.key, asked.name
            )
        except SubmissionError as error:
            return refused(400, *error.faults)
        except ValueError as error:
            return refused(400, str(error))
        return JSONResponse(row, status_code=201)

    async def _submit_stages(self, request: Request) -> Response:
        from entrypoint.cluster import request_format

        queue = self._taken()
        try:
            stages = request_format.pipeline(await body_of(request, MOST_BYTES))
            rows = await asyncio.to_thread(queue.submit_stages, stages)
        except SubmissionError as error:
            return refused(400, *error.faults)
        except ValueError as error:
            return refused(400, str(error))
        return JSONResponse({"jobs": rows}, status_code=201)

    async def _show(self, request: Request) -> Response:
        row = self._row(request.path_params["job"])
        look = partial(Progress.read, self._files(row["id"]).progress)
        progress = await self.reads.ask(look)
        is_running = row["state"] == "running"
        journal = self._files(row["id"]).journal
        told = await self.reads.ask(
            partial(run_attempts.read, journal, progress, trains=is_running)
        )
        files = self._files(row["id"])
        end = await self.reads.ask(partial(run_end.read, files)) if row["ended"] else None
        return JSONResponse({**row, **told.as_dict(), **run_end.reasons(end)})

    async def _stop(self, request: Request) -> Response:
        row = self._row(request.path_params["job"])
        await asyncio.to_thread(self._taken().stop, row["id"])
        return JSONResponse(self._row(row["id"]), status_code=202)

    async def _upload(self, request: Request) -> Response:
        """Keep the archive of a working directory until jobs need it."""
        self._taken()
        name = request.path_params["name"]
        if not PACKAGE.fullmatch(name):
            return refused(400, f"{name} is not a name of an archive")
        directory = self.run.packages
        temporary = directory / f".{name}.{os.urandom(4).hex()}"
        try:
            # Mode 0700: a working directory may hold secrets.
            await asyncio.to_thread(directory.mkdir, mode=0o700, exist_ok=True)
            await _receive(request, temporary)
            await asyncio.to_thread(temporary.replace, directory / name)
        except ClientDisconnect:
            return refused(400, "the archive did not arrive whole")
        finally:
            await asyncio.to_thread(temporary.unlink, missing_ok=True)
        return JSONResponse({"working_dir": str(directory / name)}, status_code=201)

    def _taken(self) -> JobQueueProtocol:
        if self.queue is None:
            raise HTTPException(409, NO_QUEUE)
        return self.queue

    def _row(self, job: str) -> Mapping[str, Any]:
        row = self._taken().row(job)
        if row is None:
            rows = self._taken().rows()
            names = [(row["id"], row.get("name") or row["stage"]) for row in rows]
            raise HTTPException(404, f"there is no job {job}: {which_job(job, names)}")
        return row


async def _receive(request: Request, path: Path) -> None:
    """Write the body to `path`. Raises OSError."""
    file = await asyncio.to_thread(path.open, "xb")
    try:
        async for part in request.stream():
            await asyncio.to_thread(file.write, part)
    finally:
        await asyncio.to_thread(file.close)  # NFS writes what it has still to write
