"""The head's HTTP: check-in, outcome, state, events, metrics, health, page.

Runs in a thread with an event loop of its own. It holds the roll; the supervisor reads it through
`roll()` and ends the workers' questions through `announce()`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from types import TracebackType
from typing import Any

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from entrypoint import gauges, roll
from entrypoint.bearer import BearerToken
from entrypoint.preflight import nodes
from entrypoint.roll import Card
from entrypoint.sockets import listen, told_by
from trainer.contract import Progress, RunFiles

log = logging.getLogger(__name__)

EVENTS_POLL_SECONDS = 0.5


class Control:
    """Start with `with`; every method may be called from any thread."""

    def __init__(
        self,
        *,
        me: roll.Card,
        expected_workers: int,
        incarnation: str,
        run: RunFiles,
        token: str,
        port: int,
        on_stop: Callable[[str], None],
        on_check_in: Callable[[roll.Card, str | None], None],
        on_difference: Callable[[str], None] = lambda _: None,
        left_out: frozenset[str] = frozenset(),
        on_leave: Callable[[str, str], None] = lambda worker, why: None,
    ) -> None:
        """`left_out`: names of the checks between nodes that are not asked."""
        self._me = me
        self._expected = expected_workers
        self.incarnation = incarnation
        self._run = run
        self._on_stop = on_stop
        self._on_check_in = on_check_in
        self._on_difference = on_difference
        self._left_out = left_out
        self._on_leave = on_leave
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._entries: dict[str, roll.Entry] = {}
        self._refused: dict[str, str] = {}
        self._blind_since: dict[str, float] = {}
        """Nodes that do not see the head's storage, and since when they are seen to."""
        self._differences: list[str] = []
        self._told: set[str] = set()
        self._leaving: set[str] = set()
        self._dismissed: dict[tuple[str, str], tuple[str, str]] = {}
        """Name and address to why, and the life in which the node was sent away."""
        self.phase = "starting"
        self.sentence = ""
        self._outcome: dict[str, Any] | None = None
        self._stacks_of = 0
        self._announced = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = listen(port)
        self._server = uvicorn.Server(
            uvicorn.Config(self._app(token), log_level="warning", access_log=False, lifespan="off")
        )
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def __enter__(self) -> Control:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(5)

    def roll(self) -> roll.RollState:
        with self._lock:
            now = time.monotonic()
            staying = {n: e for n, e in self._entries.items() if n not in self._leaving}
            return roll.call(staying, self._expected, now, self._began, self._refused)

    def cards(self) -> list[Card]:
        """The head's, and that of every worker that has joined and is there."""
        with self._lock:
            now = time.monotonic()
            entries = [entry for _, entry in sorted(self._entries.items())]
            return [self._me, *(e.card for e in entries if e.card.joined and e.present(now))]

    def begin_anew(self) -> None:
        """Take another incarnation: every worker leaves its Ray and joins again."""
        with self._lock:
            self.incarnation = uuid.uuid4().hex[:12]
            self._entries.clear()
        self._in_loop(self._answer_running)

    def worker_at(self, address: str) -> str | None:
        with self._lock:
            named = (name for name, e in self._entries.items() if e.card.address == address)
            return next(named, None)

    def is_leaving(self, worker: str) -> bool:
        with self._lock:
            return worker in self._leaving

    def let_go(self) -> None:
        """Nothing runs on those that asked to leave any more: they learn it, and leave."""
        with self._lock:
            for worker in self._leaving:
                self._entries.pop(worker, None)
            anyone = bool(self._leaving)
            self._leaving.clear()
        if anyone:
            self._in_loop(self._answer_running)

    def dismiss(self, worker: str, why: str) -> None:
        """Send a worker away, until its checks have passed anew; a node at another address may
        take its name."""
        with self._lock:
            entry = self._entries.pop(worker, None)
            if entry is not None:
                self._dismissed[worker, entry.card.address] = why, entry.card.examined
        self._in_loop(self._answer_running)

    def ask_for_stacks(self, attempt: int) -> None:
        """With the answer to its question, each worker learns that it is to write them; 0: not."""
        self._stacks_of = attempt
        self._in_loop(self._answer_running)

    def announce(self, outcome: str, exit_code: int) -> None:
        """Answer every worker's question, now and from now on."""
        with self._lock:
            self._outcome = {"outcome": outcome, "exit_code": exit_code}
        self._in_loop(self._announced.set)

    def wait_until_told(self, timeout: float) -> None:
        """Until every worker that is present knows the outcome."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self._lock:
                now = time.monotonic()
                left = {n for n, e in self._entries.items() if e.present(now)} - self._told
            if not left:
                return
            time.sleep(0.05)

    def state(self) -> dict[str, Any]:
        progress = Progress.read(self._run.progress)
        now = time.monotonic()
        with self._lock:
            nodes = [
                {
                    "node": name,
                    "address": entry.card.address,
                    "joined": entry.card.joined,
                    "present": entry.present(now),
                    "silent_seconds": round(0.0 if entry.asking else now - entry.seen_at, 1),
                    "inventory": dict(entry.card.inventory),
                    "warnings": list(entry.card.warnings),
                }
                for name, entry in sorted(self._entries.items())
            ]
        state = self.roll()
        return {
            "head": self._me.node,
            "incarnation": self.incarnation,
            "phase": self.phase,
            "sentence": self.sentence,
            "expected_workers": self._expected,
            "present": len(state.present),
            "missing": list(state.missing),
            "refused": dict(self._refused),
            "differences": list(self._differences),
            "nodes": nodes,
            "progress": progress and progress.as_dict(),
            "outcome": self._outcome,
        }

    def _in_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _answer_running(self) -> None:
        """End all open questions, not those to come."""
        self._announced.set()
        self._announced = asyncio.Event()

    def _serve(self) -> None:
        asyncio.run(self._run_server())

    async def _run_server(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._socket])

    def _app(self, token: str) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/", self._page),
                Route("/metrics", self._metrics),
                Route("/v1/check-in", self._check_in, methods=["POST"]),
                Route("/v1/outcome", self._ask_outcome),
                Route("/v1/state", self._state),
                Route("/v1/events", self._events),
                Route("/v1/stop", self._stop, methods=["POST"]),
                Route("/v1/leave", self._leave, methods=["POST"]),
            ],
            middleware=[Middleware(BearerToken, token=token)],
        )

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"incarnation": self.incarnation, "phase": self.phase})

    async def _page(self, request: Request) -> Response:
        return HTMLResponse((files("entrypoint") / "page.html").read_text())

    async def _state(self, request: Request) -> Response:
        return JSONResponse(self.state())

    async def _stop(self, request: Request) -> Response:
        self._on_stop("asked over HTTP")
        return JSONResponse({"stopping": True}, status_code=202)

    async def _leave(self, request: Request) -> Response:
        """A worker whose machine is about to be taken away asks that nothing run on it."""
        node, why = (request.query_params.get(name, "") for name in ("node", "why"))
        with self._lock:
            if node not in self._entries:
                return JSONResponse({"error": f"{node} has not checked in"}, status_code=404)
            self._leaving.add(node)
        self._on_leave(node, why)
        return JSONResponse({"leaving": True}, status_code=202)

    async def _check_in(self, request: Request) -> Response:
        try:
            card = roll.Card.parse(await request.json())
        except (ValueError, TypeError) as error:
            return JSONResponse({"accepted": False, "reason": str(error)}, status_code=400)
        source = request.client.host if request.client else ""
        with self._lock:
            now = time.monotonic()
            known = self._entries.get(card.node)
            news = known is None or known.card.joined != card.joined or not known.present(now)
            if wait := self._not_yet(card, now):
                return JSONResponse({"error": wait}, status_code=503)
            reason = self._take(card, source, now)
        if news or reason:
            await asyncio.to_thread(self._on_check_in, card, reason)
        if reason:
            return JSONResponse({"accepted": False, "reason": reason}, status_code=409)
        if news and card.joined:
            await asyncio.to_thread(self._tell_differences)
        return JSONResponse({"accepted": True, "incarnation": self.incarnation})

    def _not_yet(self, card: Card, now: float) -> str | None:
        """Why this node is to ask again; with the lock held."""
        if taken := roll.name_taken(card, self._entries, now):
            return taken
        blind = roll.other_storage(card, self._me, self._left_out)
        if blind is None:
            self._blind_since.pop(card.node, None)
        elif now - self._blind_since.setdefault(card.node, now) < roll.STORAGE_GRACE_SECONDS:
            return blind
        return None

    def _take(self, card: Card, source: str, now: float) -> str | None:
        """Put a node on the roll, or say why not; with the lock held."""
        skew = 0.0 if card.clock is None else card.clock - time.time()
        reason = roll.refusal(card, self._me, skew, self._left_out)
        reason = reason or roll.other_storage(card, self._me, self._left_out)
        reason = reason or self._still_dismissed(card)
        if reason:
            self._refused[card.node] = reason
            return reason
        self._refused.pop(card.node, None)
        entry = self._entries.setdefault(card.node, roll.Entry(card, now, now))
        entry.card, entry.seen_at, entry.hung_up = card, now, False
        entry.source, entry.skew = told_by(source, card.address), skew
        self._told.discard(card.node)
        return None

    def _still_dismissed(self, card: Card) -> str | None:
        """Why a node that was sent away stays away; None where it has passed its checks since."""
        why, life = self._dismissed.get((card.node, card.address), (None, ""))
        if why and card.examined and card.examined != life:
            del self._dismissed[card.node, card.address]
            return None
        return why

    def _tell_differences(self) -> None:
        """Once all are there: in what they differ, each difference once."""
        with self._lock:
            if sum(one.card.joined for one in self._entries.values()) < self._expected:
                return
            entries = [roll.Seen(one.card, one.source, one.skew) for one in self._entries.values()]
            found = nodes.differences([roll.Seen(self._me), *entries], self._left_out)
            new = [one for one in found if one not in self._differences]
            self._differences = found
        for sentence in new:
            self._on_difference(sentence)

    async def _ask_outcome(self, request: Request) -> Response:
        """Long poll: answers when there is an outcome, else `running` after a while.

        An open question is the worker's sign of life, so it ends as soon as its asker is gone.
        """
        node = request.query_params.get("node", "")
        with self._lock:
            entry = self._entries.get(node)
            if entry is None:
                return JSONResponse({"error": f"{node} has not checked in"}, status_code=404)
            entry.asking += 1
        hung_up = True
        try:
            hung_up = await self._wait_for_outcome(request)
        finally:
            with self._lock:
                entry.asking -= 1
                entry.seen_at, entry.hung_up = time.monotonic(), hung_up
        with self._lock:
            if self._outcome is None:
                running = {"outcome": "running", "stacks_of": self._stacks_of}
                return JSONResponse({**running, "incarnation": self.incarnation})
            self._told.add(node)
            return JSONResponse({**self._outcome, "incarnation": self.incarnation})

    async def _wait_for_outcome(self, request: Request) -> bool:
        """Whether the asker is gone before there is an answer."""
        announced = asyncio.create_task(self._announced.wait())
        gone = asyncio.create_task(_disconnected(request))
        try:
            ended, _ = await asyncio.wait(
                {announced, gone},
                timeout=roll.QUESTION_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            return gone in ended
        finally:
            announced.cancel()
            gone.cancel()

    async def _events(self, request: Request) -> Response:
        return EventSourceResponse(self._follow_journal())

    async def _follow_journal(self) -> AsyncIterator[dict[str, str]]:
        offset = 0
        while True:
            if self._run.journal.exists():
                with self._run.journal.open("rb") as file:
                    file.seek(offset)
                    for line in file:
                        if line.endswith(b"\n"):
                            offset += len(line)
                            yield {"data": line.decode().strip()}
            await asyncio.sleep(EVENTS_POLL_SECONDS)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(gauges.text(self.state()))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
