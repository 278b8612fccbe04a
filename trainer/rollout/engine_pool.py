"""The rollout engines of a run, also while some of them are missing.

An engine that has died, or no longer answers, is killed and started anew. Until the new one has the
policy's weights, those that are left do its work, the share that it was at included: a share that
is written as a whole is the same to the bit whoever writes it. One that no node has a place for is
left out, and taken back once there is a place again; for that nobody waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from contract.journal import Tell, aloud, attempt_number
from contract.progress import Phase, PhaseFile
from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.restarts import RestartBudget
from trainer.cluster.worker_group import POLL_SECONDS, Pending, WorkerGroup
from trainer.rollout.engine import Engine
from trainer.rollout.outages import ROLE, Loss, returned
from trainer.types import (
    BeyondRepairError,
    Completion,
    EngineFailedError,
    LostWorkerError,
    NoSeatError,
    Request,
    Sampling,
    TrainingError,
)

T = TypeVar("T")
E = TypeVar("E")
"""What the engines are known to be, beyond Engine."""
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long who takes part in a run may take; seconds."""

    start: float = 1800.0
    """To load a model."""
    part: float = 120.0
    """For one part of the weights, or to change the state."""
    life: float = 120.0
    """To say that it lives, also while it computes."""
    restart_eagerly: bool = True
    """Restart a lost engine immediately. False when its GPU is shared: restart the engine at the
    next weight update and wait for it."""


@dataclass(slots=True)
class _Work:
    """What an engine is at."""

    share: int
    pending: Pending[list[Completion]]
    heartbeat: Heartbeat


