"""How a model is loaded, sharded and adapted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is loaded and run forward."""

    model: str
    mixed_precision: bool
    micro_batch_size: int
    """Samples of one forward pass without gradients."""
    deterministic: bool = False
    """Kernels that repeat to the bit."""
    offload: bool = False
    """In the CPU's memory between two passes."""
    temperature: float
    """Log-probabilities are those of the distribution that was sampled from."""
    max_tokens: int | None = None
    """Tokens of one forward pass without gradients, in place of samples."""
    packing: bool = True
    """Samples end to end, where the model's attention can tell them apart."""
    attention: str | None = None
    """transformers' name for an attention; what fits the machine where None."""
    concurrent_models: int = 1
    """Models that run forward at the same time; on a CPU they share its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How reward models are loaded and run."""

    models: tuple[str, ...]
    mixed_precision: bool
    micro_batch_size: int
    """Samples of one forward pass."""
    deterministic: bool = False
    offload: bool = False
    """In the CPU's memory between two passes."""
    attention: str | None = None
    value_head_prefix: str = "score"
    """The head's name in the files of a model of OpenRLHF's that does not say it."""
