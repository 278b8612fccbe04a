"""The result of one call of a Ray actor: its value, its error, or the loss of the actor."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from trainer.cluster.worker_group import Pieces
from trainer.types import LostWorkerError, TrainingError

T = TypeVar("T")

CAUSES = {
    "node running low on memory": "it was killed because memory was low",
    "node has died": "its node was lost",
    "node was terminated": "its node was lost",
    "is unavailable": "it cannot be reached",
}
"""A phrase in Ray's message about a dead actor → the cause, in few words."""


class RayPending(Generic[T]):
    """A Pending: one call of one Ray actor."""

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
        # When a reference is an argument of a call, Ray passes its value to the callee.
        return cast(T, self.reference)


def received(reference: Any, role: str, worker: int) -> Any:
    """Wait for a call and return its value. Raises the call's error.

    A TrainingError, or an OSError that names a file, is raised without Ray's traceback, because its
    message is for users. Raises LostWorkerError if the actor is dead. An argument that was lost
    with another actor raises Ray's own error, because that other actor is to be asked.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, TrainingError) or (isinstance(cause, OSError) and cause.filename):
            raise cause from None
        raise
    except RayActorError as error:
        message = " ".join(str(error).split())
        sentence = f"{role}-{worker} is lost: {message}"
        raise LostWorkerError(sentence, role, _cause(message)) from None


def fetched(argument: Any) -> Any:
    """Return an argument; of Pieces their values.

    Raises LostWorkerError for the role if a value is gone with the node that had it.
    """
    if not isinstance(argument, Pieces):
        return argument
    found = {}
    for role, kept in argument.items():
        try:
            found[role] = ray.get(kept)
        except (ObjectLostError, RayActorError) as error:
            sentence = f"what the {role} computed is lost: {first_line(error)}"
            raise LostWorkerError(sentence, role, "its node was lost") from None
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or what the error is if it has none."""
    return (str(error) or repr(error)).splitlines()[0]


def _cause(message: str) -> str:
    """Return the cause that Ray's message about a dead actor names."""
    for phrase, cause in CAUSES.items():
        if phrase in message:
            return cause
    return "its process ended"
