"""vLLM's settings for a tiny model, requests, and the error of its log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.ragged import mask_of, scores
from tests.support.tiny_run import Tiny
from trainer.config.options.parallelism import VLLMSettings
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import EngineSettings
from trainer.types import Completion, FloatArray, Request, Seed, Sequences

LONG = "1" * 150
"""A prompt of more than one block of vLLM's cache, which are 128 tokens on CPUs."""
SAMPLING = SamplingSettings(max_new_tokens=20, temperature=0.7)


def settings(model: Tiny, **own: Any) -> EngineSettings:
    return EngineSettings(
        model=str(model.model),
        add_special_tokens=True,
        prompt_max_len=200,
        sampling=SamplingSettings(max_new_tokens=20),
        mixed_precision=False,
        slots=64,
        vllm=replace(
            VLLMSettings(
                enforce_eager=True, enable_prefix_caching=True, sync_backend="shared_memory"
            ),
            **own,
        ),
    )


def requests(*seeds: Seed) -> list[Request]:
    return [Request(text, seeds) for text in ("1+1=", "12+30=", "7=", LONG)]


def worst(policy: Any, completions: list[Completion]) -> float:
    """The largest difference between what engine and trainer say of a drawn token.

    `policy`: a policy, or what is asked like one.
    """
    return float(_differences(policy, completions).max())


def mean(policy: Any, completions: list[Completion]) -> float:
    """The mean difference between what engine and trainer say of a drawn token."""
    return float(_differences(policy, completions).mean())


def _differences(policy: Any, completions: list[Completion]) -> FloatArray:
    """In nats, of each drawn token."""
    sequences = Sequences.collate(completions)
    assert sequences.rollout_log_probs is not None
    found = scores(policy, sequences)[mask_of(sequences)]
    differences: FloatArray = np.abs(found - sequences.rollout_log_probs)
    return differences
