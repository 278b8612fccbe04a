"""What the loop asks of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from trainer.shared import Parcel
from trainer.types import Completion, Sampling, Weights

Memory = Literal["weights", "cache"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the seed of each completion of it that is wanted."""

    text: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """What only vLLM has; values are the flags'."""

    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = False
    enforce_eager: bool = False
    enable_sleep: bool = False


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
    vllm: VLLMSettings = VLLMSettings()


class Engine(Protocol):
    """Writes completions with the newest weights it was given.

    A completion depends on its text, its seed, the sampling and the weights (up to the rounding
    of batched sums), and on nothing that the engine does besides or did before.
    """

    def node(self) -> str:
        """What `shared.node` says where it runs; answers once the engine has started."""

    def load(self, part: Weights | Parcel) -> None:
        """Take a part of the policy's next weights."""

    def commit(self, version: int) -> None:
        """All parts are there: completions are written with them and carry `version`."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each seed of each request, in order."""

    def sleep(self) -> None:
        """Free the memory of weights and cache; the weights are forgotten."""

    def wake(self, memory: Memory) -> None:
        """Take that memory again: of the weights before they are loaded, of the cache after."""
