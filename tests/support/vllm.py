"""vLLM's settings for a tiny model, requests, and the error of its log-probabilities."""

from __future__ import annotations

import numpy as np

from tests.support.tiny_run import Tiny
from trainer.config.options.parallelism import VLLMSettings
from trainer.rollout.engine import EngineSettings
from trainer.types import (
    Completion,
    Request,
    Sampling,
    Sequences,
)
from trainer.workers.policy import PolicyActor

LONG = "1" * 150
"""A prompt of more than one block of vLLM's cache, which are 128 tokens on CPUs."""
SAMPLING = Sampling(max_new_tokens=20, temperature=0.7)


def settings(model: Tiny, **own: object) -> EngineSettings:
    return EngineSettings(
        model=str(model.model),
        add_special_tokens=True,
        prompt_max_len=200,
        generate_max_len=20,
        mixed_precision=False,
        slots=64,
        vllm=VLLMSettings(
            **{
                "enforce_eager": True,
                "enable_prefix_caching": True,
                "sync_backend": "shared_memory",
                **own,
            }
        ),
    )


def requests(*seeds: int) -> list[Request]:
    return [Request(text, seeds) for text in ("1+1=", "12+30=", "7=", LONG)]


def worst(policy: PolicyActor, completions: list[Completion]) -> float:
    """The largest difference between what engine and trainer say of a drawn token."""
    sequences = Sequences.collate(completions)
    assert sequences.rollout_log_probs is not None
    difference = policy.log_probs(sequences) - sequences.rollout_log_probs
    return float(np.abs(difference).max())
