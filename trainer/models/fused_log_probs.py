"""`log_probs` on NVIDIA's GPUs: Triton kernels read each block of logits once in each pass.

With torch's own operations a block is read and written some twenty times, which took half of the
time of an update (0.5 B parameters, H200). The products stay torch's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.models.bf16_matmul import product

BLOCK_ELEMENTS = 2**26
"""Logits of one block: 256 MiB in float32, and half as much for their gradients."""
COLUMNS = 256
"""A block's width is a multiple of it: the products of other widths take twice as long."""


class _Settings(NamedTuple):
    factor: float
    """Of the logits."""
    block: int
    """Columns of a block."""
    entropy: bool


def token_log_probs(
    states: Tensor, weight: Tensor, tokens: Tensor, factor: float, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return [N] log-probabilities of `tokens` [N] after `states` [N, H], and [N] entropy or None.

    The logits are `factor` · h Wᵀ, with `weight` [V, H] of the type of `states`.
    """
    block = max(1, BLOCK_ELEMENTS // max(1, len(tokens)) // COLUMNS) * COLUMNS
    settings = _Settings(factor, block, entropy)
    chosen, spread = _Fused.apply(states, weight, tokens, settings)  # type: ignore[no-untyped-call]
    return chosen, spread if entropy else None


class _Fused(torch.autograd.Function):
    """The same function as `log_probs._Blockwise`, which has the formulas."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, tokens: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor]:
        factor, block, entropy = settings
        rows = len(states)
        total = torch.zeros(rows, dtype=torch.float32, device=states.device)
        largest, chosen = torch.full_like(total, -torch.inf), torch.zeros_like(total)
        moment = torch.zeros_like(total)
        for start in range(0, len(weight) if rows else 0, block):
            logits = product(states, weight[start : start + block].T)
            width = logits.shape[1]
            _add_block[(rows,)](
                *(logits, logits.stride(0), tokens - start, width, factor),
                *(largest, total, chosen, moment),
                entropy=entropy,
                size=min(4096, triton.next_power_of_2(width)),
                num_warps=8,
            )
        log_total = largest + total.log()
        spread = log_total - moment / total if entropy else moment
        ctx.save_for_backward(states, weight, tokens, log_total, spread)
        ctx.settings = settings
        return chosen - log_total, spread

    @staticmethod
    def backward(ctx: Any, of_chosen: Tensor, of_entropy: Tensor) -> Any:
        states, weight, tokens, log_total, spread = ctx.saved_tensors
        factor, block, entropy = ctx.settings
        of_chosen, of_entropy = of_chosen.contiguous(), of_entropy.contiguous()
        rows = len(states)
        of_states = torch.zeros_like(states, dtype=torch.float32)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, len(weight) if rows else 0, block):
            part = weight[start : start + block]
            logits = product(states, part.T)
            width = logits.shape[1]
            gradient = torch.empty_like(logits, dtype=states.dtype)
            size = min(2048, triton.next_power_of_2(width))
            _gradient_of_block[(rows, triton.cdiv(width, size))](
                *(logits, logits.stride(0), tokens - start, width, factor),
                *(log_total, spread, of_chosen, of_entropy),
                *(gradient, gradient.stride(0)),
                entropy=entropy,
                size=size,
            )
            of_states += product(gradient, part)
            if of_weight is not None:
                torch.mm(gradient.T, states, out=of_weight[start : start + block])
        return of_states.to(states.dtype), of_weight, None, None


@triton.jit
def _add_block(
    logits,
    stride,
    places,
    width,
    factor,
    largest_of,
    total_of,
    chosen_of,
    moment_of,
    entropy: tl.constexpr,
    size: tl.constexpr,
):
    """Add a block of logits [N, width] to the running sums of each row; see log_probs._Running."""
    row = tl.program_id(0)
    base = logits + row.to(tl.int64) * stride
    largest = tl.load(largest_of + row)
    total = tl.load(total_of + row)
    moment = tl.load(moment_of + row)
    for start in range(0, width, size):
        columns = start + tl.arange(0, size)
        inside = columns < width
        z = tl.load(base + columns, mask=inside, other=float("-inf")) * factor
        above = tl.maximum(largest, tl.max(z, 0))
        exponentials = tl.exp(z - above)
        rescale = tl.exp(largest - above)
        total = total * rescale + tl.sum(exponentials, 0)
        if entropy:
            weighted = tl.where(inside, exponentials * z, 0.0)
            moment = moment * rescale + tl.sum(weighted, 0)
        largest = above
    tl.store(largest_of + row, largest)
    tl.store(total_of + row, total)
    if entropy:
        tl.store(moment_of + row, moment)
    place = tl.load(places + row)
    if (place >= 0) & (place < width):
        tl.store(chosen_of + row, tl.load(base + place) * factor)


@triton.jit
def _gradient_of_block(
    logits,
    stride,
    places,
    width,
    factor,
    log_total_of,
    entropy_of,
    of_chosen_of,
    of_entropy_of,
    gradient,
    gradient_stride,
    entropy: tl.constexpr,
    size: tl.constexpr,
):
    """Write the gradient of h Wᵀ [N, width], in half precision."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * size + tl.arange(0, size)
    inside = columns < width
    z = tl.load(logits + row.to(tl.int64) * stride + columns, mask=inside, other=0.0) * factor
    log_p = z - tl.load(log_total_of + row)
    of_chosen = tl.load(of_chosen_of + row)
    rate = of_chosen
    if entropy:
        rate += tl.load(of_entropy_of + row) * (log_p + tl.load(entropy_of + row))
    of_z = tl.where(columns == tl.load(places + row), of_chosen, 0.0) - tl.exp(log_p) * rate
    at = gradient + row.to(tl.int64) * gradient_stride + columns
    tl.store(at, (of_z * factor).to(gradient.dtype.element_ty), mask=inside)
