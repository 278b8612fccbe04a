"""The control port's paths for workers: check-in, the long poll for the outcome, leaving, logs."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from entrypoint.cluster import storage_proof
from entrypoint.cluster.access import Keys
from entrypoint.cluster.job_routes import JobRoutes
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.request_io import body_of, hangs_up_before
from entrypoint.cluster.roll import question_seconds
from entrypoint.cluster.roll_observer import RollObserver
from entrypoint.cluster.worker_logs import WorkerLogs
from entrypoint.machine.gpus.use import Condition, GpuUse
from entrypoint.preflight.changes import Change
from entrypoint.processes.rank_processes import RankProcess

SHORTEST_SHARE = 0.6
"""Of the limit of a poll. Lengths differ, so that nodes that came at once spread out."""


@dataclass(slots=True)
class LeftoverReports:
    """What an ended job has left on the workers: the head asks them to end it, and hears of it.

    Every method may be called from any thread.
    """

    job: str = ""
    """Ray's name for the submission that is over; "" while a job runs."""
    began: float = 0.0
    """Seconds of the monotonic clock."""
    _answered: set[str] = field(default_factory=set)
    _left: dict[str, str] = field(default_factory=dict)
    """Worker → what was there."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, job: str) -> None:
        with self._lock:
            self.job, self.began = job, time.monotonic()
            self._answered.clear()

    def end(self) -> None:
        self.job = ""

    def answer(self, node: str, job: str, left: str) -> None:
        """Note what a worker has ended; it may answer again, also when the next job runs."""
        with self._lock:
            if job == self.job:
                self._answered.add(node)
            if left:
                earlier = self._left.get(node)
                self._left[node] = f"{earlier}, {left}" if earlier else left

    def answered(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._answered)

    def take(self) -> dict[str, str]:
        """Return what workers have ended since the last call."""
        with self._lock:
            left, self._left = self._left, {}
            return left


@dataclass(slots=True)
class RankReports:
    """Where the ranks of all workers stand: the head asks, and hears of it."""

    asked: int = 0
    """Number of the newest question."""
    began: float = 0.0
    """When it was asked; seconds of the monotonic clock."""
    _told: dict[str, list[RankProcess]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        with self._lock:
            self.asked, self.began, self._told = self.asked + 1, time.monotonic(), {}

    def answer(self, node: str, number: int, ranks: list[RankProcess]) -> None:
        with self._lock:
            if number == self.asked:
                self._told[node] = ranks

    def answered(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._told)

    def take(self) -> dict[str, list[RankProcess]]:
        with self._lock:
            return self._told


@dataclass(slots=True)
class WorkerRoutes:
    registry: NodeRegistry
    observer: RollObserver
    jobs: JobRoutes
    keys: Keys
    outcome: dict[str, Any] | None = field(init=False, default=None)
    """How the cluster has ended; None until then."""
    stacks_of: int = field(init=False, default=0)
    """The attempt whose stacks the workers are to write; 0 if none."""
    sweep: LeftoverReports = field(init=False, default_factory=LeftoverReports)
    ranks: RankReports = field(init=False, default_factory=RankReports)
    heritage: dict[str, Any] | None = field(init=False, default=None)
    """What a worker has to know to take the head's place; None if none may."""
    ray_port: int = field(init=False, default=0)
    """Of the head's Ray; 0 if nobody has said it."""
    announced: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Ends all open polls."""

    def routes(self) -> list[Route]:
        return [
            Route("/v1/check-in", self._check_in, methods=["POST"]),
            Route("/v1/outcome", self._ask_outcome),
            Route("/v1/leave", self._leave, methods=["POST"]),
            Route("/v1/left-over", self._left_over, methods=["POST"]),
            Route("/v1/health", self._health, methods=["POST"]),
            Route("/v1/ranks", self._ranks, methods=["POST"]),
            Route(
                "/v1/log", WorkerLogs(self.jobs.run.logs, self.jobs.reads).take, methods=["POST"]
            ),
        ]

    def answer_running(self) -> None:
        """End all open polls; later polls wait as usual. Call it in the server's loop."""
        self.announced.set()
        self.announced = asyncio.Event()

    async def _check_in(self, request: Request) -> Response:
        from entrypoint.cluster import request_format

        try:
            info = request_format.node_info(await body_of(request, request_format.MOST_BYTES))
        except ValueError as error:
            return JSONResponse({"accepted": False, "reason": str(error)}, status_code=400)
        if info.storage:
            look = partial(storage_proof.is_there, self.jobs.run.root, info.storage)
            seen = await self.jobs.reads.ask(look)
            info = replace(info, storage=self.registry.me.storage if seen else "")
        answer = self.registry.check_in(info, request.client.host if request.client else "")
        if answer.retry_because:
            return JSONResponse({"error": answer.retry_because}, status_code=503)
        if answer.had_joined:  # before it starts another Ray
            await asyncio.to_thread(self.observer.rejoined, info)
        if answer.refusal:
            await asyncio.to_thread(self.observer.refused, info, answer.refusal)
            return JSONResponse({"accepted": False, "reason": answer.refusal}, status_code=409)
        if answer.is_new:
            await asyncio.to_thread(self.observer.checked_in, info)
            if info.joined:
                await asyncio.to_thread(self._report_differences)
        accepted = {
            "incarnation": self.registry.incarnation,
            "address": self.registry.me.address,
            "ray_port": self.ray_port,
            "own_key": answer.own_key,
            "bare": answer.bare,
            "question_seconds": self._question_seconds(),
            "ray_token": None if self.keys.first == self.keys.token else self.keys.first,
        }
        return JSONResponse({"accepted": True, **accepted, "heritage": self.heritage})

    def _question_seconds(self) -> float:
        return question_seconds(self.registry.expected)

    def _report_differences(self) -> None:
        for sentence in self.registry.new_differences():
            self.observer.differs(sentence)

    async def _ask_outcome(self, request: Request) -> Response:
        """Long poll: answers when there is an outcome, else `running` after a while.

        An open poll is the worker's sign of life, so it ends as soon as the connection does.
        """
        from entrypoint.cluster import request_format

        try:
            asked = request_format.query(request_format.Question, request.query_params)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        gpus = [
            GpuUse(busy, used, total, Condition(clock, watts, degrees, tuple(held)))
            for busy, used, total, (clock, watts, degrees, held) in asked.gpus
        ]
        entry = self.registry.poll_opened(asked.node, asked.oom_kills, gpus)
        if entry is None:
            row = {
                "error": f"{asked.node} has not checked in",
                "incarnation": self.registry.incarnation,
            }
            return JSONResponse(row, status_code=404)
        hung_up = True
        try:
            seconds = self._question_seconds() * random.uniform(SHORTEST_SHARE, 1.0)
            hung_up = await hangs_up_before(self.announced, request, seconds)
        finally:
            self.registry.poll_closed(entry, hung_up=hung_up)
        asks = {"stacks_of": self.stacks_of, "ranks_asked": self.ranks.asked}
        told = {"over": self.sweep.job, "spare": self.registry.is_spare(asked.node)}
        answer = {"outcome": "running", "job": self.jobs.shown, **asks, **told}
        if self.outcome is not None:
            self.registry.acknowledge(asked.node)
            answer = self.outcome
        return JSONResponse({**answer, "incarnation": self.registry.incarnation})

    async def _leave(self, request: Request) -> Response:
        """A worker whose machine is about to go asks to be released."""
        from entrypoint.cluster import request_format

        try:
            asked = request_format.query(request_format.Departure, request.query_params)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        if not self.registry.leaves(asked.node):
            return JSONResponse({"error": f"{asked.node} has not checked in"}, status_code=404)
        self.observer.leaving(asked.node, asked.why)
        return JSONResponse({"leaving": True}, status_code=202)

    async def _left_over(self, request: Request) -> Response:
        """A worker says what it has ended of a job that is over."""
        from entrypoint.cluster import request_format

        try:
            told = request_format.query(request_format.LeftOver, request.query_params)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        self.sweep.answer(told.node, told.job, told.left)
        return JSONResponse({"taken": True})

    async def _ranks(self, request: Request) -> Response:
        """A worker says where its ranks stand."""
        from entrypoint.cluster import request_format

        try:
            body = await body_of(request, request_format.MOST_OF_RANKS)
            told = request_format.ranks(body)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        self.ranks.answer(told.node, told.number, told.ranks)
        return JSONResponse({"taken": True})

    async def _health(self, request: Request) -> Response:
        """A worker says what is worse on it than before."""
        from entrypoint.cluster import request_format

        try:
            body = await body_of(request, request_format.MOST_BYTES)
            told = request_format.health(body)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        self.registry.health.add(told.node, [Change(*one) for one in told.changes])
        return JSONResponse({"taken": True})
