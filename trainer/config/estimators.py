"""The advantage estimators: the baseline of each, and what else it does with the rewards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Baseline(StrEnum):
    """What is subtracted from the reward of a completion; `advantages.BASELINES` computes it."""

    NONE = "none"
    GROUP_MEAN = "mean of the prompt's completions"
    OTHERS_MEAN = "mean of the prompt's other completions"
    GROUP_NORM = "mean of the prompt's completions, divided by their deviation"
    LENGTH_WEIGHTED_MEAN = "mean of the prompt's completions, each weighted by its tokens"
    BATCH_MEAN = "mean of all prompts' completions"
    GREEDY = "reward of the prompt's greedy completion"
    EACH_GROUP_NORM = "mean and deviation of each reward in its group, then of their sum"
    OWN = "a user's function"


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator."""

    baseline: Baseline
    whitens: bool = False
    """Whiten advantages over the action tokens of the whole batch."""
    compares_group: bool = False
    """Compare the completions of one prompt, so that one completion has no advantage."""
    rescales: bool = False
    """Its advantages may have another scale than the rewards.

    Rewards of turns have the scale of rewards: all of the reward is then at the last action.
    """


ESTIMATORS = {
    "gae": Estimator(Baseline.NONE, whitens=True),
    "reinforce": Estimator(Baseline.NONE, whitens=True),
    "reinforce_baseline": Estimator(Baseline.GROUP_MEAN, whitens=True, compares_group=True),
    "rloo": Estimator(Baseline.OTHERS_MEAN, compares_group=True),
    "group_norm": Estimator(Baseline.GROUP_NORM, compares_group=True, rescales=True),
    "gdpo": Estimator(Baseline.EACH_GROUP_NORM, compares_group=True, rescales=True),
    "dr_grpo": Estimator(Baseline.GROUP_MEAN, compares_group=True),
    "opo": Estimator(Baseline.LENGTH_WEIGHTED_MEAN, compares_group=True),
    "flash_reinforce": Estimator(Baseline.BATCH_MEAN),
    "remax": Estimator(Baseline.GREEDY),
}
"""Values of --advantage_estimator, beside FILE.py:NAME."""
CALLED = {
    "grpo": "group_norm",
    "ppo": "gae",
    "reinforce++": "reinforce",
    "reinforce_plus_plus": "reinforce",
    "reinforce++_baseline": "reinforce_baseline",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
}
"""Names of methods and of verl → those here."""

OWN = Estimator(Baseline.OWN, rescales=True)
"""FILE.py:NAME"""
