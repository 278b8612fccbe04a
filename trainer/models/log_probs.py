"""Log-probabilities and entropy of chosen tokens, without logits over the whole vocabulary.

The usual computation holds [N, V] float32 logits, their log-softmax and the gradients of both:
gigabytes for a few thousand tokens. Here the head is applied to a block of the vocabulary at a
time, with a running log-sum-exp (Milakov and Gimelshein 2018), and again in the backward pass, as
in cut cross-entropy (Wijmans et al. 2024). A block is read and written once; [N, V] never exists.

Logits, and everything computed from them, are in float32 at least, whatever the model's precision.
So are the sums over blocks in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.models.zero3 import is_half

BLOCK_ELEMENTS = 2**23
"""Logits of one block: 32 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Maps hidden states to logits: softcap · tanh(scale · (h Wᵀ + b) / softcap)."""

    weight: Tensor
    """[V, H]"""
    bias: Tensor | None = None
    """[V]"""
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, states: Tensor, start: int = 0, end: int | None = None) -> Tensor:
        """Return logits [N, end − start] in float32 at least, for states [N, H]."""
        logits = product(states, self.weight[start:end].to(states.dtype).T)
        if self.bias is not None:
            logits = logits + self.bias[start:end].to(logits.dtype)
        logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return ∂ logits / ∂ (h Wᵀ + b)."""
        if self.softcap is None:
            return self.scale
        return self.scale * (1 - (logits / self.softcap) ** 2)


