"""What the loop asks of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from trainer.cluster.shared_memory import Lent, Parcel, Part
from trainer.config.options.parallelism import VLLMSettings
from trainer.types import (
    Completion,
    Measured,
    PartialRollout,
    Request,
    Sampling,
    SliceResult,
)
from trainer.weight_sync.choose import Member, Seat

Memory = Literal["weights", "cache"]


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


class Engine(Measured, Protocol):
    """Writes completions with the newest weights it was given.

    A completion depends on its text, its seed, the sampling and the weights (up to the rounding
    of batched sums), and on nothing that the engine does besides or did before.
    """

    def node(self) -> str:
        """What `shared.node` says where it runs; answers once the engine has started."""

    def begin(self) -> None:
        """The policy's next weights come; parts of others, if there are any, are of no use."""

    def fetch(self, parcel: Parcel) -> Parcel:
        """A part of the policy's next weights in this node's memory, from the policy's node."""

    def load(self, parcel: Parcel) -> None:
        """Take a part of the policy's next weights from this node's memory."""

    def commit(self, version: int) -> None:
        """All parts are there: completions are written with them and carry `version`."""

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

    def sleep(self) -> None:
        """Free the memory of weights and cache; the weights are forgotten."""

    def wake(self, memory: Memory) -> None:
        """Take that memory again: of the weights before they are loaded, of the cache after."""


class GPUEngine(Engine, Protocol):
    """One that takes weights from GPU to GPU, too."""

    def member(self) -> Member:
        """Of the group to which the policy broadcasts; answers once the engine has started."""

    def join(self, seat: Seat) -> None:
        """Take its place in a group, and leave the one before.

        Raises BrokenGroupError where the group does not come about.
        """

    def receive(self, part: Part) -> None:
        """Take a part of the policy's next weights while the policy broadcasts it."""

    def borrow(self, lent: Sequence[Lent]) -> None:
        """Take a part of them from the GPUs that this engine shares with ranks of the policy."""
