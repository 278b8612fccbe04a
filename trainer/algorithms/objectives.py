"""Which losses policy and critic are trained with. Torch-free: the driver makes these settings."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How the difference between engine and trainer is corrected."""

    level: str = "off"
    """off, token or seq"""
    mode: str = "mask"
    """mask or clip"""
    gating: str = "ratio"
    """ratio, binary_kl or tv"""
    threshold: tuple[float, float] = (0.5, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """Which loss the policy is trained with."""

    clip_range: tuple[float, float] = (0.2, 0.2)
    """How far the ratio may be below 1, and above 1."""
    loss_type: str = "ppo"
    """ppo or gspo"""
    dual_clip: float | None = None
    kl_estimator: str = "k1"
    kl_unbiased_gradient: bool = False
    """Use the gradient of the KL itself instead of the estimator's."""
    entropy_coef: float | None = None
    """Weight of the entropy. 0: log its metric only. None: do not compute it."""
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticObjective:
    """Which loss the critic is trained with."""

    value_clip: float
    value_head_prefix: str = "score"
    """Name of the value head in a model's files."""
