"""Which worker has gone silent: a stopped process does not answer, a computing one does.

Collectives end after a timeout, too, but on the ranks that waited; who kept them waiting is known
only by asking each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import ray

from trainer.cluster.calls import received
from trainer.cluster.worker_group import LOOK_SECONDS, Pending
from trainer.types import SilentRankError

GRACE_SECONDS = 5.0
"""In which a worker that computes answers, after another has already failed."""

KILL_SECONDS = 6.0
"""Until a worker is gone: Ray asks it to leave first, and ends it by force after five seconds."""


class Liveness:
    """Asks all workers of a group, again and again, for as long as one of them is waited for."""

    def __init__(
        self, role: str, hosts: Sequence[Any], places: Sequence[Any], timeout: float
    ) -> None:
        """A worker is silent after a third of `timeout` seconds, long before collectives time out;
        while it starts, which may keep it from answering, after all of them.

        `places` are references to where each worker is, in words.
        """
        self._role = role
        self._hosts = hosts
        self._places = places
        self._timeout = timeout
        self.interval = min(10.0, timeout / 6)
        """Seconds between two questions."""
        self._asked: list[tuple[float, Any]] = []

    def begin(self) -> None:
        self._asked = [(time.monotonic(), host.alive.remote()) for host in self._hosts]

    def check(self) -> None:
        """Ask again who has answered. Raises SilentRankError for who has not for too long."""
        now = time.monotonic()
        up = self._up()
        answered = set(_answered([question for _, question in self._asked], 0))
        silent = []
        for worker, (since, question) in enumerate(self._asked):
            if question in answered:
                self._asked[worker] = (now, self._hosts[worker].alive.remote())
            elif now - since > self._timeout / (3 if worker in up else 1):
                silent.append(worker)
        if silent:
            longest = now - min(self._asked[worker][0] for worker in silent)
            self._accuse(silent, f"for {longest:.0f} s")

    def blame(self, how: str) -> None:
        """Raises SilentRankError where a worker that has started does not answer now, and
        LostWorkerError where one is no more."""
        questions = [host.alive.remote() for host in self._hosts]
        answered = set(_answered(questions, GRACE_SECONDS))
        silent = [worker for worker in self._up() if questions[worker] not in answered]
        if silent:
            self._accuse(silent, how)
        for worker, question in enumerate(questions):
            if question in answered:
                received(question, self._role, worker)

    def _up(self) -> list[int]:
        """The workers that have started, or failed to."""
        up = set(_answered(list(self._places), 0))
        return [worker for worker, place in enumerate(self._places) if place in up]

    def _accuse(self, silent: Sequence[int], how: str) -> NoReturn:
        """Raises SilentRankError; those workers are killed before, so that none keeps its GPU."""
        who = ", ".join(f"{self._role}-{worker} ({self._place(worker)})" for worker in silent)
        for worker in silent:
            ray.kill(self._hosts[worker])
        time.sleep(KILL_SECONDS)
        raise SilentRankError(
            f"rank {who} does not answer {how}: it or its node is stopped", self._role
        )

    def _place(self, worker: int) -> str:
        place = self._places[worker]
        return ray.get(place) if _answered([place], 0) else "not up yet"


def _answered(questions: list[Any], patience: float) -> list[Any]:
    """Those that came back within `patience` seconds, be it with an error."""
    done, _ = ray.wait(questions, num_returns=len(questions), timeout=patience)
    return list(done)


class Pulse:
    """Asks it now and then, for as long as it is waited for."""

    def __init__(
        self, ask: Callable[[], Pending[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._since = clock()
        self._question: Pending[None] | None = None

    def silence(self) -> float:
        """Seconds since the question that it has not answered; 0 where there is none."""
        now = self._clock()
        if self._question is not None and not self._question.ready(0):
            return now - self._since
        if now - self._since > LOOK_SECONDS:
            self._since, self._question = now, self._ask()
        return 0.0
