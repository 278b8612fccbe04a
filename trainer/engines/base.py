"""What the loop asks of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.types import Completion, Sampling, Weights


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the seed of each completion of it that is wanted."""

    text: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str
    add_special_tokens: bool
    """False where a chat template wrote them already."""
    prompt_max_len: int
    mixed_precision: bool
    deterministic: bool = False
    """Kernels that repeat to the bit."""
    slots: int
    """Completions decoded at a time."""


class Engine(Protocol):
    """Writes completions with the newest weights it was given.

    A completion depends on its text, its seed, the sampling and the weights (up to the rounding
    of batched sums), and on nothing that the engine does besides or did before.
    """

    def load(self, weights: Weights, version: int) -> None:
        """Take the policy's weights; completions carry `version` from now on."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each seed of each request, in order."""
