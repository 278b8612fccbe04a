"""Prompts → completions → scored samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from env.types import Prompt, RewardFunction, RewardRequest
from trainer.actors.group import Group
from trainer.engines.base import Engine, Request
from trainer.seeds import derive
from trainer.types import Completion, FloatArray, Sample, Sampling, TrainingError


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

    def greedy(self, prompts: Sequence[Prompt]) -> list[tuple[Prompt, Completion]]:
        """The likeliest completion of each prompt."""
        return self._decode(prompts, 1, replace(self.sampling, temperature=0.0), "greedy", 0)

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


def score(reward: RewardFunction, written: Sequence[tuple[Prompt, Completion]]) -> list[Sample]:
    """Completions with their scores. Raises TrainingError where no single one could be scored."""
    requests = [
        RewardRequest(prompt.text + completion.text, prompt.text, prompt.label)
        for prompt, completion in written
    ]
    samples = [
        Sample(prompt, completion, score)
        for (prompt, completion), score in zip(written, reward(requests), strict=True)
    ]
    if not any(sample.score.ok for sample in samples):
        raise TrainingError(
            f"none of {len(samples)} completions could be scored: {samples[0].score.error}"
        )
    return samples


def rewards_of(samples: Sequence[Sample]) -> FloatArray:
    """[B] rewards; NaN where scoring failed. Raises TrainingError for one that is not finite."""
    for sample in samples:
        if sample.score.ok and not np.isfinite(sample.score.reward):
            raise TrainingError(
                f"the reward of prompt {sample.prompt.index} is {sample.score.reward}"
            )
    known = [s.score.reward if s.score.ok else np.nan for s in samples]
    return np.array(known, dtype=np.float32)


def accuracy(samples: Sequence[Sample]) -> float:
    """Mean over scored samples of the metric `acc`, or of the reward where there is none."""
    scores = [sample.score for sample in samples if sample.score.ok]
    return float(np.mean([score.metrics.get("acc", score.reward) for score in scores]))
