"""Generation in batches: prompts → completions, of synchronous rollouts and of evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from env.types import Prompt
from trainer.algorithms.seeds import derive
from trainer.config.config import Config
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.types import Completion, Request


@dataclass(frozen=True, slots=True)
class Generator:
    """Has the engines write completions. The number of engines does not change the result."""

    engines: EnginePool
    sampling: SamplingSettings
    samples_per_prompt: int
    seed: int

    @classmethod
    def of(cls, config: Config, engines: EnginePool) -> Generator:
        return cls(engines, config.sampling, config.n_samples_per_prompt, config.train.seed)

    def generate(
        self, prompts: Sequence[Prompt], step: int, place: int = 0
    ) -> list[tuple[Prompt, Completion]]:
        """Returns `samples_per_prompt` completions of each prompt, next to each other.

        `place`: the index of the first prompt in the step.
        """
        seeds = [self.seeds(step, at, prompt) for at, prompt in enumerate(prompts, place)]
        return self._decode(prompts, seeds, self.sampling)

    def seeds(self, step: int, place: int, prompt: Prompt) -> tuple[int, ...]:
        """Returns the seeds of a prompt's completions, for its index `place` in the step."""
        return self._seeds("rollout", step, place, prompt, self.samples_per_prompt)

    def held_out(
        self, prompts: Sequence[Prompt], count: int, temperature: float
    ) -> list[tuple[Prompt, Completion]]:
        """Returns `count` completions of each prompt. Equal weights give equal completions."""
        seeds = [
            self._seeds("held-out", 0, place, prompt, count) for place, prompt in enumerate(prompts)
        ]
        return self._decode(prompts, seeds, replace(self.sampling, temperature=temperature))

    def _decode(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[tuple[int, ...]],
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
        """Returns a different seed for each completion, also if a step has a prompt twice."""
        at = (step, place, prompt.index)
        return tuple(derive(self.seed, purpose, *at, number) for number in range(count))
