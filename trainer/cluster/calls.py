"""The outcomes of calls of Ray actors, for whoever waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import ray
from ray.exceptions import RayError, RayTaskError

from trainer.cluster.heartbeat import Liveness
from trainer.cluster.outcome import received

T = TypeVar("T")


class Remote(Generic[T]):
    def __init__(self, reference: Any, role: str, worker: int) -> None:
        self.reference = reference
        self._role, self._worker = role, worker

    def result(self) -> T:
        return cast(T, received(self.reference, self._role, self._worker))

    def ready(self, seconds: float) -> bool:
        done, _ = ray.wait([self.reference], timeout=seconds, fetch_local=False)
        return bool(done)

    @property
    def handle(self) -> T:
        # Ray replaces a reference among the arguments by its value, in the callee.
        return cast(T, self.reference)


class OfAllRanks(Generic[T]):
    """One call on all ranks: it fails with the first of them, and when one no longer answers."""

    def __init__(self, references: Sequence[Any], role: str, liveness: Liveness) -> None:
        self._references = references
        self._role = role
        self._liveness = liveness

    def result(self) -> list[T]:
        waiting = list(self._references)
        self._liveness.begin()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=self._liveness.interval)
            for reference in done:
                self._check(reference)
            self._liveness.check()
        return [ray.get(reference) for reference in self._references]

    def ready(self, seconds: float) -> bool:
        late, until = list(self._references), time.monotonic() + seconds
        self._liveness.begin()
        while late:
            left = max(0.0, until - time.monotonic())
            look = min(left, self._liveness.interval)
            _, late = ray.wait(late, num_returns=len(late), timeout=look)
            if late and not left:
                self._liveness.blame(f"within {seconds:g} s")
                return False
            if late:
                self._liveness.check()
        return True

    def _check(self, reference: Any) -> None:
        """Raises where the call failed: names the rank that is at fault if it has gone silent."""
        try:
            received(reference, self._role, self._references.index(reference))
        except RayTaskError as error:
            self._liveness.blame(f"while another failed ({str(error).splitlines()[-1]})")
            raise

    @property
    def handle(self) -> list[T]:
        return cast(list[T], self._references)


class Behind(OfAllRanks[T]):
    """One that is looked at now and then: a rank that is busy with something else is not silent.

    Who waits for it may be another thread than waits for the rest: `liveness` is its own.
    """

    def ready(self, seconds: float) -> bool:
        waiting = list(self._references)
        done, late = ray.wait(waiting, num_returns=len(waiting), timeout=seconds)
        return not late or any(_failed(reference) for reference in done)


def _failed(reference: Any) -> bool:
    try:
        ray.get(reference)
    except RayError:
        return True
    return False
