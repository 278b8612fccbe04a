"""The outcomes of calls of Ray actors, for whoever waits for them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import ray
from ray.exceptions import RayActorError, RayTaskError

from trainer.types import LostWorkerError, TrainingError

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


ENDS = {
    "node running low on memory": "it was ended for want of memory",
    "node has died": "its node was lost",
    "node was terminated": "its node was lost",
    "is unavailable": "it cannot be reached",
}


def received(reference: Any, role: str, worker: int) -> Any:
    """Raises what the call raised; where that is meant for people, without saying where.

    A worker that is no more raises LostWorkerError, unless what was lost is an argument of the
    call, which its own giver is asked for.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, TrainingError):
            raise error.cause from None
        raise
    except RayActorError as error:
        said = " ".join(str(error).split())
        raise LostWorkerError(f"{role}-{worker} is lost: {said}", role, _end(said)) from None


def _end(said: str) -> str:
    """What Ray says of an actor's end, in a few words."""
    for words, meaning in ENDS.items():
        if words in said:
            return meaning
    return "its process ended"
