"""Heartbeats: which worker is silent. A stopped process does not answer, a computing one does.

A collective also fails after a timeout, but on the ranks that waited for the silent one. Only a
question to each rank shows which one is silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import ray

from trainer.cluster.calls import received
from trainer.cluster.worker_group import POLL_SECONDS, Pending
from trainer.types import SilentRankError

GRACE_SECONDS = 5.0
"""Seconds in which a computing worker answers, after another one has failed."""

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
        """Returns the seconds since the question that is still unanswered; 0 if there is none."""
        now = self._clock()
        if self._question is not None and not self._question.ready(0):
            return now - self._since
        if now - self._since > POLL_SECONDS:
            self._since, self._question = now, self._ask()
        return 0.0


class GroupHeartbeat:
    """Asks all workers of a group again and again, while the driver waits for one of them."""

    def __init__(
        self, role: str, hosts: Sequence[Any], places: Sequence[Any], timeout: float
    ) -> None:
        """`places`: references to the node and process of each worker, in words.

        A worker is silent after a third of `timeout` seconds, long before a collective fails. A
        worker that is still starting has the whole `timeout`, because a start may block answers.
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
        """Returns the workers that have started, or failed to start."""
        done = set(_answered(list(self._places), 0))
        return [worker for worker, place in enumerate(self._places) if place in done]

    def _accuse(self, silent: Sequence[int], how: str) -> NoReturn:
        """Kill the silent workers, so that none keeps its GPU, and raise SilentRankError."""
        who = ", ".join(f"{self._role}-{worker} ({self.place(worker)})" for worker in silent)
        for worker in silent:
            ray.kill(self._hosts[worker])
        time.sleep(KILL_SECONDS)
        raise SilentRankError(
            f"rank {who} does not answer {how}: it or its node is stopped", self._role
        )

    def place(self, worker: int) -> str:
        """Returns the node and process of a worker, in words."""
        place = self._places[worker]
        return ray.get(place) if _answered([place], 0) else "not up yet"


def _answered(questions: list[Any], seconds: float) -> list[Any]:
    """Returns the questions with an answer, or an error, within `seconds`."""
    done, _ = ray.wait(questions, num_returns=len(questions), timeout=seconds)
    return list(done)
