"""Log-probabilities and entropy of chosen tokens, without logits over the whole vocabulary.

The usual computation holds [N, V] float32 logits, their log-softmax and the gradients of both:
gigabytes for a few thousand tokens. Here the head is applied to a block of the vocabulary at a
time, with a running log-sum-exp (Milakov and Gimelshein 2018), and again in the backward pass, as
in cut cross-entropy (Wijmans et al. 2024). A block is read and written once; [N, V] never exists.

Logits, and everything computed from them, are in float32 at least, whatever the model's precision.
So are the sums over blocks in the backward pass.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trainer.models.bf16_matmul import is_multiplied_as_it_is, product
from trainer.models.zero3 import is_half

log = logging.getLogger(__name__)

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

    @property
    def is_product(self) -> bool:
        """Whether logits are scale · h Wᵀ."""
        return self.bias is None and self.softcap is None

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
    kernels = _kernels(states.device) if is_multiplied_as_it_is(states) else None
    if kernels and projection.is_product and projection.weight.dtype == states.dtype:
        factor = projection.scale / temperature
        fused: tuple[Tensor, Tensor | None]
        fused = kernels.token_log_probs(states, projection.weight, tokens, factor, entropy=entropy)
        return fused
    # The head's rows may be widened to float32: they must not need more memory than the logits.
    height = max(1, len(tokens), states.shape[1] if is_half(states) else 0)
    if height * len(projection.weight) <= block_elements and not is_multiplied_as_it_is(states):
        return of_logits(projection.logits(states), tokens, temperature, entropy=entropy)
    block = max(1, block_elements // height)
    chosen, spread = _Blockwise.apply(  # type: ignore[no-untyped-call]
        states, projection.weight, projection.bias, tokens, projection, temperature, block, entropy
    )
    return chosen, spread if entropy else None


@cache
@torch.inference_mode(False)
@torch.enable_grad()  # the first to ask may be a pass without gradients
def _kernels(device: torch.device) -> Any:
    """Return the module of the fused kernels, after a trial; None if they do not run here."""
    try:
        from trainer.models import fused_log_probs

        states = torch.ones(1, 16, dtype=torch.bfloat16, device=device, requires_grad=True)
        token = torch.zeros(1, dtype=torch.int64, device=device)
        weight = states.detach().repeat(256, 1)
        fused_log_probs.token_log_probs(states, weight, token, 1.0)[0].sum().backward()
    except Exception as error:  # Triton has no common class: a missing compiler, an old driver, …
        log.warning(
            "Triton's kernels do not run here, so an update takes up to twice as long: %s: %s",
            *(type(error).__name__, error),
        )
        return None
    return fused_log_probs


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
