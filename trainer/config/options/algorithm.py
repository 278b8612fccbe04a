"""Settings of the algorithms: advantages, losses, KL, reward shaping, filtering, correction.

`trainer.algorithms` and the workers take them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.estimators import ESTIMATORS
from trainer.config.policy_losses import POLICY_LOSSES, PolicyLoss
from trainer.config.schema import ADVANTAGE, CORRECTION, FILTERING, KL, LOSS, SHAPING, flag

LARGEST_ERROR = 0.2
"""Bound on the relative error of the KL: KL / target − 1 is clipped to ±LARGEST_ERROR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """How advantages are estimated."""

    estimator: str = flag(
        "gae",
        name="advantage_estimator",
        group=ADVANTAGE,
        dotted="algo.advantage.estimator",
        choices=tuple(ESTIMATORS),
        help="gae: PPO with a critic; reinforce: REINFORCE++; group_norm: GRPO",
    )
    gamma: float = flag(
        1.0, group=ADVANTAGE, dotted="algo.advantage.gamma", at_least=0, at_most=1, help="discount"
    )
    lambd: float = flag(
        1.0,
        group=ADVANTAGE,
        dotted="algo.advantage.lambd",
        at_least=0,
        at_most=1,
        help="GAE's lambda",
    )
    no_std_norm: bool = flag(
        False,
        name="no_advantage_std_norm",
        group=ADVANTAGE,
        dotted="algo.advantage.no_std_norm",
        help="subtract the mean of advantages, but do not divide by their deviation",
    )
    reward_clip_range: tuple[float, float] = flag(
        (-10.0, 10.0),
        group=SHAPING,
        endless=True,
        dotted="reward.clip_range",
        help="rewards are clipped to this range",
    )

    @property
    def whitens(self) -> bool:
        """Whether advantages are whitened over the action tokens of the whole batch."""
        return ESTIMATORS[self.estimator].whitens


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The losses of policy and critic."""

    policy_loss_type: str = flag(
        "ppo",
        group=LOSS,
        dotted="actor.policy_loss_type",
        choices=tuple(POLICY_LOSSES),
        help="formula of the policy's loss; see docs/algorithms.md",
    )
    eps_clip: float = flag(
        0.2, group=LOSS, dotted="actor.eps_clip", above=0, help="clip range of the policy's ratio"
    )
    eps_clip_low_high: tuple[float, float] | None = flag(
        None,
        group=LOSS,
        dotted="actor.eps_clip_low_high",
        above=0,
        help="clip range below and above 1; default: --eps_clip for both",
    )
    dual_clip: float | None = flag(
        None,
        group=LOSS,
        dotted="actor.dual_clip",
        above=1,
        help="bound on the loss of negative advantages, commonly 3",
    )
    sapo_temperature_pos: float = flag(
        1.0,
        group=LOSS,
        above=0,
        help="SAPO's temperature for positive advantages; more is a narrower gate",
    )
    sapo_temperature_neg: float = flag(
        1.05,
        group=LOSS,
        above=0,
        help="SAPO's temperature for other advantages",
    )
    value_clip: float = flag(
        0.5, group=LOSS, dotted="critic.value_clip", above=0, help="clip range of the value"
    )
    loss_aggregation: str = flag(
        "token",
        group=LOSS,
        dotted="actor.loss_agg_mode",
        aliases=("loss_agg_mode",),
        choices=("token", "sequence", "constant"),
        synonyms={"token-mean": "token", "seq-mean-token-mean": "sequence"},
        help="mean over tokens, mean of sequences' means, or sum over tokens divided by a constant",
    )
    entropy_loss_coef: float | None = flag(
        None,
        group=LOSS,
        dotted="actor.entropy_coef",
        at_least=0,
        help="weight of the entropy bonus; 0: log the metric only",
    )
    aux_loss_coef: float = flag(
        0.0,
        group=LOSS,
        dotted="actor.aux_loss_coef",
        at_least=0,
        help="weight of the loss that keeps the experts of a mixture equally busy",
    )

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the policy's ratio may be below 1, and above 1."""
        return self.eps_clip_low_high or (self.eps_clip, self.eps_clip)

    @property
    def policy_aggregation(self) -> str:
        """How tokens' losses become one: --loss_aggregation if the policy's loss allows it."""
        allowed = self.policy_loss.aggregations
        return self.loss_aggregation if self.loss_aggregation in allowed else allowed[0]

    @property
    def policy_loss(self) -> PolicyLoss:
        return POLICY_LOSSES[self.policy_loss_type]


