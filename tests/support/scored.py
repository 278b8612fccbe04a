"""The score of one completion by a registered reward."""

from __future__ import annotations

from env.registry import reward_function
from env.types import RewardRequest, Score


def score(spec: str, completion: str, label: str | None = None, prompt: str = "?") -> Score:
    (score,) = reward_function(spec)([RewardRequest(prompt + completion, prompt, label)])
    return score
