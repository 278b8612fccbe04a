"""The size of a tiny model."""

from __future__ import annotations

from dataclasses import dataclass

from env.prepare.output import PrepareError


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    architecture: str = "qwen2"
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    max_length: int = 1024
    """Tokens of prompt and completion together."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.heads):
            raise PrepareError(
                f"--hidden-size {self.hidden_size} must be a multiple of 2 x --heads ({self.heads})"
            )
