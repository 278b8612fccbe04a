"""The control port's paths for the page: the page itself, the journal's events, the curves."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from entrypoint.cluster import browser
from entrypoint.cluster.event_stream import Asked, follow
from entrypoint.cluster.gpu_history import GpuHistory
from entrypoint.cluster.job_routes import JobRoutes
from entrypoint.run import log_files
from entrypoint.run.curves import Curves
from entrypoint.run.storage_reads import StorageReads

MOST_LAST = 10_000
"""Most events for which the end of the journal is read at once. All of them come in parts."""
MOST_SAMPLES = 8
MOST_CURVES = 16
"""Runs whose curves are kept. A page asks every 10 s, and to read them again takes seconds."""


@dataclass(slots=True)
class ViewRoutes:
    jobs: JobRoutes
    reads: StorageReads
    closing: asyncio.Event
    gpus: GpuHistory
    _curves: OrderedDict[Path, Curves] = field(init=False, default_factory=OrderedDict)
    """File of metrics → its curves, of the runs that were asked for last."""

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page),
            Route("/v1/events", self._events),
            Route("/v1/curves", self._rows),
            Route("/v1/gpus", self._gpus),
            Route("/v1/samples", self._samples),
        ]

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(browser.PAGE)

    async def _events(self, request: Request) -> Response:
        """Answer with the events after the header Last-Event-ID, which a browser sends again."""
        query = request.query_params
        last, after = _count(query.get("last")), _count(request.headers.get("last-event-id"))
        without = tuple(query.get("without", "").split(","))
        newest = None if after or last is None else min(last, MOST_LAST)
        asked = Asked(after or 0, without, newest)
        journal = self.jobs.files_of(request).journal
        return EventSourceResponse(follow(journal, self.reads, self.closing, asked))

    async def _rows(self, request: Request) -> Response:
        path = self.jobs.files_of(request).metrics
        curves = self._curves.get(path) or Curves(path)
        self._curves[path] = curves
        self._curves.move_to_end(path)
        if len(self._curves) > MOST_CURVES:
            self._curves.popitem(last=False)
        after, version = request.query_params.get("after"), request.query_params.get("version", "")
        look = partial(curves.rows, _count(after) or 0, version)
        return JSONResponse(await self.reads.ask(look))

    async def _gpus(self, request: Request) -> Response:
        after, version = request.query_params.get("after"), request.query_params.get("version", "")
        return JSONResponse(self.gpus.rows(_count(after) or 0, version))

    async def _samples(self, request: Request) -> Response:
        look = partial(log_files.last_rows, self.jobs.files_of(request).samples, MOST_SAMPLES)
        return JSONResponse({"samples": await self.reads.ask(look)})


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else None
