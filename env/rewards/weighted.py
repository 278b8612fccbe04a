"""Several rewards as one: the sum of their scores times their weights."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from env.types import RewardFunction, RewardPart, RewardRequest, Score


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    """Its score is the metric `reward_NAME`."""
    weight: float
    reward: RewardFunction


class WeightedReward:
    """A RewardFunction. A sample that one part cannot score is failed: no part is left out."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self.concurrency: int = min(getattr(part.reward, "concurrency", 1) for part in parts)
        """Calls that every part allows at a time."""

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        with ThreadPoolExecutor(len(self._parts), thread_name_prefix="reward") as threads:
            found = list(threads.map(lambda part: part.reward(requests), self._parts))
        return [self._sum(scores) for scores in zip(*found, strict=True)]

    def _sum(self, scores: Sequence[Score]) -> Score:
        """Return one score with the metrics of all parts.

        If several have a metric of one name, that of the reward with this name counts, else the
        first part's.
        """
        metrics: dict[str, float] = {}
        own: dict[str, float] = {}
        total = 0.0
        parts = []
        for part, score in zip(self._parts, scores, strict=True):
            if not score.ok:
                failed = Score.failed(f"{part.name}: {score.error}", score.raised)
                return replace(failed, not_finite=score.not_finite)
            total += part.weight * score.reward
            parts.append(RewardPart(score.reward, part.weight))
            metrics = {**score.metrics, **metrics, f"reward_{part.name}": score.reward}
            own |= {name: value for name, value in score.metrics.items() if name == part.name}
        return replace(Score.of(total, **metrics | own), parts=tuple(parts))


def named(parts: Sequence[tuple[str, float, RewardFunction]]) -> list[Part]:
    """Return parts whose names differ: the second `format` is `format_2`."""
    names = [name for name, _, _ in parts]
    numbers = [names[:place].count(name) + 1 for place, name in enumerate(names)]
    return [
        Part(name if number == 1 else f"{name}_{number}", weight, reward)
        for number, (name, weight, reward) in zip(numbers, parts, strict=True)
    ]
