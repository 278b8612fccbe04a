"""Attention over sequences that lie end to end.

Only attention must know where a sequence ends; the rest of a model treats each token alone. On GPUs
torch's flash kernels (Dao 2023, through `torch.nn.attention.varlen`) take sequences end to end, and
the heads of keys and values as they are. They compute in half precision, without a soft cap, sinks
or dropout. For anything else, queries, keys and values are padded during the attention only, so
padding costs neither matrix products nor memory elsewhere. Each sequence has its own row then, so
tokens of different sequences never attend to each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import attention as attention_kernels
from torch.nn import functional
from torch.nn.attention import varlen
from transformers import AttentionInterface

from trainer.algorithms.batching import grid
from trainer.models.sequence_parallel import SharedPass
from trainer.types import IntArray

log = logging.getLogger(__name__)

PACKED = "packed_sdpa"
"""Name of `attend` in transformers' registry of attentions."""


class PackedLayout:
    """Where B sequences lie that are M tokens end to end, and their places in B equal rows."""

    def __init__(self, lengths: IntArray, device: torch.device, *, kernel: bool = False) -> None:
        """`kernel`: use torch's flash kernels where they can compute what is asked for."""
        self.rows, self.width = len(lengths), int(lengths.max())
        self.kernel = kernel
        self.padded = False
        """Whether some layer has put the sequences in rows."""
        self._lengths, self._device = lengths, device

    @cached_property
    def ends(self) -> Tensor:
        """[B + 1] int32: 0, and the end of each sequence."""
        ends = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int32)
        return torch.from_numpy(ends).to(self._device)

    @cached_property
    def _maps(self) -> tuple[Tensor, Tensor] | None:
        """[B * width] the token of each place, and [M] the place of each token; None: the same.

        The places after the end of a row repeat token 0. No real token attends to what follows it,
        so no gradient comes back from them.
        """
        if self._lengths.min() == self.width:
            return None
        tokens, places = (torch.from_numpy(each).to(self._device) for each in grid(self._lengths))
        return tokens, places

    def side_by_side(self, states: Tensor) -> Tensor:
        """[1, heads, M, size] → [B, heads, width, size]"""
        self.padded = True
        flat = states.squeeze(0).transpose(0, 1)
        if self._maps is not None:
            flat = flat.index_select(0, self._maps[0])
        return flat.reshape(self.rows, self.width, *flat.shape[1:]).transpose(1, 2)

    def end_to_end(self, states: Tensor) -> Tensor:
        """[B, width, heads, size] → [1, M, heads, size]"""
        flat = states.reshape(self.rows * self.width, *states.shape[2:])
        if self._maps is not None:
            flat = flat.index_select(0, self._maps[1])
        return flat.unsqueeze(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an attention computes beside the causal softmax."""

    scale: float | None = None
    """Factor of the logits; None: the inverse root of a head's size."""
    window: int | None = None
    """Tokens that a token attends to, itself and those before it; None: all."""
    softcap: float | None = None
    """Bound of the logits (Gemma 2)."""
    sinks: Tensor | None = None
    """[heads] the logit of each head's sink (gpt-oss)."""
    dropout: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether torch has kernels for it."""
        return self.softcap is None and self.sinks is None


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: PackedLayout | None = None,
    shared: SharedPass | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute `attention` for transformers, which gives the names of the arguments.

    `shared`: other ranks have the other tokens of the samples. Raises TypeError for a mask or a
    bias of the model's own.
    """
    own_mask = attention_mask is not None and attention_mask.dim() == 4
    if own_mask or position_bias is not None:
        raise TypeError("the model has a mask or a bias of its own")
    options = Options(
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout if module.training else 0.0,
    )
    if shared is None:
        return attention(query, key, value, packed, options), None
    query, key, value = shared.ranks.by_heads(query, key, value)
    return shared.ranks.by_tokens(attention(query, key, value, packed, options)), None


def attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedLayout | None, options: Options
) -> Tensor:
    """Return [1, M, heads, size] attention, causal within each sequence of `packed`.

    `query` is [1, heads, M, size]. `key` and `value` may have fewer heads, each for as many heads
    of queries. Without `packed` each row is one sequence, padded on the right: then queries are
    [B, heads, T, size] and the result [B, T, heads, size].
    """
    if packed is None:
        return _in_rows(query, key, value, options)
    if packed.kernel and _kernel_fits(query, key, value, options):
        return _by_kernel(query, key, value, packed, options)
    query, key, value = (packed.side_by_side(states) for states in (query, key, value))
    return packed.end_to_end(_in_rows(query, key, value, options))


def has_kernels(device: torch.device) -> bool:
    """Return whether torch has flash kernels for `device`, and let it take the fastest."""
    _take_fastest(device)
    return _works(device, torch.bfloat16, (2, 1), 64, False)


@cache
def _take_fastest(device: torch.device) -> None:
    """Put FlashAttention-3 in the place of torch's kernels, if it is installed and computes here.

    On Hopper it has 1.5 to 2 times the rate of FlashAttention-2 (Shah et al. 2024, section 4).
    """
    if find_spec("flash_attn_interface") is None:
        return
    try:
        attention_kernels.activate_flash_attention_impl("FA3")
        if _works(device, torch.bfloat16, (2, 1), 64, False):
            return
    except (ImportError, RuntimeError) as error:
        log.warning("FlashAttention-3 is installed, and torch cannot take it: %s", error)
    attention_kernels.restore_flash_attention_impl()
    _works.cache_clear()