@dataclass(frozen=True, slots=True, kw_only=True)
class KLSettings:
    """The KL of the policy to the reference: its weight, its estimator, reward or loss."""

    init_coef: float = flag(
        0.01,
        name="init_kl_coef",
        group=KL,
        dotted="init_coef",
        at_least=0,
        help="weight of the KL to the reference; 0: no reference",
    )
    target: float | None = flag(
        None, group=KL, dotted="target", above=0, help="adapt the weight to reach this KL"
    )
    horizon: int = flag(
        10_000,
        group=KL,
        dotted="horizon",
        unit="samples",
        at_least=1,
        help="samples over which the weight adapts; more is slower",
    )
    estimator: str = flag(
        "k1",
        group=KL,
        dotted="estimator",
        choices=("k1", "k2", "k3"),
        help="see docs/algorithms.md",
    )
    use_loss: bool = flag(
        False,
        name="use_kl_loss",
        group=KL,
        dotted="use_loss",
        help="put the KL in the loss, not in the reward",
    )
    unbiased_gradient: bool = flag(
        False,
        group=KL,
        dotted="unbiased_gradient",
        help="use the gradient of the reverse KL itself with every estimator",
    )

    @property
    def has_reference(self) -> bool:
        return self.init_coef > 0

    @property
    def adapts(self) -> bool:
        """Whether the weight of the KL changes from step to step."""
        return self.has_reference and self.target is not None

    def next_coefficient(self, coefficient: float, kl: float, samples: int) -> float:
        """Return the weight of the KL in the next step, if this step's KL was `kl` nats.

        β ← β (1 + clip(kl / target − 1, ±0.2) · samples / horizon): Ziegler et al. 2019, section
        2.2. Without a target the weight is constant.
        """
        if self.target is None:
            return coefficient
        error = max(min(kl / self.target - 1, LARGEST_ERROR), -LARGEST_ERROR)
        return coefficient * (1 + error * samples / self.horizon)

    def stays_positive(self, samples: int) -> bool:
        """Return whether no step of `samples` samples can bring the weight to 0 or below.

        A negative weight would reward the KL. A step should change the weight a little: in the
        paper by at most a 50th.
        """
        return LARGEST_ERROR * samples < self.horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapingSettings:
    """Changes to rewards before advantages; None: no such penalty."""

    normalize_reward: bool = flag(
        False,
        group=SHAPING,
        dotted="reward.normalize_enable",
        help="normalise rewards by their running mean and deviation",
    )
    overlong_buffer_len: float | None = flag(
        None,
        group=SHAPING,
        dotted="reward.overlong_buffer_len",
        unit="tokens",
        above=0,
        help="tokens before the length limit that cost reward (DAPO)",
    )
    overlong_penalty_factor: float = flag(
        1.0,
        group=SHAPING,
        dotted="reward.overlong_penalty_factor",
        at_least=0,
        help="largest penalty of those tokens",
    )
    stop_properly_penalty_coef: float | None = flag(
        None,
        group=SHAPING,
        dotted="reward.stop_properly_penalty_coef",
        at_most=1,
        help="factor of a truncated completion's reward; below 0: its new reward",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteringSettings:
    """Dynamic filtering of prompts."""

    enabled: bool = flag(
        False,
        name="dynamic_filtering",
        group=FILTERING,
        dotted="enable",
        help="replace prompts whose samples carry no signal (DAPO)",
    )
    reward_range: tuple[float, float] = flag(
        (0.0, 1.0),
        group=FILTERING,
        endless=True,
        dotted="range",
        help="a prompt's mean score must lie inside",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How the difference between rollout engine and trainer is corrected."""

    level: str = flag(
        "off",
        group=CORRECTION,
        dotted="level",
        choices=("off", "token", "seq"),
        help="compare trainer and engine not at all, by token, or by sequence",
    )
    mode: str = flag(
        "mask",
        group=CORRECTION,
        dotted="mode",
        choices=("mask", "clip"),
        help="outside the bounds: drop it (mask), or clamp its weight (clip)",
    )
    gating: str = flag(
        "ratio",
        group=CORRECTION,
        dotted="gating",
        choices=("ratio", "binary_kl", "tv"),
        help="statistic that the bounds apply to",
    )
    threshold: tuple[float, ...] = flag(
        (0.5, 5.0),
        group=CORRECTION,
        endless=True,
        dotted="threshold",
        at_least=0,
        help="bounds: LOW HIGH, or HIGH alone",
    )
