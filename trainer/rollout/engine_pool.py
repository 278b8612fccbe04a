"""The rollout engines of a run, also while some of them are missing.

The pool kills an engine that died or does not answer, and restarts it. Until the new engine has the
policy's weights, the other engines do its work. They also repeat the share of prompts that it was
writing: a share is one batch, so its completions are the same to the bit on any engine. If no node
has room for an engine, the run continues without it, and takes it back when a node has room.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from contract.journal import WriteEvent, attempt_number, print_event
from contract.progress import Phase, PhaseFile
from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.restarts import Patience, WorkerRestartBudget, silent
from trainer.cluster.worker_group import POLL_SECONDS, Pending, WorkerGroup
from trainer.config.layout import Role
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import Engine
from trainer.types import (
    BeyondRepairError,
    Completion,
    EngineFailedError,
    LostWorkerError,
    NoRoomError,
    Request,
    TrainingError,
)

T = TypeVar("T")
E = TypeVar("E")
"""The type of the engines, beyond Engine."""
P = ParamSpec("P")


@dataclass(slots=True)
class _Work:
    """The share that an engine writes."""

    share: int
    pending: Pending[list[Completion]]
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class _Wait:
    """What the driver waits for, and until when."""

    what: str
    seconds: float
    until: float
    """Time of a monotonic clock, in seconds."""
    blame: Callable[[int], None]


class EnginePool:
    def __init__(
        self,
        group: WorkerGroup[Engine],
        *,
        tell: WriteEvent = print_event,
        phase: PhaseFile | None = None,
        patience: Patience | None = None,
        restarts: WorkerRestartBudget | None = None,
    ) -> None:
        """`phase`: gets a sign of life before training waits for an engine to load its model."""
        self.patience = patience or Patience()
        self._phase = phase
        self._restarts = restarts or WorkerRestartBudget()
        self._group: WorkerGroup[Any] = group
        self._tell = tell
        self._missing: dict[int, EngineOutage] = {}
        self._joining: dict[int, EngineOutage] = {}
        """Engines that have restarted and are getting their first weights."""
        self._left_out: dict[int, EngineOutage] = {}
        """Engines that no node had room for."""
        self._served: set[int] = set()
        """Engines that have had weights."""

    def __len__(self) -> int:
        """Return the number of engines, missing ones included."""
        return len(self._group)

    @property
    def present(self) -> list[int]:
        """The engines that have weights, or are getting them now."""
        gone = self._missing.keys() | self._left_out.keys()
        return [worker for worker in range(len(self._group)) if worker not in gone]

    @property
    def shares(self) -> int:
        """The number of shares of a step's prompts. A missing engine does not change it."""
        return len(self._group) - len(self._left_out)

    def ask(
        self, method: Callable[Concatenate[E, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> dict[int, Pending[T]]:
        """Call every engine that is present."""
        return {
            engine: self._group.send(engine, method, *args, **kwargs) for engine in self.present
        }

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[E, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        return self._group.send(worker, method, *args, **kwargs)

    def wait_any(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        """Wait until an engine has answered one of these calls, at most `seconds`."""
        self._group.wait_any(pending, seconds)

    def alive(self, worker: int) -> Pending[None]:
        """Ask the engine's process for an answer, which it gives however busy the engine is."""
        return self._group.alive(worker)

    def heartbeat(self, worker: int) -> Heartbeat:
        return Heartbeat(partial(self._group.alive, worker))

    def answers(
        self,
        asked: Mapping[int, Pending[T]],
        seconds: float,
        what: str,
        remade: int = 0,
        blame: Callable[[int], None] = lambda worker: None,
    ) -> dict[int, T]:
        """Return the answers that come in time. The other engines are missing from then on.

        `remade`: samples that must be written again if an engine is lost. `blame` gets each engine
        that is late or failed, and raises if another process is at fault.
        """
        found = {}
        wait = _Wait(what, seconds, time.monotonic() + seconds, blame)
        for worker, pending in asked.items():
            if worker not in self.present:
                continue
            try:
                found[worker] = self._answer(worker, pending, wait)
            except (LostWorkerError, EngineFailedError) as error:
                if isinstance(error, LostWorkerError) and error.role != Role.ENGINE:
                    raise
                self.lose(worker, error, remade)
        return found

    def _answer(self, worker: int, pending: Pending[T], wait: _Wait) -> T:
        heartbeat, name = self.heartbeat(worker), f"{Role.ENGINE}-{worker}"
        left = max(0.0, wait.until - time.monotonic())
        while not pending.ready(min(POLL_SECONDS, left)):
            if (silence := heartbeat.silence()) > self.patience.life:
                raise silent(name, Role.ENGINE, f"for {silence:.0f} s: {wait.what}")
            left = max(0.0, wait.until - time.monotonic())
            if not left:
                wait.blame(worker)
                raise silent(name, Role.ENGINE, f"within {wait.seconds:g} s: {wait.what}")
        try:
            return pending.result()
        except TrainingError:
            raise
        except Exception:
            wait.blame(worker)
            raise

    def generate(
        self, shares: Sequence[Sequence[Request]], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        """Return the completions of each share. An engine writes one share at a time.

        Raises LostWorkerError if no engine with weights is left.
        """
        todo = deque(range(len(shares)))
        works: dict[int, _Work] = {}
        written: dict[int, list[Completion]] = {}
        while len(written) < len(shares):
            for worker in self.present:
                if todo and worker not in works:
                    share = todo.popleft()
                    pending = self._group.send(worker, Engine.generate, shares[share], sampling)
                    works[worker] = _Work(share, pending, self.heartbeat(worker))
            if not works:
                raise LostWorkerError(
                    "no engine is left that has the policy's weights", Role.ENGINE
                )
            self._group.wait_any([work.pending for work in works.values()], POLL_SECONDS)
            for worker, work in list(works.items()):
                try:
                    completions = self._completions(worker, work)
                except (LostWorkerError, EngineFailedError) as error:
                    todo.append(works.pop(worker).share)
                    samples = sum(len(request.seeds) for request in shares[work.share])
                    self.lose(worker, error, samples)
                else:
                    if completions is not None:
                        written[works.pop(worker).share] = completions
        return [written[number] for number in range(len(shares))]

    def _completions(self, worker: int, work: _Work) -> list[Completion] | None:
        """Return None while the engine writes."""
        if work.pending.ready(0):
            return work.pending.result()
        if (seconds := work.heartbeat.silence()) > self.patience.life:
            raise silent(f"{Role.ENGINE}-{worker}", Role.ENGINE, f"for {seconds:.0f} s")
        return None

    def welcome(self, version: int) -> None:
        """Take back the lost engines that have started, before all get the weights of `version`.

        Waits for an engine if it starts only now, or if no other engine is left. Raises
        BeyondRepairError if that takes too long.
        """
        for worker, outage in list(self._missing.items()):
            if not outage.restarting or self._group.node_lost(worker):
                self._restart(worker, outage)
        for worker in self.present:
            if worker not in self._served:
                self._wait_started(worker, version)
        if not (self.patience.restart_eagerly and self.present):
            for worker in list(self._missing):
                self._wait_started(worker, version)
        up = [worker for worker in self._missing if self._group.has_started(worker, 0)]
        self._joining = {worker: self._missing.pop(worker) for worker in up}
        back = returned(self._left_out, self._group)
        self._joining |= {worker: self._left_out.pop(worker) for worker in back}

    def wait_started(self) -> None:
        """Wait until every engine has started, or failed to start.

        Raises BeyondRepairError if that takes too long."""
        for worker in range(len(self._group)):
            self._wait_started(worker, version=0)

    def _wait_started(self, worker: int, version: int) -> None:
        """Wait until the engine has started, or failed to start."""
        if self._phase and not self._group.has_started(worker, 0):
            self._phase.write(Phase(attempt_number(), version + 1, "repair"))
        deadline = time.monotonic() + self.patience.start
        while not self._group.has_started(worker, POLL_SECONDS):
            if time.monotonic() > deadline:
                seconds = f"{self.patience.start:g} s"
                raise BeyondRepairError(f"{Role.ENGINE}-{worker} does not start within {seconds}")
            if self._group.node_lost(worker):
                self._restart(worker, self._outage_of_node(worker))

    def _outage_of_node(self, worker: int) -> EngineOutage:
        error = LostWorkerError(
            f"the node of {Role.ENGINE}-{worker} is lost", Role.ENGINE, "its node was lost"
        )
        return self._missing.setdefault(worker, EngineOutage(time.monotonic(), error))

    def committed(self) -> None:
        """All present engines have the newest weights."""
        self._served = set(self.present)
        for worker, outage in self._joining.items():
            if worker in self.present:
                self._tell_return(worker, outage)
        self._joining = {}

    def _tell_return(self, worker: int, outage: EngineOutage) -> None:
        seconds = time.monotonic() - outage.at
        if not outage.left_out:
            self._tell(
                "engine-replaced",
                outage.replaced(worker, seconds),
                engine=worker,
                seconds=round(seconds, 3),
                samples=outage.remade,
            )
            return
        self._tell(
            "engine-returned",
            outage.returned(worker, seconds, f"{self.shares} of {len(self._group)}"),
            engine=worker,
            engines=self.shares,
            seconds=round(seconds, 3),
        )

    def lose(self, worker: int, error: TrainingError, remade: int = 0) -> None:
        """The engine is missing from now on. `remade`: the samples that it was writing."""
        outage = self._missing[worker] = EngineOutage(time.monotonic(), error, remade)
        if earlier := self._joining.pop(worker, None):  # lost again before it wrote anything
            outage.at, outage.remade = earlier.at, earlier.remade + remade
        print(f"{Role.ENGINE}-{worker} is lost ({outage.how}).", flush=True)
        if self.patience.restart_eagerly:
            self._restart(worker, outage)
        else:
            self._group.kill([worker])

    def _restart(self, worker: int, outage: EngineOutage) -> None:
        self._restarts.use(f"{Role.ENGINE}-{worker}", outage.error)
        try:
            self._group.restart([worker])
            outage.restarting = True
        except NoRoomError as error:
            outage.left_out, outage.restarting = True, False
            self._left_out[worker] = self._missing.pop(worker)
            if not self.shares:
                raise BeyondRepairError(f"no engine is left: {outage.error}; {error}") from None
            self._tell(
                "engine-left-out",
                f"{Role.ENGINE}-{worker} was lost ({outage.how}) and cannot be replaced: {error}. "
                f"The run goes on with {self.shares} of {len(self._group)} engines.",
                engine=worker,
                engines=self.shares,
            )


@dataclass(slots=True)
class EngineOutage:
    """An engine that is missing."""

    at: float
    """Time of a monotonic clock, in seconds, at which the driver noticed the outage."""
    error: TrainingError
    remade: int = 0
    """Samples that the engine was writing."""
    restarting: bool = False
    left_out: bool = False
    """No node had room for the engine at first."""

    @property
    def how(self) -> str:
        return self.error.how if isinstance(self.error, LostWorkerError) else str(self.error)

    def replaced(self, worker: int, seconds: float) -> str:
        return (
            f"{Role.ENGINE}-{worker} was replaced {seconds:.1f} s after it was lost ({self.how}); "
            f"{self.remade} samples were made again."
        )

    def returned(self, worker: int, seconds: float, engines: str) -> str:
        """`engines`: how many there are now, for example "2 of 3"."""
        return (
            f"{Role.ENGINE}-{worker} is back {seconds:.1f} s after it was lost ({self.how}), "
            f"because a node has room for it again: the run continues with {engines} engines."
        )


def returned(left_out: dict[int, EngineOutage], group: WorkerGroup[Any]) -> list[int]:
    """Restart each engine that a node has room for now. Returns the engines that have started."""
    for worker, outage in left_out.items():
        if outage.restarting and group.node_lost(worker):
            outage.restarting = False
        if not outage.restarting and group.try_reserve(worker):
            with suppress(NoRoomError):  # the room was lost again just now
                group.restart([worker])
                outage.restarting = True
    restarting = [worker for worker, outage in left_out.items() if outage.restarting]
    return [worker for worker in restarting if group.has_started(worker, 0)]
