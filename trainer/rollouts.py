"""Prompts → completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from env.types import Prompt
from trainer.actors.group import Group
from trainer.engines.base import Engine, Request
from trainer.seeds import derive
from trainer.types import Completion, Sampling


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Completions from a group of engines, the same however many engines share the work."""

    engines: Group[Engine]
    sampling: Sampling
    samples_per_prompt: int
    seed: int

    def generate(self, prompts: Sequence[Prompt], step: int) -> list[tuple[Prompt, Completion]]:
        """`samples_per_prompt` completions of each prompt, side by side."""
        return self._decode(prompts, self.samples_per_prompt, self.sampling, "rollout", step)

    def held_out(
        self, prompts: Sequence[Prompt], count: int, temperature: float
    ) -> list[tuple[Prompt, Completion]]:
        """`count` completions of each prompt, the same whenever the weights are the same."""
        return self._decode(
            prompts, count, replace(self.sampling, temperature=temperature), "held-out", 0
        )

    def _decode(
        self, prompts: Sequence[Prompt], count: int, sampling: Sampling, purpose: str, step: int
    ) -> list[tuple[Prompt, Completion]]:
        requests = [
            Request(prompt.text, self._seeds(purpose, step, place, prompt, count))
            for place, prompt in enumerate(prompts)
        ]
        shares = np.array_split(np.arange(len(requests)), len(self.engines))
        pending = [
            self.engines.send(worker, Engine.generate, [requests[i] for i in share], sampling)
            for worker, share in enumerate(shares)
            if len(share)
        ]
        completions = [completion for part in pending for completion in part.result()]
        repeated = [prompt for prompt in prompts for _ in range(count)]
        return list(zip(repeated, completions, strict=True))

    def _seeds(
        self, purpose: str, step: int, place: int, prompt: Prompt, count: int
    ) -> tuple[int, ...]:
        """Of its own for each completion, also where a prompt comes twice in a step."""
        at = (step, place, prompt.index)
        return tuple(derive(self.seed, purpose, *at, number) for number in range(count))
