"""Generation: prompts → completions or episodes, for training and for evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from env.episodes.types import Task
from env.types import Prompt
from trainer.algorithms.seeds import derive
from trainer.config.config import Config
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.dispatcher import WAIT_SECONDS, Dispatcher, EngineDispatcher
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.episodes import EpisodeDispatcher, EpisodeSetup
from trainer.rollout.rollout_state import PromptGroup
from trainer.rollout.wave_writer import WaveWriter
from trainer.types import Completion, PartialRollout, Request, Seed


@dataclass(frozen=True, slots=True)
class Written:
    """The completions of some prompts."""

    samples: list[tuple[Prompt, Completion]]
    """Those of one prompt are neighbours."""
    greedy: list[tuple[Prompt, Completion]] = field(default_factory=list)
    """One for each prompt, or none."""


@dataclass(frozen=True, slots=True)
class Generator:
    """Has the engines write completions. The number of engines does not change the result."""

    engines: EnginePool
    sampling: SamplingSettings
    samples_per_prompt: int
    seed: int
    episodes: EpisodeSetup | None = None
    """None: each prompt has completions of one turn."""
    greedy: bool = False
    """A greedy completion of each prompt follows its samples."""

    @classmethod
    def of(
        cls, config: Config, engines: EnginePool, episodes: EpisodeSetup | None = None
    ) -> Generator:
        samples, seed = config.n_samples_per_prompt, config.train.seed
        greedy = config.advantage.wants_greedy
        return cls(engines, config.sampling, samples, seed, episodes, greedy)

    def dispatcher(self, patience: float) -> Dispatcher:
        """Return what writes asynchronous rollouts.

        `patience`: seconds that an engine may take longer than its slice.
        """
        if self.episodes and self.episodes.deterministic:
            return self._in_lockstep(self.episodes, self.sampling)
        turns = EngineDispatcher(self.engines, self.sampling, patience)
        return EpisodeDispatcher(turns, self.episodes) if self.episodes else turns

    def _in_lockstep(self, episodes: EpisodeSetup, sampling: SamplingSettings) -> EpisodeDispatcher:
        return EpisodeDispatcher(WaveWriter(self.engines, sampling), episodes, lockstep=True)

    def generate(self, prompts: Sequence[Prompt], step: int, place: int = 0) -> Written:
        """Return `samples_per_prompt` completions of each prompt, next to each other.

        `place`: the index of the first prompt in the step.
        """
        seeds = [self.seeds(step, at, prompt) for at, prompt in enumerate(prompts, place)]
        written = self._decode(prompts, seeds, self.sampling)
        if not self.greedy:
            return Written(written)
        size = self.samples_per_prompt + 1
        samples = [one for at, one in enumerate(written, 1) if at % size]
        return Written(samples, written[size - 1 :: size])

    def seeds(self, step: int, place: int, prompt: Prompt) -> tuple[Seed, ...]:
        """Return the seeds of a prompt's completions, for its index `place` in the step."""
        sampled = self._seeds("rollout", step, place, prompt, self.samples_per_prompt)
        return (*sampled, None) if self.greedy else sampled

    def held_out(
        self, prompts: Sequence[Prompt], count: int, temperature: float
    ) -> list[tuple[Prompt, Completion]]:
        """Return `count` completions of each prompt. Equal weights give equal completions."""
        seeds = [
            self._seeds("held-out", 0, place, prompt, count) for place, prompt in enumerate(prompts)
        ]
        return self._decode(prompts, seeds, replace(self.sampling, temperature=temperature))

    def held_out_episodes(
        self, prompts: Sequence[Prompt], count: int, temperature: float
    ) -> list[PromptGroup]:
        """Return `count` episodes of each prompt, in groups without the reward function's scores.

        All turns are written in lockstep: the engines may hold rollouts for training meanwhile.
        """
        assert self.episodes is not None
        groups = []
        for place, prompt in enumerate(prompts):
            seeds = self._seeds("held-out", 0, place, prompt, count)
            group = PromptGroup(number=place, prompt=prompt, version=0)
            group.partials = {
                index: PartialRollout((place, index), prompt.text, seed, task=Task.of(prompt))
                for index, seed in enumerate(seeds)
            }
            groups.append(group)
        sampling = replace(self.sampling, temperature=temperature)
        with closing(self._in_lockstep(self.episodes, sampling)) as dispatcher:
            dispatcher.give([list(group.partials.values()) for group in groups])
            while dispatcher.busy:
                for rollout in dispatcher.work(WAIT_SECONDS):
                    groups[rollout.key[0]].finish(rollout)
        return groups

    def _decode(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[tuple[Seed, ...]],
        sampling: SamplingSettings,
    ) -> list[tuple[Prompt, Completion]]:
        requests = [Request(p.text, some) for p, some in zip(prompts, seeds, strict=True)]
        cut = np.array_split(np.arange(len(requests)), self.engines.shares)
        shares = [[requests[i] for i in share] for share in cut if len(share)]
        written = self.engines.generate(shares, sampling)
        completions = [completion for share in written for completion in share]
        repeated = [p for p, some in zip(prompts, seeds, strict=True) for _ in some]
        return list(zip(repeated, completions, strict=True))

    def _seeds(
        self, purpose: str, step: int, place: int, prompt: Prompt, count: int
    ) -> tuple[int, ...]:
        """Return a different seed for each completion, also if a step has a prompt twice."""
        at = (step, place, prompt.index)
        return tuple(derive(self.seed, purpose, *at, number) for number in range(count))
