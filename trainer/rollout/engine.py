"""What the loop asks of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainer.config.options.parallelism import VLLMSettings
from trainer.types import (
    Completion,
    Measured,
    PartialRollout,
    Request,
    Sampling,
    SliceResult,
)
from trainer.weight_sync.messages import GPUWeightReceiver, WeightReceiver


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str
    add_special_tokens: bool
    """False where a chat template wrote them already."""
    prompt_max_len: int
    generate_max_len: int
    mixed_precision: bool
    deterministic: bool = False
    """Kernels that repeat to the bit."""
    slots: int
    """Completions that a transformers engine decodes at a time; vLLM finds its own number."""
    top_p: float = 1.0
    """Of the rollouts that are trained on."""
    vllm: VLLMSettings = field(default_factory=VLLMSettings)


class Engine(WeightReceiver, Measured, Protocol):
    """Writes completions with the newest weights it was given.

    A completion depends on its text, its seed, the sampling and the weights (up to the rounding
    of batched sums), and on nothing that the engine does besides or did before.
    """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each seed of each request, in order."""

    def write(
        self, partials: Sequence[PartialRollout], sampling: Sampling, seconds: float
    ) -> SliceResult:
        """Add these partial rollouts to those under way, and write all of them for `seconds`.

        Between two calls other weights may come: the rest of a partial rollout is then written with
        those, from keys and values that they computed.
        """

    def partials(self) -> list[PartialRollout]:
        """What is under way, as far as it is written."""


class GPUEngine(GPUWeightReceiver, Engine, Protocol):
    """An engine that also takes weights from GPU to GPU."""
