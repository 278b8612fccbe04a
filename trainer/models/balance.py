"""The loss that keeps the experts of a mixture equally busy.

Fedus et al. 2021, equations 4 to 6: E · Σ_e f_e · P_e. f_e is the share of tokens that expert e
gets, P_e its mean probability. As in transformers, tokens of all layers are counted together, and
f adds up to the number of experts of a token.

The loss is not linear in the tokens, so it is that of a pass. An optimizer step minimises the mean
of its passes, each weighted by its samples, as OpenRLHF does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trainer.algorithms.losses import LossPart
from trainer.models.sequence_parallel import SharedPass
from trainer.types import UnfitModelError

CHOSEN = ("num_experts_per_tok", "moe_k", "moe_top_k", "top_k_experts")
"""transformers' names for the experts of a token."""


class Balance:
    """Adds the balancing loss of a model's passes to their losses."""

    def __init__(self, backbone: Any, coefficient: float, role: str) -> None:
        """`role` names the metric. The backbone's routers are read where `recorded` says so."""
        self._coefficient, self._metric = coefficient, f"{role}_aux_loss"
        self._chosen = _experts_of_a_token(backbone.config.get_text_config())
        self._records = False
        self._loss: Tensor | None = None
        backbone.register_forward_pre_hook(self._ask, with_kwargs=True)
        backbone.register_forward_hook(self._take, with_kwargs=True)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep the balancing loss of the pass in the block, for `added`."""
        self._records = True
        try:
            yield
        finally:
            self._records = False

    def added(self, loss: LossPart, share: float) -> LossPart:
        """Return the pass's loss plus the balancing loss, whose weight in the step is `share`."""
        assert self._loss is not None
        balance, self._loss = self._loss * share, None
        found = {self._metric: balance.detach().double()}
        return replace(
            loss, value=loss.value + self._coefficient * balance, metrics=loss.metrics | found
        )

    def _ask(self, module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, given | {"output_router_logits": True} if self._records else given

    def _take(self, module: Any, args: Any, given: Mapping[str, Any], output: Any) -> None:
        if not self._records:
            return
        if not output.router_logits:
            raise UnfitModelError("--aux_loss_coef: no layer of the model has experts")
        shared: SharedPass | None = given.get("shared")
        mask = shared.inside if shared else given.get("attention_mask")
        total = shared.ranks.total if shared else _unchanged
        self._loss = balancing_loss(output.router_logits, self._chosen, mask, total)


def balance_of(backbone: Any, coefficient: float, role: str) -> Balance | None:
    """Return what balances a model's experts; None with coefficient 0, or without experts.

    Raises UnfitModelError for a mixture for which transformers has no balancing loss.
    """
    if not coefficient or not _is_mixture(backbone):
        return None
    modeling = sys.modules[type(backbone).__module__]
    records = "router_logits" in (backbone._can_record_outputs or {})
    if not records or not hasattr(modeling, "load_balancing_loss_func"):
        raise UnfitModelError(
            f"--aux_loss_coef {coefficient:g}: transformers has no balancing loss for a "
            f"{backbone.config.model_type}. Leave the flag out"
        )
    return Balance(backbone, coefficient, role)


def _unchanged(sums: Tensor) -> Tensor:
    return sums


def balancing_loss(
    routers: Sequence[Tensor],
    chosen: int,
    mask: Tensor | None,
    total: Callable[[Tensor], Tensor] = _unchanged,
) -> Tensor:
    """Return the balancing loss [] of a pass, in fp32 at least.

    `routers`: [B · T, E] or [B, T, E] logits of the experts, of each layer that has some. `chosen`:
    experts of a token. `mask` [B, T]: 0 at padding; None: no padding. `total`: what adds up the
    sums of ranks that share the samples of a pass.
    """
    experts = routers[0].shape[-1]
    kind = torch.promote_types(routers[0].dtype, torch.float32)
    counts = routers[0].new_zeros(experts, dtype=kind)
    sums = torch.zeros_like(counts)
    tokens = counts.new_zeros(())
    for logits in routers:
        flat = logits.reshape(-1, experts)
        inside = flat.new_ones(len(flat), dtype=kind) if mask is None else mask.flatten().to(kind)
        odds = flat.to(kind).softmax(-1)
        best = odds.detach().topk(chosen, dim=-1).indices
        # Sums, not products of matrices, which autocast would round to bf16.
        counts = counts + torch.zeros_like(odds).scatter_(
            1, best, inside[:, None].expand_as(best)
        ).sum(0)
        sums = sums + (odds * inside[:, None]).sum(0)
        tokens = tokens + inside.sum()
    counts, sums, tokens = total(counts), total(sums), total(tokens)
    return experts * (counts / tokens * (sums / tokens)).sum()


def _is_mixture(backbone: Any) -> bool:
    config = backbone.config.get_text_config()
    has_experts = any(getattr(config, name, None) for name in CHOSEN)
    return has_experts and getattr(config, "is_moe", True)


def _experts_of_a_token(config: Any) -> int:
    return next(int(found) for name in CHOSEN if (found := getattr(config, name, None)))
