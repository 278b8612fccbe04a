"""Settings of the algorithms: advantages, losses, KL, reward shaping, filtering, correction.

`trainer.algorithms` and the workers take them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.estimators import CALLED, ESTIMATORS, OWN, Baseline, Estimator
from trainer.config.policy_losses import OWN_LOSS, POLICY_LOSSES, PolicyLoss
from trainer.config.schema import Group

LARGEST_ERROR = 0.2
"""Bound on the relative error of the KL: KL / target − 1 is clipped to ±LARGEST_ERROR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """How advantages are estimated."""

    estimator: str = Group.ADVANTAGE.flag(
        "gae",
        "gae: PPO with a critic; reinforce: REINFORCE++; group_norm: GRPO; FILE.py:NAME: your own",
        name="advantage_estimator",
        dotted="algo.advantage.estimator",
        choices=tuple(ESTIMATORS),
        or_function=True,
        called=CALLED,
    )
    gamma: float = Group.ADVANTAGE.flag(
        1.0, "discount", dotted="algo.advantage.gamma", at_least=0, at_most=1
    )
    lambd: float = Group.ADVANTAGE.flag(
        1.0, "GAE's lambda", dotted="algo.advantage.lambd", at_least=0, at_most=1
    )
    no_std_norm: bool = Group.ADVANTAGE.flag(
        False,
        "subtract the mean of advantages, but do not divide by their deviation",
        name="no_advantage_std_norm",
        dotted="algo.advantage.no_std_norm",
    )
    reward_clip_range: tuple[float, float] = Group.SHAPING.flag(
        (-10.0, 10.0), "rewards are clipped to this range", endless=True, dotted="reward.clip_range"
    )

    @property
    def whitens(self) -> bool:
        """Whether advantages are whitened over the action tokens of the whole batch."""
        return self.entry.whitens

    @property
    def entry(self) -> Estimator:
        return ESTIMATORS.get(self.estimator, OWN)

    @property
    def wants_greedy(self) -> bool:
        """Whether each prompt has a greedy completion beside its samples, which trains nothing."""
        return self.entry.baseline is Baseline.GREEDY

    @property
    def reads_parts(self) -> bool:
        """Whether it may read each of several rewards by itself."""
        return self.sums_parts or self.entry.baseline is Baseline.OWN

    @property
    def sums_parts(self) -> bool:
        """Whether it treats each of several rewards by itself."""
        return self.entry.baseline is Baseline.EACH_GROUP_NORM


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The losses of policy and critic."""

    policy_loss_type: str = Group.LOSS.flag(
        "ppo",
        "formula of the policy's loss, or FILE.py:NAME of your own; see docs/algorithms.md",
        dotted="actor.policy_loss_type",
        choices=tuple(POLICY_LOSSES),
        or_function=True,
    )
    eps_clip: float = Group.LOSS.flag(
        0.2, "clip range of the policy's ratio", dotted="actor.eps_clip", above=0
    )
    eps_clip_low_high: tuple[float, float] | None = Group.LOSS.flag(
        None,
        "clip range below and above 1; default: --eps_clip for both",
        dotted="actor.eps_clip_low_high",
        above=0,
    )
    dual_clip: float | None = Group.LOSS.flag(
        None,
        "bound on the loss of negative advantages, commonly 3",
        dotted="actor.dual_clip",
        above=1,
    )
    sapo_temperature_pos: float = Group.LOSS.flag(
        1.0, "SAPO's temperature for positive advantages; more is a narrower gate", above=0
    )
    sapo_temperature_neg: float = Group.LOSS.flag(
        1.05, "SAPO's temperature for other advantages", above=0
    )
    value_clip: float = Group.LOSS.flag(
        0.5, "clip range of the value", dotted="critic.value_clip", above=0
    )
    loss_aggregation: str = Group.LOSS.flag(
        "token",
        "mean over tokens, mean of sequences' means, or sum over tokens divided by a constant",
        dotted="actor.loss_agg_mode",
        aliases=("loss_agg_mode",),
        choices=("token", "sequence", "constant"),
        synonyms={"token-mean": "token", "seq-mean-token-mean": "sequence"},
    )
    entropy_loss_coef: float | None = Group.LOSS.flag(
        None,
        "weight of the entropy bonus; 0: log the metric only",
        dotted="actor.entropy_coef",
        at_least=0,
    )
    aux_loss_coef: float = Group.LOSS.flag(
        0.0,
        "weight of the loss that keeps the experts of a mixture equally busy",
        dotted="actor.aux_loss_coef",
        at_least=0,
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
        return POLICY_LOSSES.get(self.policy_loss_type, OWN_LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KLSettings:
    """The KL of the policy to the reference: its weight, its estimator, reward or loss."""

    init_coef: float = Group.KL.flag(
        0.01,
        "weight of the KL to the reference; 0: no reference",
        name="init_kl_coef",
        dotted="init_coef",
        at_least=0,
    )
    target: float | None = Group.KL.flag(
        None, "adapt the weight to reach this KL", dotted="target", above=0
    )
    horizon: int = Group.KL.flag(
        10_000,
        "samples over which the weight adapts; more is slower",
        dotted="horizon",
        unit="samples",
        at_least=1,
    )
    estimator: str = Group.KL.flag(
        "k1", "see docs/algorithms.md", dotted="estimator", choices=("k1", "k2", "k3")
    )
    use_loss: bool = Group.KL.flag(
        False, "put the KL in the loss, not in the reward", name="use_kl_loss", dotted="use_loss"
    )
    unbiased_gradient: bool = Group.KL.flag(
        False,
        "use the gradient of the reverse KL itself with every estimator",
        dotted="unbiased_gradient",
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

    normalize_reward: bool = Group.SHAPING.flag(
        False,
        "normalise rewards by their running mean and deviation",
        dotted="reward.normalize_enable",
    )
    overlong_buffer_len: float | None = Group.SHAPING.flag(
        None,
        "tokens before the length limit that cost reward (DAPO)",
        dotted="reward.overlong_buffer_len",
        unit="tokens",
        above=0,
    )
    overlong_penalty_factor: float = Group.SHAPING.flag(
        1.0, "largest penalty of those tokens", dotted="reward.overlong_penalty_factor", at_least=0
    )
    stop_properly_penalty_coef: float | None = Group.SHAPING.flag(
        None,
        "factor of a truncated completion's reward; below 0: its new reward",
        dotted="reward.stop_properly_penalty_coef",
        at_most=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteringSettings:
    """Dynamic filtering of prompts."""

    enabled: bool = Group.FILTERING.flag(
        False,
        "replace prompts whose samples carry no signal (DAPO)",
        name="dynamic_filtering",
        dotted="enable",
    )
    reward_range: tuple[float, float] = Group.FILTERING.flag(
        (0.0, 1.0), "a prompt's mean score must lie inside", endless=True, dotted="range"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How the difference between rollout engine and trainer is corrected."""

    level: str = Group.CORRECTION.flag(
        "off",
        "compare trainer and engine not at all, by token, or by sequence",
        dotted="level",
        choices=("off", "token", "seq"),
    )
    mode: str = Group.CORRECTION.flag(
        "mask",
        "outside the bounds: drop it (mask), or clamp its weight (clip)",
        dotted="mode",
        choices=("mask", "clip"),
    )
    gating: str = Group.CORRECTION.flag(
        "ratio",
        "statistic that the bounds apply to",
        dotted="gating",
        choices=("ratio", "binary_kl", "tv"),
    )
    threshold: tuple[float, ...] = Group.CORRECTION.flag(
        (0.5, 5.0), "bounds: LOW HIGH, or only HIGH", endless=True, dotted="threshold", at_least=0
    )
