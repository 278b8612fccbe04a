"""The metrics of one step, under the names that OpenRLHF logs to W&B."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.batching import PEAK
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.metrics.recorder import Step, Stopwatch
from trainer.types import Metrics, Sample
from trainer.workers.experience import Lesson


def of(
    samples: Sequence[Sample],
    lesson: Lesson,
    updates: Metrics,
    watch: Stopwatch,
    config: Config,
) -> Step:
    known = [sample.score for sample in samples if sample.score.ok]
    rewards = np.array([score.reward for score in known])
    plan, sums = lesson.division.plan, lesson.statistics
    kl = _kl(lesson, updates, config)
    tokens = int(plan.lengths.sum())
    greedy = [one.greedy for one in samples[:: config.n_samples_per_prompt] if one.greedy]
    seconds = watch.seconds
    own = {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_failed": 1 - len(known) / len(samples),
        "return": sums.returns / max(1, int(plan.actions.sum())),
        "response_length": float(np.mean([s.completion.length for s in samples])),
        "total_length": tokens / len(samples),
        "truncated": float(np.mean([not s.completion.finished for s in samples])),
        **_of_greedy(greedy),
        **updates,
        "kl": kl,
        **watch.metrics,
    }
    # A reward function may log a value of the same name, such as `reward`: both are kept.
    row = {_logged(name): value for name, value in own.items()}
    for name, value in _score_metrics(samples).items():
        row[f"train/score_{name}" if name in own else f"train/{name}"] = value
    tokens += sum(len(one.completion.tokens) for one in greedy)
    row |= watch.phases | {"timing/step": seconds, "perf/tokens_per_second": tokens / seconds}
    return Step(
        row=row,
        reward=own["reward"],
        kl=kl,
        tokens=tokens,
        seconds=seconds,
        began=watch.began,
        phases={name.removeprefix("timing/"): value for name, value in watch.phases.items()},
        samples=samples,
        rank_times=watch.rank_times,
    )


def _of_greedy(greedy: Sequence[Sample]) -> Metrics:
    """Return the metrics of completions that are not trained on; nothing if there is none."""
    if not greedy:
        return {}
    known = [one.score.reward for one in greedy if one.score.ok]
    found = {"greedy_length": float(np.mean([one.completion.length for one in greedy]))}
    return found | ({"greedy_reward": float(np.mean(known))} if known else {})


def _logged(name: str) -> str:
    if "/" in name:
        return name
    phase, peak, _ = name.partition(PEAK)
    return f"memory/{phase}_gb" if peak else f"train/{name}"


def _kl(lesson: Lesson, updates: Metrics, config: Config) -> float:
    """Return the KL of the policy before the step's updates to the reference.

    If nothing needs that policy's log-probabilities but the one update of the step, the KL is from
    there; if the policy is not updated, of the policies that wrote the completions.
    """
    if Role.POLICY not in lesson.kept and "kl" in updates:
        return updates["kl"]
    found = lesson.statistics.kl
    actions = lesson.division.plan.actions
    return found.step_mean(actions, in_loss=config.kl.use_loss) if found else 0.0


def _score_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the means of the reward function's additional values."""
    names = {name for sample in samples for name in sample.score.metrics}
    return {
        name: float(np.mean([s.score.metrics[name] for s in samples if name in s.score.metrics]))
        for name in sorted(names)
    }
