"""The policy losses: what depends on each, such as ratio, correction, flags and paper."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RatioLevel(StrEnum):
    """What has one ratio π/π_old: `losses.policy_loss` computes it."""

    TOKEN = "token"
    SEQUENCE = "sequence"


class EngineCorrection(StrEnum):
    """How --is_correction_level changes the loss: `losses.policy_loss` does it."""

    TOKEN_WEIGHTS = "weights of tokens"
    SEQUENCE_WEIGHTS = "geometric means of the weights of a sequence's tokens"
    ENGINE_RATIO = "the ratio is taken to the engine itself, without bounds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """A policy loss."""

    level: RatioLevel = RatioLevel.TOKEN
    correction: EngineCorrection = EngineCorrection.TOKEN_WEIGHTS
    aggregations: tuple[str, ...] = ("token", "sequence", "constant")
    """Values of --loss_aggregation that it allows; the first one replaces the others."""
    settings: frozenset[str]
    """Names of the flags that the formula reads, of `FORMULA_SETTINGS`."""
    paper: str


CLIP = frozenset({"eps_clip", "eps_clip_low_high"})

POLICY_LOSSES = {
    "ppo": PolicyLoss(
        settings=CLIP | {"dual_clip"},
        paper="Schulman 2017, equation 7; two bounds: Yu 2025, equation 8; "
        "dual clip: Ye 2020, equation 5",
    ),
    "gspo": PolicyLoss(
        level=RatioLevel.SEQUENCE,
        correction=EngineCorrection.ENGINE_RATIO,
        aggregations=("sequence",),
        settings=CLIP | {"dual_clip"},
        paper="Zheng et al. 2025, equations 5 and 7",
    ),
    "cispo": PolicyLoss(
        settings=CLIP,
        paper="MiniMax 2025 (MiniMax-M1), section 3.1",
    ),
    "sapo": PolicyLoss(
        aggregations=("sequence",),
        settings=frozenset({"sapo_temperature_pos", "sapo_temperature_neg"}),
        paper="Gao et al. 2025, arXiv 2511.20347",
    ),
    "gmpo": PolicyLoss(
        correction=EngineCorrection.SEQUENCE_WEIGHTS,
        aggregations=("sequence",),
        settings=CLIP,
        paper="Zhao et al. 2025, arXiv 2507.20673",
    ),
}
"""Values of --policy_loss_type, beside FILE.py:NAME; `FORMULAS` computes each."""

FORMULA_SETTINGS = frozenset().union(*(loss.settings for loss in POLICY_LOSSES.values()))
"""Flags that formulas read. One that a loss does not name has no effect with it."""

OWN_LOSS = PolicyLoss(settings=FORMULA_SETTINGS, paper="the user's file")
"""FILE.py:NAME; a run loads its formula from that file (`PolicyObjective.own`)."""
