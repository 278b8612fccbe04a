"""The protocol of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainer.config.options.parallelism import VLLMSettings
from trainer.config.options.rollout import SamplingSettings
from trainer.types import (
    Completion,
    Measured,
    PartialRollout,
    Request,
    SliceResult,
)
from trainer.weight_sync.messages import WeightReceiver

INCOMPLETE_WEIGHTS = "the engine's weights are incomplete: it sleeps, or parts are missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str
    add_special_tokens: bool
    """False if a chat template has written the special tokens."""
    prompt_max_len: int
    sampling: SamplingSettings
    """Sampling of the rollouts for training."""
    mixed_precision: bool
    deterministic: bool = False
    """Use kernels whose results repeat to the bit."""
    trust_remote_code: bool = False
    """Run code that the model brings along."""
    max_len: int | None = None
    """Most tokens of a context and its reply together; None: those of a prompt and a completion."""
    slots: int
    """Completions that a transformers engine decodes at a time. vLLM chooses its own number."""
    weight_check_steps: int = 0
    """Versions of weights between two checks that memory keeps their bits; 0: there is none."""
    max_images: int | None = None
    """Most images of a prompt; 0: any number; None: the model takes only text."""
    vllm: VLLMSettings = field(default_factory=VLLMSettings)

    @property
    def longest(self) -> int:
        """Most tokens of a context and its reply together."""
        return self.max_len or self.prompt_max_len + self.sampling.max_new_tokens


class Engine(WeightReceiver, Measured, Protocol):
    """Writes completions with the newest weights it was given.

    A completion depends on its prompt, its seed, the sampling and the weights, up to the rounding
    of batched sums. It does not depend on the engine's other or earlier work.

    With --vllm_enable_sleep an engine is asleep from its start to its first weights.
    """

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> list[Completion]:
        """Return one completion for each seed of each request, in order."""

    def write(
        self, partials: Sequence[PartialRollout], sampling: SamplingSettings, seconds: float
    ) -> SliceResult:
        """Add these partial rollouts to the engine's others, and write all of them for `seconds`.

        If new weights come between two calls, the engine writes the rest of each rollout with them,
        and computes its keys and values again.
        """

    def partials(self) -> list[PartialRollout]:
        """Return the unfinished rollouts, with the tokens so far."""
