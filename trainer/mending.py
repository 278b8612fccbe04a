"""An act of the loop that is done again where a process is lost under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainer.checkpoint.keeping import Keeping
from trainer.checkpoint.write import RunState
from trainer.record import Recorder
from trainer.repair import Repair
from trainer.types import LostWorkerError

T = TypeVar("T")


class WentBackError(Exception):
    """The run goes on from an older state, the newest that was held when a process was lost."""

    def __init__(self, state: RunState) -> None:
        super().__init__(state.step)
        self.state = state


@dataclass(frozen=True, slots=True)
class Mending:
    repair: Repair
    keeping: Keeping
    recorder: Recorder
    rewind: Callable[[RunState], None]
    """Bring prompts and rollouts to where they were then."""
    publish: Callable[[int], None]
    """Give the engines the policy's weights, of that version."""
    oldest: Callable[[], int]
    """The first step that rollouts can go back to."""

    def done(self, state: RunState, act: Callable[[RunState], T]) -> T:
        """What `act` comes to, from `state` again where a process is lost under it.

        Raises WentBackError where an older state is all that is left.
        """
        while True:
            try:
                return act(state)
            except LostWorkerError as loss:
                found = self._go_back(state, loss)
                if found.step < state.step:
                    self.recorder.goes_back(found.step)
                    self.keeping.goes_back(found.step)
                    raise WentBackError(found) from None

    def _go_back(self, state: RunState, loss: LostWorkerError) -> RunState:
        """The newest state that is held, at most `state`; everything is as it was then."""
        self.recorder.repairs(state.step + 1)
        self.keeping.salvage()
        while True:
            try:
                state = self.repair.mend(loss, state, self.oldest())
                self.rewind(state)
                self.publish(state.step)
                return state
            except LostWorkerError as another:
                loss = another
