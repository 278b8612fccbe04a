"""What a run trains on: prompts, a reward function, and the source of its rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from env.types import RewardFunction
from trainer.checkpoint.writer import DriverState
from trainer.config.config import Config
from trainer.metrics.callbacks import Callback
from trainer.metrics.samples import TokenReader
from trainer.rollout.async_rollout import AsyncRollouts
from trainer.rollout.episodes import EpisodeSetup
from trainer.rollout.generate import Generator
from trainer.rollout.prompts import Data
from trainer.rollout.rollout_state import pending_at
from trainer.rollout.source import RolloutSource
from trainer.rollout.sync_rollout import SyncRollouts
from trainer.workers.groups import WorkerGroups


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """What a run trains and evaluates on."""

    data: Data
    reward: RewardFunction
    episodes: EpisodeSetup | None = None
    """How episodes run; None: each prompt has completions of one turn."""
    callbacks: tuple[Callback, ...] = ()
    """Who is told of steps, checkpoints and evaluations."""

    @property
    def reader(self) -> TokenReader | None:
        """What reads the tokens of episodes; None without episodes."""
        return self.episodes.runner.chat if self.episodes else None


def rollout_source(
    config: Config, workers: WorkerGroups, inputs: TrainingInputs, beginning: DriverState
) -> RolloutSource:
    """Return the source of the run's rollouts, as of its beginning.

    Raises ResumeError if a checkpoint's pending rollouts would be lost.
    """
    found = pending_at(config, beginning)
    generator = Generator.of(config, workers.engines, inputs.episodes)
    stream, reward = inputs.data.stream, inputs.reward
    if not (config.async_train or inputs.episodes):
        return SyncRollouts(config, generator, stream, reward)
    rollouts = AsyncRollouts(config, generator, stream, reward, beginning.run.step)
    if found:
        rollouts.resume(found)
    return rollouts
