"""How models are loaded and run forward."""

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
    """Use kernels whose results repeat to the bit."""
    trust_remote_code: bool = False
    """Run code that the model brings along."""
    offload: bool = False
    """Keep the model in the CPU's memory between passes."""
    temperature: float
    """Temperature of the rollouts, which log-probabilities include."""
    max_tokens: int | None = None
    """Tokens of one forward pass without gradients; None: `micro_batch_size` is the limit."""
    packing: bool = True
    """Put samples end to end, if the model's attention can separate them."""
    sharing: int = 1
    """Ranks that share each sample."""
    longest: int | None = None
    """Most tokens of a sample of the run; None: unknown."""
    attention: str | None = None
    """transformers' name of an attention; None: its own choice."""
    liger: bool = False
    """Use Liger's kernels, if there is a GPU."""
    concurrent_models: int = 1
    """Models that run forward at the same time; on a CPU they share its threads."""
    shares_gpu: bool = False
    """Engines use the GPU's memory while the model does not compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How reward models are loaded and run."""

    models: tuple[str, ...]
    mixed_precision: bool
    micro_batch_size: int
    """Samples of one forward pass."""
    deterministic: bool = False
    trust_remote_code: bool = False
    """Run code that the models bring along."""
    offload: bool = False
    """Keep the model in the CPU's memory between passes."""
    shares_gpu: bool = False
    """Engines use the GPU's memory while the models do not compute."""
    attention: str | None = None
    value_head_prefix: str = "score"
    """Name of the head in files of OpenRLHF's models whose config.json does not give it."""
