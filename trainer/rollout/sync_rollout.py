"""Synchronous rollouts: engines write the completions of a step when the step begins."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from env.data.prompts import PromptStream
from env.types import RewardFunction
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.rollout import dynamic_sampling, rewards
from trainer.rollout.generate import Generator, Written
from trainer.rollout.source import StepRollouts
from trainer.types import Sample


@dataclass(frozen=True, slots=True)
class SyncRollouts:
    """A RolloutSource that holds nothing between two steps but the cursor of the prompt stream."""

    config: Config
    generator: Generator
    stream: PromptStream
    reward: RewardFunction

    @property
    def oldest(self) -> int:
        return 0

    def step(self, step: int) -> StepRollouts:
        """With dynamic filtering the completions are scored, else the loop scores them."""
        config = self.config
        if not config.filtering.enabled:
            written = self._written(config.rollout_batch_size, step)
            return StepRollouts(written=written.samples, greedy=written.greedy, phase="generate")

        def draw(missing: int) -> list[Sample]:
            written = self._written(missing, step)
            return rewards.scored(self.reward, written.samples, written.greedy)

        found = dynamic_sampling.collect(
            draw,
            config.rollout_batch_size,
            config.n_samples_per_prompt,
            config.filtering.reward_range,
        )
        return StepRollouts(
            written=[(sample.prompt, sample.completion) for sample in found.samples],
            samples=found.samples,
            phase="generate",
            metrics={"dynamic_filtering_pass_rate": found.pass_rate},
        )

    def _written(self, missing: int, step: int) -> Written:
        """Return completions of the last `missing` prompts of the step."""
        place = self.config.rollout_batch_size - missing
        return self.generator.generate(self.stream.next_batch(missing), step, place)

    def meanwhile(self) -> AbstractContextManager[None]:
        return nullcontext()

    def new_weights(self, version: int) -> AbstractContextManager[None]:
        return nullcontext()

    def go_back(self, run: RunState) -> None:
        self.stream.load_state_dict(run.prompts)

    def close(self) -> None:
        """Nothing runs between two steps."""

    def pending(self) -> None:
        """A checkpoint needs no rollouts: the next step writes its own."""
