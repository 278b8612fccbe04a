"""What the loop asks of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.types import Completion, Sampling, Weights


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompts that are decoded together, with the seed that decides their completions."""

    texts: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str
    add_special_tokens: bool
    """False where a chat template wrote them already."""
    prompt_max_len: int
    mixed_precision: bool


class Engine(Protocol):
    """Writes completions with the newest weights it was given.

    A chunk's completions depend on its texts, its seed, the sampling and the weights, and on
    nothing that the engine did before.
    """

    def load(self, weights: Weights, version: int) -> None:
        """Take the policy's weights; completions carry `version` from now on."""

    def generate(self, chunks: Sequence[Chunk], sampling: Sampling) -> list[Completion]:
        """One completion for each text of each chunk, in order."""
