"""The head's HTTP: check-in, outcome, state, events, metrics, health, page.

Runs in a thread with its own event loop. The supervisor reads the roll with `roll()` and answers
the workers' polls with `announce()`. The loop never touches a file: storage may stall for longer
than a worker waits before it considers the head lost.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache, partial
from threading import Lock
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract.journal import timestamp
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster import prometheus
from entrypoint.cluster.access import DESCRIPTION, KEYS, Access, Keys
from entrypoint.cluster.auth import ACCESS
from entrypoint.cluster.health import Health
from entrypoint.cluster.job_routes import JobRoutes
from entrypoint.cluster.measurements import Measuring
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.request_io import hangs_up_before
from entrypoint.cluster.roll import QUESTION_SECONDS, RollState
from entrypoint.cluster.roll_observer import RollObserver
from entrypoint.cluster.serving import Listener, Serving
from entrypoint.cluster.slow_nodes import Stays
from entrypoint.cluster.slow_ranks import SlowRank, Speed
from entrypoint.cluster.token_rotation import TokenRotation
from entrypoint.cluster.view_routes import ViewRoutes
from entrypoint.cluster.worker_routes import LeftoverReports, RankReports, WorkerRoutes
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.net.paths import CERTIFICATE
from entrypoint.net.tls import proof
from entrypoint.processes.rank_processes import RankProcess
from entrypoint.run import lost_head, run_attempts, run_dir_state, run_facts
from entrypoint.run.flight_record.remedies import remedy
from entrypoint.run.flight_record.run_end import Ended
from entrypoint.run.run_dir_reads import RunDirReads

PROVING = Lock()
HEAR_SECONDS = 1.0
"""How long a worker that lives may take to open its next poll."""
PAGE_SECONDS = 4.0
"""How long a page that is open may take to ask for the state again; it does so every 2 s."""
DETAIL_SECONDS = 1.0
"""How long a page may take to read the log of what has failed, after it knows the outcome."""


class HeadPhase(StrEnum):
    """What the head does now, as programs and the page read it."""

    STARTING = "starting"
    ROLL_CALL = "roll call"
    COLLECTIVE_CHECK = "collective check"
    AWAITING_RAY = "waiting for Ray to take the job"
    TRAINING = "training"
    RECOVERING = "recovering"
    AWAITING_FILES = "waiting for the job's files"
    AWAITING_STORAGE = "waiting for storage"
    AWAITING_JOB = "waiting for a job (rollcall submit)"


class ControlServer:
    """Start with `with`; every method may be called from any thread."""

    def __init__(
        self,
        registry: NodeRegistry,
        observer: RollObserver,
        run: RunFiles,
        keys: Keys,
        listener: Listener,
    ) -> None:
        """`listener`: the control port, which ends with this server."""
        self._registry = registry
        self._observer = observer
        self._run = run
        self._keys = keys
        self._shown = listener.tls.certificate if listener.tls else b""
        self._reads = RunDirReads()
        self.jobs = JobRoutes(run, self._reads)
        self._workers = WorkerRoutes(registry, observer, self.jobs, keys)
        wake = self._workers.answer_running
        self._rotation = TokenRotation(run, keys, registry, observer, wake)
        self.phase = HeadPhase.STARTING
        self.sentence = ""
        self.idle = ""
        """A sentence on GPUs that have no work; "" if all have."""
        self.max_restarts: int | None = None
        """The restart budget of the run, for the metrics."""
        self.patience: dict[str, float] = {}
        """`min_workers` with which the run may go on, after `replace_timeout` seconds."""
        self._is_stopping = False
        self.speeds: Sequence[Speed] = ()
        """Of the ranks of the job that runs."""
        self.stragglers: Sequence[SlowRank] = ()
        """Those ranks that are slow now."""
        self.staying: Sequence[Stays] = ()
        """Slow nodes that do not leave for a spare."""
        self._page_asked = -math.inf
        """When a page has asked for the state last, by the monotonic clock."""
        self._page_knows = False
        """Whether a page has got the outcome."""
        self._measuring = Measuring()
        self._closing = asyncio.Event()
        self._views = ViewRoutes(self.jobs, self._reads, self._closing, registry.gpu_history)
        self._serving = Serving(self._routes(), keys, listener, self._end_answers)
        self._in_loop = self._serving.in_loop

    def __enter__(self) -> ControlServer:
        self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__()

    @property
    def incarnation(self) -> str:
        return self._registry.incarnation

    def roll(self) -> RollState:
        return self._registry.roll_state()

    def node_infos(self) -> list[NodeInfo]:
        """Return the NodeInfo of the head and of every present worker that has joined."""
        return self._registry.node_infos()

    def hold_places(self, holders: Sequence[str]) -> None:
        """Note that the job begins on these workers: they keep their places if they are lost."""
        self._registry.hold_places(holders)
        self._in_loop(self._workers.answer_running)

    def free_places(self) -> None:
        """Note that no job runs: spares take the places of nodes that are not there."""
        self._registry.free_places()

    def move_place(self, lost: str, to: str) -> None:
        """Note that the job's work on the node `lost` is on the node `to` now."""
        self._registry.move_place(lost, to)
        self._in_loop(self._workers.answer_running)

    def new_incarnation(self) -> None:
        """Have every worker leave its Ray and join again."""
        self._registry.new_incarnation()
        self._in_loop(self._workers.answer_running)

    def silent(self) -> frozenset[str]:
        """Return the names of workers that had joined and are not heard any more."""
        return self._registry.silent()

    def worker_at(self, address: str) -> str | None:
        return self._registry.worker_at(address)

    @property
    def health(self) -> Health:
        """What has become worse on the nodes."""
        return self._registry.health

    def gpu_uses(self) -> Mapping[str, Sequence[GpuUse]]:
        """Return the use of the GPUs of all nodes, as they told it last."""
        return self._registry.gpu_uses()

    def node_at(self, address: str) -> str:
        """Return the name of the node, or of the head, at an address; else the address."""
        me = self._registry.me
        return me.node if me.address == address else self.worker_at(address) or address

    def is_leaving(self, worker: str) -> bool:
        return self._registry.is_leaving(worker)

    def release_leaving(self) -> None:
        """Tell the workers that asked to leave that no job runs on them any more."""
        if self._registry.release_leaving():
            self._in_loop(self._workers.answer_running)

    def bequeath(self, heritage: dict[str, Any] | None, ray_port: int = 0) -> None:
        """Tell each worker that is accepted from now on how to lead the run in the head's place.

        And the port of the head's Ray, which the worker's own settings may not have.
        """
        self._workers.heritage, self._workers.ray_port = heritage, ray_port

    def refuse(self, worker: str, address: str, why: str, seconds: float) -> None:
        """Refuse a node for so many seconds, which an earlier head has evicted."""
        self._registry.refuse(worker, address, why, seconds)

    def replace_first(self, unwanted: Mapping[str, str]) -> None:
        """Have other nodes brought for these, which are there, and say why."""
        self._registry.replace_first(unwanted)

    def evict(self, worker: str, why: str, seconds: float = 0.0) -> None:
        """Refuse a worker until its checks have passed again, and for so many seconds at least."""
        self._registry.evict(worker, why, seconds)
        self._in_loop(self._workers.answer_running)

    def renew(self, worker: str) -> None:
        """Have a worker leave its Ray and join again."""
        self._registry.forget(worker)
        self._in_loop(self._workers.answer_running)

    def ask_for_stacks(self, attempt: int) -> None:
        """Ask all workers, in the reply to their open poll, to write their stacks for this attempt.

        0 clears the request.
        """
        self._workers.stacks_of = attempt
        self._in_loop(self._workers.answer_running)

    def sweep(self, job: str) -> None:
        """Ask all workers to end what a job that is over has left. `job`: Ray's name for it."""
        self._workers.sweep.begin(job)
        self._in_loop(self._workers.answer_running)

    def end_sweep(self) -> None:
        """Ask no more: from now on, what runs on the workers may be of the next job."""
        self._workers.sweep.end()

    def left_over(self, timeout: float = 0.0) -> dict[str, str]:
        """Return what each worker has ended since the last call.

        Waits up to `timeout` seconds for an answer of all workers that are heard.
        """
        sweep = self._workers.sweep
        self._await(sweep, timeout)
        return sweep.take()

    def ranks(self, timeout: float) -> dict[str, list[RankProcess]]:
        """Ask where the ranks of the workers stand; return what those say that are heard.

        Waits up to `timeout` seconds for their answers.
        """
        asked = self._workers.ranks
        asked.begin()
        self._in_loop(self._workers.answer_running)
        self._await(asked, timeout)
        return asked.take()

    def _await(self, asked: LeftoverReports | RankReports, timeout: float) -> None:
        """Wait until all workers that are heard have answered, `timeout` seconds at most."""
        while (passed := time.monotonic() - asked.began) < timeout:
            heard = self._registry.heard_since(asked.began) or passed > HEAR_SECONDS
            if heard and self._registry.polling(asked.began) <= asked.answered():
                break
            time.sleep(0.02)

    def oom_kills(self) -> dict[str, int]:
        """Return, for each worker, how many processes the kernel has killed for lack of memory."""
        return self._registry.oom_kills()

    def hear_all(self, timeout: float) -> None:
        """Have all present workers poll again, within `timeout` seconds."""
        since = time.monotonic()
        self._in_loop(self._workers.answer_running)
        while not self._registry.heard_since(since) and time.monotonic() - since < timeout:
            time.sleep(0.02)

    def announce(self, outcome: str, exit_code: int, end: Ended | None = None) -> None:
        """Answer every worker's poll with the outcome, now and from now on.

        `end`: what the run directory says of it.
        """
        end = end or Ended(outcome, "", {}, to_do=remedy(outcome, exit_code, None))
        self._workers.outcome = {**end.told(), "outcome": outcome, "exit_code": exit_code}
        self._in_loop(self._workers.announced.set)

    def wait_until_acknowledged(self, timeout: float) -> None:
        """Wait until every present worker and an open page know the outcome, or `timeout` s."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._registry.unacknowledged():
            time.sleep(0.05)
        deadline = min(deadline, self._page_asked + PAGE_SECONDS)
        while time.monotonic() < deadline and not self._page_knows:
            time.sleep(0.05)
        if self._page_knows:
            time.sleep(DETAIL_SECONDS)

    def state(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the state for programs and the page. Raises OSError from storage."""
        files = self.jobs.shown_files
        trains = self.phase is HeadPhase.TRAINING and self._workers.outcome is None
        attempts = run_attempts.read(files.journal, Progress.read(files.progress), trains=trains)
        return {
            **self._registry.state(brief=brief),
            "incarnation": self.incarnation,
            "is_live": True,
            "phase": self.phase,
            "is_stopping": self._is_stopping,
            **self.patience,
            "sentence": self.sentence,
            "job": self.jobs.shown,
            "takes_jobs": self.jobs.queue is not None,
            "idle": self.idle,
            "health": [one.as_dict() for one in self.health.known()],
            "stragglers": [one.as_dict() for one in self.stragglers],
            "slow_nodes": [one.as_dict() for one in self.staying],
            **attempts.as_dict(),
            "outcome": self._workers.outcome,
            "run": run_facts.read(files),
            "flags": run_facts.flags(files),
            "has_samples": files.samples.exists(),
            "failover": lost_head.failover(self.jobs.run).as_dict(),
            "at": timestamp(),
        }

    def _end_answers(self) -> None:
        self._closing.set()
        self._workers.announced.set()

    def _routes(self) -> list[Route]:
        return [
            Route("/healthz", self._health),
            Route(CERTIFICATE, self._certificate),
            Route("/metrics", self._metrics),
            Route("/v1/state", self._state),
            Route("/v1/stop", self._stop, methods=["POST"]),
            Route(KEYS, self._known_keys),
            Route(DESCRIPTION, self._description),
            *self._views.routes(),
            *self._workers.routes(),
            *self.jobs.routes(),
            *self._rotation.routes(),
        ]

    async def _health(self, request: Request) -> Response:
        """Answer anyone: the answer says only that the head runs."""
        return JSONResponse({"status": "ok"})

    async def _certificate(self, request: Request) -> Response:
        """Answer anyone with what proves to a client that this head has its key, too."""
        if not self._shown:
            return JSONResponse({"proofs": [], "replaced": {}})
        keys, marks = self._keys.all(), self._keys.newest_retired()
        proofs = await asyncio.to_thread(_proofs, self._shown, *keys, *marks)
        of_marks = zip(proofs[len(keys) :], marks.values(), strict=True)
        return JSONResponse({"proofs": proofs[: len(keys)], "replaced": dict(of_marks)})

    async def _state(self, request: Request) -> Response:
        """Answer with the state; `?until=outcome` has it wait for the outcome, for a while.

        With `?brief=1` without the nodes about which there is nothing to say. `?job=` names a job:
        the state of one that does not run is read from its directory.
        """
        job = request.query_params.get("job")
        if job and job != self.jobs.shown:
            look = partial(run_dir_state.read, self.jobs.files_of(request), job)
            return JSONResponse(await self._reads.ask(look))
        if request.query_params.get("until") == "outcome" and self._workers.outcome is None:
            await hangs_up_before(self._workers.announced, request, QUESTION_SECONDS)
        is_brief = bool(request.query_params.get("brief"))
        state = await self._reads.ask(partial(self.state, brief=is_brief))
        told: dict[str, Any] = {"may_stop": request.scope["extensions"][ACCESS] >= Access.OPERATE}
        if "authorization" in request.headers:  # a program, which makes the page's link of it
            told["read_key"] = self._keys.read_only
        else:
            self._page_asked, self._page_knows = time.monotonic(), state["outcome"] is not None
        return JSONResponse({**state, **told})

    async def _known_keys(self, request: Request) -> Response:
        """Answer with the keys for links that open no more than the key of this request."""
        return JSONResponse(self._keys.up_to(request.scope["extensions"][ACCESS]))

    async def _description(self, request: Request) -> Response:
        """Answer with this description, of which clients are made."""
        from entrypoint.cluster import openapi  # few ask, and its types take time to make

        return JSONResponse(await asyncio.to_thread(openapi.description, self._routes()))

    async def _stop(self, request: Request) -> Response:
        who = ""
        if "authorization" in request.headers:  # else the page
            where = f" at {request.client.host.removeprefix('::ffff:')}" if request.client else ""
            who = f" by a command (rollcall stop) or a client{where}"
        self._observer.stop_requested(f"asked over HTTP{who}")
        self._is_stopping = True
        unsaved = self.sentence if self.phase is HeadPhase.AWAITING_STORAGE else ""
        return JSONResponse({"stopping": True, "cannot_save": unsaved}, status_code=202)

    async def _metrics(self, request: Request) -> Response:
        return Response(await self._reads.ask(self._scraped), media_type=prometheus.CONTENT_TYPE)

    def _scraped(self) -> str:
        scrape = prometheus.Scrape(
            state=self.state(),
            measured=self._measuring.of(self.jobs.shown_files),
            max_restarts=self.max_restarts,
            oom_kills=self.oom_kills(),
            health=self.health.known(),
            speeds=[(self.node_at(one.address), one) for one in self.speeds],
        )
        return prometheus.text(scrape)


def _proofs(certificate: bytes, *keys: str) -> list[str]:
    """Return the proofs with these keys, which change with the token. The first call is slow."""
    with PROVING:  # else all who ask meanwhile would compute them
        return _made_proofs(certificate, *keys)


@lru_cache(maxsize=2)
def _made_proofs(certificate: bytes, *keys: str) -> list[str]:
    return [proof(key, certificate) for key in keys]