def _kernel_fits(query: Tensor, key: Tensor, value: Tensor, options: Options) -> bool:
    if not options.plain or options.dropout or query.shape[-1] != value.shape[-1]:
        return False
    heads, windowed = (query.shape[1], key.shape[1]), options.window is not None
    return _works(query.device, _kind(query), heads, query.shape[-1], windowed)


@cache
def _works(
    device: torch.device, kind: torch.dtype, heads: tuple[int, int], size: int, windowed: bool
) -> bool:
    """Return whether torch's kernels compute such heads on `device`, by a trial with gradients.

    What they take depends on the GPU, on the size of a head and on torch, in ways that only a
    trial shows: GPUs before Ampere and CPUs have none, sizes are multiples of 8 up to 256.
    `heads`: of queries, and of keys.
    """
    lengths, random = np.array([5, 1, 3]), torch.Generator().manual_seed(0)
    shapes = [(1, count, int(lengths.sum()), size) for count in (heads[0], heads[1], heads[1])]
    drawn = [torch.randn(shape, generator=random).to(kind) for shape in shapes]
    layout, options = PackedLayout(lengths, device), Options(window=2 if windowed else None)

    def outcome(compute: Callable[..., Tensor], kind: torch.dtype) -> list[Tensor]:
        states = [each.to(device, kind).requires_grad_() for each in drawn]
        output = compute(*states, layout, options)
        gradients = torch.autograd.grad(output.float().square().sum(), states)
        return [each.detach().float() for each in (output, *gradients)]

    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        # Checkpointing must not count what the trial saves: a recomputed layer has no trial.
        torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged),
    ):
        try:
            got = outcome(_by_kernel, kind)
        except (RuntimeError, TypeError, ValueError) as error:
            first = str(error).partition("\n")[0]
            log.debug("no flash kernel for heads of %s %s on %s: %s", size, kind, device, first)
            return False
        expected = outcome(attention, torch.float32)
    # Rounding changes less than 0.01 of a norm, another token that is seen more than a tenth.
    return all(
        bool((one - other).norm() <= 0.03 * other.norm())
        for one, other in zip(got, expected, strict=True)
    )


def _unchanged(saved: Tensor) -> Tensor:
    return saved


def _kind(states: Tensor) -> torch.dtype:
    """Return the type in which attention computes; autocast does not know of the kernels."""
    device = states.device.type
    cast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if cast else states.dtype


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedLayout, options: Options
) -> Tensor:
    kind = _kind(query)
    query, key, value = (part.squeeze(0).transpose(0, 1).to(kind) for part in (query, key, value))
    seen = packed.width if options.window is None else options.window
    output = varlen.varlen_attn(
        query,
        key,
        value,
        packed.ends,
        packed.ends,
        packed.width,
        packed.width,
        scale=options.scale,
        window_size=(seen - 1 if seen < packed.width else -1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, Tensor)  # no logsumexp was asked for
    return output.unsqueeze(0)


def _in_rows(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """Return [B, width, heads, size] attention, causal in each row."""
    width = query.shape[2]
    window = None
    if options.window is not None and options.window < width:
        window = _window(width, options.window, query.device)
    if options.plain:
        # With a mask, torch's kernels for heads that share keys are not used.
        shared = query.shape[1] != key.shape[1]
        grouped = shared and window is None and key.shape[-1] == value.shape[-1] <= 256
        # On GPUs only flash kernels share keys, and they have no fp32.
        grouped = grouped and not (query.is_cuda and _kind(query) == torch.float32)
        if shared and not grouped:
            key, value = _for_each_query(key, query), _for_each_query(value, query)
        output = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=window,
            dropout_p=options.dropout,
            scale=options.scale,
            is_causal=width > 1 and window is None,
            enable_gqa=grouped,
        )
        return output.transpose(1, 2).contiguous()
    if window is None:
        window = _window(width, width, query.device)
    scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
    logits = query @ _for_each_query(key, query).transpose(-2, -1) * scale
    weights = _weights(logits, window, options.softcap, options.sinks).to(query.dtype)
    weights = functional.dropout(weights, options.dropout)
    return (weights @ _for_each_query(value, query)).transpose(1, 2)


def _weights(logits: Tensor, seen: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Return [B, heads, width, width] weights from logits; no kernel of torch does both."""
    width = logits.shape[-1]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
    if sinks is not None:
        sink = sinks.reshape(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, sink.to(logits.dtype)], dim=-1)
    weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return weights[..., :width]


def _for_each_query(states: Tensor, query: Tensor) -> Tensor:
    """Repeat the heads of keys or values, so that each head of queries has its own."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], dim=1)


def _window(width: int, size: int, device: torch.device) -> Tensor:
    """Return [1, 1, width, width] true if a token attends: to itself and size − 1 tokens before."""
    at = torch.arange(width, device=device)
    distance = at[:, None] - at
    return ((distance >= 0) & (distance < size))[None, None]


AttentionInterface.register(PACKED, attend)
