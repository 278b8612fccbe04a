"""vLLM's settings for a tiny model, requests, and the error of its log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tests.support.tiny_run import Tiny
from trainer.config.options.parallelism import VLLMSettings
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import EngineSettings
from trainer.types import (
    Completion,
    FloatArray,
    Request,
    Sequences,
)

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


def requests(*seeds: int) -> list[Request]:
    return [Request(text, seeds) for text in ("1+1=", "12+30=", "7=", LONG)]


class Scorer(Protocol):
    """A policy, or a group that is asked like one."""

    def log_probs(self, sequences: Sequences, /) -> FloatArray: ...


def worst(policy: Scorer, completions: list[Completion]) -> float:
    """The largest difference between what engine and trainer say of a drawn token."""
    return float(_differences(policy, completions).max())


def mean(policy: Scorer, completions: list[Completion]) -> float:
    """The mean difference between what engine and trainer say of a drawn token."""
    return float(_differences(policy, completions).mean())


def _differences(policy: Scorer, completions: list[Completion]) -> FloatArray:
    """In nats, of each drawn token."""
    sequences = Sequences.collate(completions)
    assert sequences.rollout_log_probs is not None
    difference = np.abs(policy.log_probs(sequences) - sequences.rollout_log_probs)
    drawn: FloatArray = difference[sequences.action_mask]
    return drawn
