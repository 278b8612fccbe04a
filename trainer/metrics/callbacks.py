"""What a program that trains from Python is told of its run: an observer with three methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from contract.journal import PRINTING
from contract.options import Fault, did_you_mean
from env.types import brief
from env.user_code import SignatureError, check_signature, defined_at

Told = TypeVar("Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A step that was trained."""

    step: int
    """Its number, from 1."""
    total_steps: int
    reward: float
    """Mean reward of the step's samples."""
    seconds: float
    metrics: Mapping[str, float]
    """The row of metrics.jsonl: `train/kl`, `timing/update`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEnd:
    """A checkpoint that is complete on disk."""

    step: int
    directory: Path
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEnd:
    """An evaluation on the held-out prompts."""

    step: int
    """The step after which the policy was evaluated; 0: before the first."""
    accuracy: float
    """Mean accuracy of a completion, 0 to 1."""
    metrics: Mapping[str, float]
    """The row of metrics.jsonl: `eval/pass1`, …"""


class Callback:
    """Is told what a run does, in the thread that trains. Override what you need.

    Training waits for each method. An exception in one ends the attempt with CallbackError; the
    run can be resumed. Methods of other names must not begin with `on_`.
    """

    def on_step_end(self, step: StepEnd) -> None:
        """A step was trained. A step that is repeated after a loss ends again."""

    def on_checkpoint(self, checkpoint: CheckpointEnd) -> None:
        """A checkpoint is complete. Newer steps may have been trained since."""

    def on_evaluation(self, evaluation: EvaluationEnd) -> None:
        """The policy was evaluated."""


METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def faults(callbacks: object) -> Iterator[Fault]:
    """Yield what is no callback: a run would find out after a step.

    A public method of another name that begins with `on_` is one, too: no run would call it.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        yield _fault(f"it is a {type(callbacks).__name__}", "Give a list of callbacks")
        return
    for one in callbacks:
        if isinstance(one, type):
            yield _fault(f"{one.__name__} is a class", f"Give an object, {one.__name__}()")
        elif not all(callable(getattr(one, method, None)) for method in METHODS):
            yield _fault(f"{brief(one)} is not a rollcall.Callback", "Give an object of a subclass")
        else:
            yield from _misspelt(one)
            for method in METHODS:
                yield from _uncallable(one, method)


def _uncallable(callback: object, name: str) -> Iterator[Fault]:
    """Yield why a run cannot call a method of a callback with what it is told."""
    (told,) = [*inspect.signature(getattr(Callback, name)).parameters.values()][1:]
    method = getattr(callback, name)
    file, line = defined_at(method)
    where = f"{type(callback).__name__}.{name}" + (f" ({file}:{line})" if file else "")
    remedy = f"Write `def {name}(self, {told.name})`"
    if inspect.iscoroutinefunction(method):
        yield _fault(f"{where} is an async function, which no run awaits", remedy)
    try:
        check_signature(method, (told,), {})
    except SignatureError:
        yield _fault(f"{where} must take one argument after self, a {told.annotation}", remedy)


def _misspelt(callback: object) -> Iterator[Fault]:
    kind = type(callback)
    for name in dir(kind):
        if name.startswith("on_") and name not in METHODS and callable(getattr(callback, name)):
            known = f"Callback's methods are {', '.join(METHODS)}"
            remedy = did_you_mean(name, METHODS, known)
            yield _fault(f"{kind.__name__}.{name} is never called", remedy[:1].upper() + remedy[1:])


def _fault(problem: str, remedy: str) -> Fault:
    return Fault("callbacks", None, problem, remedy)


class CallbackError(Exception):
    """A method of a callback raised an exception, which is the cause of this one."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """All callbacks of a run, in order."""

    all: Sequence[Callback] = ()

    def step_end(self, step: StepEnd) -> None:
        self._tell(f"after step {step.step}", lambda each: each.on_step_end, step)

    def checkpoint(self, checkpoint: CheckpointEnd) -> None:
        at = f"after the checkpoint of step {checkpoint.step}"
        self._tell(at, lambda each: each.on_checkpoint, checkpoint)

    def evaluation(self, evaluation: EvaluationEnd) -> None:
        at = f"after the evaluation of step {evaluation.step}"
        self._tell(at, lambda each: each.on_evaluation, evaluation)

    def _tell(
        self, when: str, method: Callable[[Callback], Callable[[Told], None]], told: Told
    ) -> None:
        """Call one method of each callback. Raises CallbackError."""
        for callback in self.all:
            called = method(callback)
            try:
                with PRINTING:
                    called(told)
            except Exception as error:
                name = f"{type(callback).__name__}.{called.__name__}"
                raise CallbackError(
                    f"{name} raised {type(error).__name__} {when}: {error}"
                ) from error
