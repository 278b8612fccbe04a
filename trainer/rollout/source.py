"""What the training loop asks of rollouts, synchronous or asynchronous.

`SyncRollouts` writes the completions of a step when the loop asks for them. `AsyncRollouts` writes
them ahead, while the models of earlier steps are trained. They stay two classes for two reasons.
A synchronous step starts the forward passes before its scores are known. It also writes an
engine's prompts as one batch, so that the completions of a lost engine are repeated to the bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from env.types import Prompt
from trainer.checkpoint.writer import RunState
from trainer.rollout.rollout_state import PendingRollouts
from trainer.types import Completion, Metrics, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollouts:
    """The completions that one step trains on."""

    written: list[tuple[Prompt, Completion]]
    greedy: list[tuple[Prompt, Completion]] = field(default_factory=list)
    """The greedy completion of each prompt, which is scored and not trained on; or none."""
    samples: list[Sample] | None = None
    """None if the completions are not scored yet."""
    phase: str
    """The name under which the loop's timing metrics count the time until now."""
    metrics: Metrics = field(default_factory=dict)


class RolloutSource(Protocol):
    @property
    def oldest(self) -> int:
        """The first step that `go_back` can return to."""

    def step(self, step: int) -> StepRollouts:
        """The rollouts of `step`.

        Raises TrainingError if no completion could be scored, LostWorkerError if no engine is left,
        and what the reward function raises.
        """

    def meanwhile(self) -> AbstractContextManager[None]:
        """Rollouts may continue while the block runs. Raises what they raised at its end."""

    def new_weights(self, version: int) -> AbstractContextManager[None]:
        """The block gives the engines the weights of `version`."""

    def go_back(self, run: RunState) -> None:
        """Return to the prompts and rollouts that followed `run`."""

    def close(self) -> None:
        """End what runs beside the training loop. The run is over."""

    def pending(self) -> PendingRollouts | None:
        """The rollouts that a checkpoint must hold; None if there can be none."""
