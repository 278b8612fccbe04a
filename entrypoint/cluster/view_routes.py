"""Paths for the page: the page itself, the list of runs, and a run's events, curves and logs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from contract.journal_file.lines import bounded
from contract.metrics.charts import title_of
from contract.run_dir import RunFiles
from entrypoint.cluster import browser
from entrypoint.cluster.event_stream import Asked, follow
from entrypoint.cluster.gpu_history import GpuHistory
from entrypoint.cluster.serving import refused
from entrypoint.run import comparison, log_files
from entrypoint.run.curves import LINES, Best, Curves
from entrypoint.run.flight_record import read_run, run_end
from entrypoint.run.flight_record.record import NothingToReportError
from entrypoint.run.run_dir_reads import RunDirReads
from entrypoint.run.run_list import RunList

MOST_LAST = 10_000
"""Most events for which the end of the journal is read at once. All of them come in parts."""
MOST_SAMPLES = 8
LONGEST_SAMPLE_TEXT = 2**14
MOST_TURNS = 100
MOST_CURVES = 16
"""Runs whose curves are kept. A page asks every 10 s, and to read them again takes seconds."""


class Runs(Protocol):
    """The runs that the page can show: those of a head, or those below a directory."""

    def files_of(self, request: Request) -> RunFiles:
        """Return the files of the run that `?job=` names. Raises HTTPException and OSError."""
        ...

    def listed(self) -> Mapping[str, RunFiles]:
        """Return the runs of the list by what `?job=` says for them. Raises OSError."""
        ...


@dataclass(slots=True)
class ViewRoutes:
    runs: Runs
    reads: RunDirReads
    closing: asyncio.Event
    gpus: GpuHistory
    page: str = browser.PAGE
    _list: RunList = field(init=False, default_factory=RunList)
    _curves: OrderedDict[Path, Curves] = field(init=False, default_factory=OrderedDict)
    """File of metrics → its curves, of the runs that were asked for last."""

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page),
            Route("/v1/events", self._events),
            Route("/v1/curves", self._rows),
            Route("/v1/gpus", self._gpus),
            Route("/v1/samples", self._samples),
            Route("/v1/runs", self._runs),
            Route("/v1/comparison", self._comparison),
            Route("/v1/logs", self._logs),
            Route("/v1/logs/{name}", self._log),
        ]

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(self.page)

    async def _events(self, request: Request) -> Response:
        """Answer with the events after the header Last-Event-ID, which a browser sends again."""
        query = request.query_params
        last, after = _count(query.get("last")), _count(request.headers.get("last-event-id"))
        without = tuple(query.get("without", "").split(","))
        newest = None if after or last is None else min(last, MOST_LAST)
        asked = Asked(after or 0, without, newest)
        journal = self.runs.files_of(request).journal
        return EventSourceResponse(follow(journal, self.reads, self.closing, asked))

    def _curves_of(self, run: RunFiles) -> Curves:
        curves = self._curves.get(run.metrics) or Curves(run.metrics)
        self._curves[run.metrics] = curves
        self._curves.move_to_end(run.metrics)
        if len(self._curves) > MOST_CURVES:
            self._curves.popitem(last=False)
        return curves

    async def _rows(self, request: Request) -> Response:
        run = self.runs.files_of(request)
        curves = self._curves_of(run)
        after, version = request.query_params.get("after"), request.query_params.get("version", "")
        look = partial(_points, run, curves, _count(after) or 0, version)
        return JSONResponse(await self.reads.ask(look))

    async def _gpus(self, request: Request) -> Response:
        after, version = request.query_params.get("after"), request.query_params.get("version", "")
        return JSONResponse(self.gpus.rows(_count(after) or 0, version))

    async def _samples(self, request: Request) -> Response:
        look = partial(log_files.last_rows, self.runs.files_of(request).samples, MOST_SAMPLES)
        return JSONResponse({"samples": [*map(_sample, await self.reads.ask(look))]})

    async def _runs(self, request: Request) -> Response:
        """Answer with the rows of runs that are read by now, and the colours of their curves."""
        found = await self.reads.ask(lambda: self._list.rows(self.runs.listed()))
        return JSONResponse({**found, "colours": LINES})

    async def _comparison(self, request: Request) -> Response:
        """Answer with the runs of each `?job=` side by side; one that has not begun is left out."""
        wanted = dict.fromkeys(request.query_params.getlist("job"))
        if len(wanted) > comparison.MOST_RUNS:
            return refused(400, f"{comparison.MOST_RUNS} runs at most are compared")
        runs = [self.runs.files_of(_asking(request, job)) for job in wanted]
        known = [(run, self._curves_of(run)) for run in runs]
        look = partial(_side_by_side, [*wanted], known)
        return JSONResponse(await self.reads.ask(look))

    async def _logs(self, request: Request) -> Response:
        names = await self.reads.ask(partial(log_files.names, self.runs.files_of(request).logs))
        return JSONResponse({"logs": names})

    async def _log(self, request: Request) -> Response:
        """Answer with a piece of a log: its text, and the offset of the next piece."""
        directory, name = self.runs.files_of(request).logs, request.path_params["name"]
        try:
            offset = int(request.query_params.get("offset", "0"))
        except ValueError:
            return refused(400, "offset is not a whole number")
        if not await self.reads.ask(partial(log_files.is_there, directory, name)):
            return refused(404, f"there is no log {name}")
        piece = await self.reads.ask(partial(log_files.read, directory, name, offset))
        return JSONResponse(piece._asdict())


def _points(run: RunFiles, curves: Curves, after: int, version: str) -> dict[str, Any]:
    """Return the new points; of a run that is over and has no metrics, those of its journal."""
    found = curves.rows(after, version)
    if found["steps"] or run.metrics.exists() or not run_end.read(run):
        return {**found, "best": _best(curves.best())}
    now = f"journal-{run.journal.stat().st_size}"
    if version == now:
        return {**found, "version": now}
    points = read_run.told(run)
    return {**found, **points.rows(), "best": _best(points.best), "version": now}


def _asking(request: Request, job: str) -> Request:
    """Return a request that names this run alone."""
    return Request({**request.scope, "query_string": urlencode({"job": job}).encode()})


def _side_by_side(names: Sequence[str], known: Sequence[tuple[RunFiles, Curves]]) -> dict[str, Any]:
    found = {}
    for name, (run, curves) in zip(names, known, strict=True):
        with suppress(NothingToReportError):
            found[name] = comparison.read(run, curves)
    answer = comparison.of([*found.values()])
    for row, name in zip(answer["runs"], found, strict=True):
        row["id"] = name
    return answer


def _best(best: Best | None) -> dict[str, Any] | None:
    return best and {**best._asdict(), "title": title_of(best.metric)}


def _sample(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row as the page reads it, whatever another program has written there."""
    turns = [
        {**turn, "tool_calls": _rows(turn.get("tool_calls"))} for turn in _rows(row.get("turns"))
    ]
    metrics = row.get("metrics")
    shown = {**row, "turns": turns, "metrics": metrics if isinstance(metrics, dict) else {}}
    found: Mapping[str, Any] = bounded(shown, LONGEST_SAMPLE_TEXT)
    return found


def _rows(value: object) -> list[dict[str, Any]]:
    rows = value if isinstance(value, list) else []
    return [row for row in rows[:MOST_TURNS] if isinstance(row, dict)]


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else None
