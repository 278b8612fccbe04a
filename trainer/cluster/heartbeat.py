"""Heartbeats: which worker is silent. A stopped process does not answer, a computing one does.

A collective also fails after a timeout, but on the ranks that waited for the silent one. Only a
question to each rank shows which one is silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import ray

from contract.journal import WriteEvent, print_event
from contract.launch import collectives
from contract.launch.collectives import Behind, Fault, Standing
from trainer.cluster.calls import received
from trainer.cluster.worker_group import POLL_SECONDS, Pending
from trainer.types import (
    BehindRankError,
    BeyondRepairError,
    LostWorkerError,
    Place,
    SilentRankError,
)

GRACE_SECONDS = 5.0
"""Seconds in which a computing worker answers, after another one has failed."""

BEHIND_SECONDS = 60.0
"""Ranks that wait longer for one of them are told of, or a sixth of the timeout if it is less."""

KILL_SECONDS = 6.0
"""Seconds until a killed worker is gone: Ray kills the process by force after five seconds."""


class Heartbeat:
    """Asks one worker now and then whether it lives, while the driver waits for the worker."""

    def __init__(
        self, ask: Callable[[], Pending[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._since = clock()
        self._question: Pending[None] | None = None

    def silence(self) -> float:
        """Return the seconds since the question that is still unanswered; 0 if there is none."""
        now = self._clock()
        if self._question is not None and not self._question.ready(0):
            return now - self._since
        if now - self._since > POLL_SECONDS:
            self._since, self._question = now, self._ask()
        return 0.0


class GroupHeartbeat:
    """Asks all workers of a group again and again, while the driver waits for one of them."""

    def __init__(
        self,
        role: str,
        hosts: Sequence[Any],
        places: Sequence[Any],
        timeout: float,
        tell: WriteEvent = print_event,
    ) -> None:
        """`places`: references to the node and process of each worker, in words.

        A worker is silent after a third of `timeout` seconds, long before a collective fails. A
        worker that is still starting has the whole `timeout`, because a start may block answers.
        """
        self._role = role
        self._hosts = hosts
        self._places = places
        self._timeout = timeout
        self._tell = tell
        self._looked = 0.0
        self._told: list[Behind] = []
        """The ranks behind that this call has told of."""
        self.interval = min(10.0, timeout / 6)
        """Seconds between two questions."""
        self._asked: list[tuple[float, Any]] = []

    def begin(self) -> None:
        self._asked = [(time.monotonic(), host.alive.remote()) for host in self._hosts]
        self._looked, self._told = time.monotonic(), []

    def check(self) -> None:
        """Ask each worker that has answered again. Raises SilentRankError for silent workers."""
        now = time.monotonic()
        started = self._started()
        answered = set(_answered([question for _, question in self._asked], 0))
        silent = []
        for worker, (since, question) in enumerate(self._asked):
            if question in answered:
                self._asked[worker] = (now, self._hosts[worker].alive.remote())
            elif now - since > self._timeout / (3 if worker in started else 1):
                silent.append(worker)
        if silent:
            longest = now - min(self._asked[worker][0] for worker in silent)
            self._accuse(silent, f"for {longest:.0f} s")
        least = min(BEHIND_SECONDS, self._timeout / 6)
        if len(self._hosts) > 1 and now - self._looked > least:
            self._looked = now
            self._report([one for one in self._behind() if one.seconds > least])

    def lost(self, loss: LostWorkerError) -> LostWorkerError:
        """Return why a worker is lost: NCCL ends the ranks that have waited too long for one."""
        return BehindRankError(self._sentence(self._told), self._role) if self._told else loss

    def blame_behind(self, failed: int, pending: Collection[int], error: str) -> None:
        """Raises BehindRankError if `failed` has waited in vain for a rank, which is `pending`.

        Raises BeyondRepairError if ranks have entered different collectives.
        """
        found = self._known(self._behind(failed))
        if mixed := [one for one in found if one.fault is Fault.OTHER]:
            self._report(mixed)
            raise BeyondRepairError(f"{self._sentence(mixed)} ({error})")
        if missing := [one for one in found if one.rank in pending]:
            self._report(missing)
            raise BehindRankError(self._sentence(missing), self._role)

    def _behind(self, failed: int | None = None) -> list[Behind]:
        """Return the ranks that the others wait for in a collective."""
        questions = [host.standing.remote() for host in self._hosts]
        answered = set(_answered(questions, GRACE_SECONDS))
        standings: dict[int, Standing] = {}
        for rank, question in enumerate(questions):
            if question in answered:
                with suppress(LostWorkerError):  # one that has died has no standing either
                    standings[rank] = received(question, self._role, rank)
        return collectives.behind(standings, range(len(self._hosts)), failed)

    def _known(self, found: list[Behind]) -> list[Behind]:
        """Return what was told of the same ranks before: then they were still where they hang."""
        same = [(one.rank, one.seq) for one in found] == [(one.rank, one.seq) for one in self._told]
        return self._told if same else found

    def _report(self, found: list[Behind]) -> None:
        """Journal the ranks behind, once in a call."""
        if found and [one.rank for one in found] != [one.rank for one in self._told]:
            self._tell(
                "rank-behind",
                self._sentence(found),
                role=self._role,
                ranks=[one.rank for one in found],
                collective=found[0].awaited,
                number=found[0].seq,
                seconds=round(found[0].seconds, 1),
            )
            self._told = found

    def _sentence(self, found: list[Behind]) -> str:
        return collectives.told(found, self._name)

    def _name(self, rank: int) -> str:
        return f"{self._role}-{rank} ({self.place(rank) or 'not up yet'})"

    def blame(self, how: str) -> None:
        """Raises SilentRankError if a started worker does not answer now, LostWorkerError if a
        worker is dead."""
        questions = [host.alive.remote() for host in self._hosts]
        answered = set(_answered(questions, GRACE_SECONDS))
        silent = [worker for worker in self._started() if questions[worker] not in answered]
        if silent:
            self._accuse(silent, how)
        for worker, question in enumerate(questions):
            if question in answered:
                received(question, self._role, worker)

    def _started(self) -> list[int]:
        """Return the workers that have started, or failed to start."""
        done = set(_answered(list(self._places), 0))
        return [worker for worker, place in enumerate(self._places) if place in done]

    def _accuse(self, silent: Sequence[int], how: str) -> NoReturn:
        """Kill the silent workers, so that none keeps its GPU, and raise SilentRankError."""
        who = ", ".join(map(self._name, silent))
        waited = self._behind() if len(self._hosts) > 1 else []
        for worker in silent:
            ray.kill(self._hosts[worker])
        time.sleep(KILL_SECONDS)
        told = f"rank {who} does not answer {how}: it or its node is stopped"
        if waited and waited[0].rank in silent:
            told = f"{told}; {waited[0].who_waits(self._name)}"
        raise SilentRankError(told, self._role)

    def place(self, worker: int) -> Place | None:
        """Return where a worker runs; None if it is not up yet."""
        place = self._places[worker]
        return ray.get(place) if _answered([place], 0) else None


def _answered(questions: list[Any], seconds: float) -> list[Any]:
    """Return the questions with an answer, or an error, within `seconds`."""
    done, _ = ray.wait(questions, num_returns=len(questions), timeout=seconds)
    return list(done)