def token_log_probs(
    states: Tensor,
    tokens: Tensor,
    projection: Projection,
    temperature: float,
    *,
    entropy: bool = False,
    block_elements: int = BLOCK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """Return [N] log-probabilities of `tokens` [N] after `states` [N, H], and [N] entropy or None.

    The logits are divided by `temperature`: this is the distribution that the engine sampled from.
    """
    # The head's rows may be widened to float32: they must not need more memory than the logits.
    height = max(1, len(tokens), states.shape[1] if is_half(states) else 0)
    if height * len(projection.weight) <= block_elements and not _is_multiplied_as_it_is(states):
        return of_logits(projection.logits(states), tokens, temperature, entropy=entropy)
    block = max(1, block_elements // height)
    chosen, spread = _Blockwise.apply(  # type: ignore[no-untyped-call]
        states, projection.weight, projection.bias, tokens, projection, temperature, block, entropy
    )
    return chosen, spread if entropy else None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, of [N, K] and [K, M], with sums in float32 at least, not rounded after.

    The product of two numbers in half precision is exact in float32. CUDA multiplies them with
    sums in float32, which autograd does not support; elsewhere they are widened first.
    """
    if _is_multiplied_as_it_is(right):
        return torch.mm(left.to(right.dtype), right, out_dtype=torch.float32)
    kind = torch.promote_types(right.dtype, torch.float32)
    return left.to(kind) @ right.to(kind)


def _is_multiplied_as_it_is(tensor: Tensor) -> bool:
    if not (tensor.is_cuda and is_half(tensor)):
        return False
    return _gives_wide_products(torch.version.hip, torch.cuda.get_device_capability(tensor.device))


def _gives_wide_products(rocm: str | None, capability: tuple[int, int]) -> bool:
    """Return whether a GPU multiplies half precision to float32 without widening first.

    `rocm`: torch.version.hip. torch also calls AMD's GPUs `cuda`, but refuses such products there.
    NVIDIA's GPUs have bf16 since Ampere, which has compute capability 8.0.
    """
    return rocm is None and capability >= (8, 0)


def of_logits(
    logits: Tensor, tokens: Tensor, temperature: float, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the same as `token_log_probs`, from logits [N, V]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, tokens[:, None]).squeeze(-1)
    return chosen, -(log_probs.exp() * log_probs).sum(-1) if entropy else None


class _Blockwise(torch.autograd.Function):
    """(log-probability, entropy) of N tokens, block by block of the vocabulary.

    With z the logits / temperature, p = softmax(z), H the entropy: ∂ log p_y / ∂ z = 1_y − p and
    ∂ H / ∂ z = −p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        projection: Projection,
        temperature: float,
        block: int,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        running = _Running.start(states, entropy)
        for start in range(0, len(weight), block):
            z = projection.logits(states, start, start + block) / temperature
            running.add(z, tokens - start)
        log_total = running.log_total
        ctx.save_for_backward(states, weight, bias, tokens, log_total, running.entropy)
        ctx.settings = (projection, temperature, block, entropy)
        return running.chosen - log_total, running.entropy

    @staticmethod
    def backward(ctx: Any, of_chosen: Tensor, of_entropy: Tensor) -> Any:
        states, weight, bias, tokens, log_total, entropy = ctx.saved_tensors
        projection, temperature, block, with_entropy = ctx.settings
        wide = torch.promote_types(states.dtype, torch.float32)
        of_states = torch.zeros_like(states, dtype=wide)
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for start in range(0, len(weight), block):
            end = min(start + block, len(weight))
            logits = projection.logits(states, start, end)
            log_p = logits / temperature - log_total[:, None]
            factor = of_chosen[:, None]
            if with_entropy:
                factor = factor + of_entropy[:, None] * (log_p + entropy[:, None])
            gradient = -log_p.exp() * factor
            _add_at(gradient, tokens - start, of_chosen)
            gradient *= projection.slope(logits) / temperature
            if of_bias is not None:
                of_bias[start:end] = gradient.sum(0)
            of_states += product(gradient, weight[start:end].to(states.dtype))
            if of_weight is not None:
                of_weight[start:end] = product(gradient.T, states)
        return of_states.to(states.dtype), of_weight, of_bias, None, None, None, None, None


@dataclass(slots=True)
class _Running:
    """Sums over the blocks so far; exponentials are taken relative to the largest logit."""

    largest: Tensor
    total: Tensor
    """Σ exp(z − largest)"""
    chosen: Tensor
    """z of the chosen token"""
    moment: Tensor | None
    """Σ exp(z − largest) · z, for the entropy"""

    @classmethod
    def start(cls, states: Tensor, entropy: bool) -> _Running:
        kind = torch.promote_types(states.dtype, torch.float32)
        zero = torch.zeros(len(states), dtype=kind, device=states.device)
        return cls(
            torch.full_like(zero, -torch.inf), zero, zero.clone(), zero.clone() if entropy else None
        )

    def add(self, z: Tensor, place: Tensor) -> None:
        """Add a block of logits [N, block]. `place` [N]: index of the chosen token in the block."""
        inside = (place >= 0) & (place < z.shape[1])
        at = place.clamp(0, z.shape[1] - 1)[:, None]
        self.chosen = torch.where(inside, z.gather(-1, at).squeeze(-1), self.chosen)
        largest = torch.maximum(self.largest, z.amax(-1))
        rescale = (self.largest - largest).exp()
        exponentials = (z - largest[:, None]).exp_()
        self.total = self.total * rescale + exponentials.sum(-1)
        if self.moment is not None:
            weighted = torch.einsum("nv,nv->n", exponentials, z)
            self.moment = self.moment * rescale + weighted
        self.largest = largest

    @property
    def log_total(self) -> Tensor:
        return self.largest + self.total.log()

    @property
    def entropy(self) -> Tensor:
        """log Σ exp z − Σ p z; zero if no entropy was wanted."""
        if self.moment is None:
            return torch.zeros_like(self.total)
        return self.log_total - self.moment / self.total


def _add_at(gradient: Tensor, place: Tensor, amount: Tensor) -> None:
    """Add `amount` [N] to the entry of each chosen token that is in this block."""
    rows = ((place >= 0) & (place < gradient.shape[1])).nonzero().squeeze(-1)
    gradient[rows, place[rows]] += amount[rows]