class EnginePool:
    def __init__(
        self,
        group: WorkerGroup[Engine],
        *,
        tell: Tell = aloud,
        phase: PhaseFile | None = None,
        patience: Patience = Patience(),
        restarts: RestartBudget | None = None,
    ) -> None:
        """`phase`: gets a sign of life before training waits for an engine to load its model."""
        self.patience = patience
        self._phase = phase
        self._restarts = restarts or RestartBudget()
        self._group: WorkerGroup[Any] = group
        self._tell = tell
        self._missing: dict[int, Loss] = {}
        self._joining: dict[int, Loss] = {}
        """Replaced, and being given their first weights."""
        self._left_out: dict[int, Loss] = {}
        """Those that no place was found for; `started` once there is one."""
        self._served: set[int] = set()
        """Those that have had weights."""

    def __len__(self) -> int:
        """How many there are when none is missing."""
        return len(self._group)

    @property
    def present(self) -> list[int]:
        """The engines that have weights, or are to get them now."""
        gone = self._missing.keys() | self._left_out.keys()
        return [worker for worker in range(len(self._group)) if worker not in gone]

    @property
    def shares(self) -> int:
        """Into how many shares a step's prompts are cut, whoever is missing at the moment."""
        return len(self._group) - len(self._left_out)

    def ask(
        self, method: Callable[Concatenate[E, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> dict[int, Pending[T]]:
        """The same call on every engine that is present."""
        return {one: self._group.send(one, method, *args, **kwargs) for one in self.present}

    def send(
        self,
        worker: int,
        method: Callable[Concatenate[E, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        return self._group.send(worker, method, *args, **kwargs)

    def alive(self, worker: int) -> Pending[None]:
        """Answered by its process, however busy the engine is."""
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
        """The outcomes of those who answer in time; the others are missing from then on.

        `remade`: samples that are begun anew where one is lost. `blame` is asked about one that is
        late or has failed: it raises where another is at fault.
        """
        found, until = {}, time.monotonic() + seconds
        for worker, pending in asked.items():
            if worker not in self.present:
                continue
            try:
                left = max(0.0, until - time.monotonic())
                found[worker] = self._answer(worker, pending, left, seconds, what, blame)
            except (LostWorkerError, EngineFailedError) as error:
                if isinstance(error, LostWorkerError) and error.role != ROLE:
                    raise
                self.lose(worker, error, remade)
        return found

    def _answer(
        self,
        worker: int,
        pending: Pending[T],
        left: float,
        seconds: float,
        what: str,
        blame: Callable[[int], None],
    ) -> T:
        heartbeat, until = self.heartbeat(worker), time.monotonic() + left
        while not pending.ready(min(POLL_SECONDS, left)):
            if (silence := heartbeat.silence()) > self.patience.life:
                raise silent(worker, f"for {silence:.0f} s: {what}")
            left = max(0.0, until - time.monotonic())
            if not left:
                blame(worker)
                raise silent(worker, f"within {seconds:g} s: {what}")
        try:
            return pending.result()
        except TrainingError:
            raise
        except Exception:
            blame(worker)
            raise

    def generate(
        self, shares: Sequence[Sequence[Request]], sampling: Sampling
    ) -> list[list[Completion]]:
        """The completions of each share, one share at a time on each engine.

        Raises LostWorkerError where no engine is left that has weights.
        """
        todo = deque(range(len(shares)))
        works: dict[int, _Work] = {}
        written: dict[int, list[Completion]] = {}
        while len(written) < len(shares):
            for worker in self.present:
                if todo and worker not in works:
                    works[worker] = self._begin(worker, todo.popleft(), shares, sampling)
            if not works:
                raise LostWorkerError("no engine is left that has the policy's weights", ROLE)
            self._group.wait_any([work.pending for work in works.values()], POLL_SECONDS)
            for worker, work in list(works.items()):
                try:
                    outcome = self._outcome(worker, work)
                except (LostWorkerError, EngineFailedError) as error:
                    todo.append(works.pop(worker).share)
                    samples = sum(len(request.seeds) for request in shares[work.share])
                    self.lose(worker, error, samples)
                else:
                    if outcome is not None:
                        written[works.pop(worker).share] = outcome
        return [written[number] for number in range(len(shares))]

    def _begin(
        self, worker: int, share: int, shares: Sequence[Sequence[Request]], sampling: Sampling
    ) -> _Work:
        pending = self._group.send(worker, Engine.generate, shares[share], sampling)
        return _Work(share, pending, self.heartbeat(worker))

    def _outcome(self, worker: int, work: _Work) -> list[Completion] | None:
        """None while it is at work."""
        if work.pending.ready(0):
            return work.pending.result()
        if (seconds := work.heartbeat.silence()) > self.patience.life:
            raise silent(worker, f"for {seconds:.0f} s")
        return None

    def welcome(self, version: int) -> None:
        """Take back the lost engines that have started, before all get the weights of `version`.

        Waits for an engine if it starts only now, or if no other engine is left. Raises
        BeyondRepairError if that takes too long.
        """
        for worker, loss in list(self._missing.items()):
            if not loss.started or self._group.node_lost(worker):
                self._start(worker, loss)
        for worker in self.present:
            if worker not in self._served:
                self._await(worker, version)
        if not (self.patience.restart_eagerly and self.present):
            for worker in list(self._missing):
                self._await(worker, version)
        up = [worker for worker in self._missing if self._group.has_started(worker, 0)]
        self._joining = {worker: self._missing.pop(worker) for worker in up}
        back = returned(self._left_out, self._group)
        self._joining |= {worker: self._left_out.pop(worker) for worker in back}

    def _await(self, worker: int, version: int) -> None:
        """Wait until the engine has started, or failed to start."""
        if self._phase and not self._group.has_started(worker, 0):
            self._phase.write(Phase(attempt_number(), version + 1, "repair"))
        deadline = time.monotonic() + self.patience.start
        while not self._group.has_started(worker, POLL_SECONDS):
            if time.monotonic() > deadline:
                seconds = f"{self.patience.start:g} s"
                raise BeyondRepairError(f"{ROLE}-{worker} does not start within {seconds}")
            if self._group.node_lost(worker):
                loss = self._missing.get(worker) or self._lost(worker)
                self._start(worker, loss)

    def _lost(self, worker: int) -> Loss:
        why = LostWorkerError(f"the node of {ROLE}-{worker} is lost", ROLE, "its node was lost")
        loss = self._missing[worker] = Loss(time.monotonic(), why)
        return loss

    def committed(self) -> None:
        """Everyone present has the newest weights."""
        self._served = set(self.present)
        for worker, loss in self._joining.items():
            if worker not in self.present:
                continue
            seconds = time.monotonic() - loss.at
            if loss.left_out:
                engines = f"{self.shares} of {len(self._group)}"
                self._tell(
                    "engine-returned",
                    loss.returned(worker, seconds, engines),
                    engine=worker,
                    engines=self.shares,
                    seconds=round(seconds, 3),
                )
            else:
                self._tell(
                    "engine-replaced",
                    loss.replaced(worker, seconds),
                    engine=worker,
                    seconds=round(seconds, 3),
                    samples=loss.remade,
                )
        self._joining = {}

    def lose(self, worker: int, why: TrainingError, remade: int = 0) -> None:
        """It is missing from now on; `remade`: the samples that it was at."""
        loss = self._missing[worker] = Loss(time.monotonic(), why, remade)
        if earlier := self._joining.pop(worker, None):  # it was lost before it was of any use
            loss.at, loss.remade = earlier.at, earlier.remade + remade
        print(f"{ROLE}-{worker} is lost ({loss.how}).", flush=True)
        if self.patience.restart_eagerly:
            self._start(worker, loss)
        else:
            self._group.kill([worker])

    def _start(self, worker: int, loss: Loss) -> None:
        self._restarts.use(f"{ROLE}-{worker}", loss.why)
        try:
            self._group.restart([worker])
            loss.started = True
        except NoSeatError as error:
            loss.left_out, loss.started = True, False
            self._left_out[worker] = self._missing.pop(worker)
            if not self.shares:
                raise BeyondRepairError(f"no engine is left: {loss.why}; {error}") from None
            self._tell(
                "engine-left-out",
                f"{ROLE}-{worker} was lost ({loss.how}) and cannot be replaced: {error}. "
                f"The run goes on with {self.shares} of {len(self._group)} engines.",
                engine=worker,
                engines=self.shares,
            )


def silent(worker: int, how: str) -> LostWorkerError:
    sentence = f"{ROLE}-{worker} did not answer {how}"
    return LostWorkerError(sentence, ROLE, f"it did not answer {how}")
