"""Flags: what is learned from the samples: advantages, losses, KL, rewards, correction."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import ADVANTAGE, CORRECTION, FILTERING, KL, LOSS, SHAPING, flag


@dataclass(frozen=True, kw_only=True)
class AdvantageFlags:
    advantage_estimator: str = flag(
        "gae",
        group=ADVANTAGE,
        dotted="algo.advantage.estimator",
        choices=(
            "gae",
            "reinforce",
            "reinforce_baseline",
            "rloo",
            "group_norm",
            "dr_grpo",
            "flash_reinforce",
        ),
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
    no_advantage_std_norm: bool = flag(
        False,
        group=ADVANTAGE,
        dotted="algo.advantage.no_std_norm",
        help="centre advantages without dividing by their deviation",
    )


@dataclass(frozen=True, kw_only=True)
class LossFlags:
    policy_loss_type: str = flag(
        "ppo",
        group=LOSS,
        dotted="actor.policy_loss_type",
        choices=("ppo", "gspo"),
        help="ppo: a ratio for each token; gspo: one for each sequence",
    )
    eps_clip: float = flag(
        0.2, group=LOSS, dotted="actor.eps_clip", above=0, help="clip range of the policy's ratio"
    )
    eps_clip_low_high: tuple[float, float] | None = flag(
        None,
        group=LOSS,
        dotted="actor.eps_clip_low_high",
        above=0,
        help="clip range below and above 1; --eps_clip for both where absent",
    )
    dual_clip: float | None = flag(
        None,
        group=LOSS,
        dotted="actor.dual_clip",
        above=1,
        help="bound on the loss of negative advantages, commonly 3",
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
        help="mean over tokens, mean of sequences' means, or sum over tokens by a constant",
    )
    entropy_loss_coef: float | None = flag(
        None,
        group=LOSS,
        dotted="actor.entropy_coef",
        at_least=0,
        help="weight of the entropy bonus; 0: only its metric",
    )
    aux_loss_coef: float = flag(
        0.0,
        group=LOSS,
        dotted="actor.aux_loss_coef",
        at_least=0,
        help="weight of a mixture of experts' balancing loss",
        unsupported="The balancing loss is absent; only 0 is right",
    )


@dataclass(frozen=True, kw_only=True)
class KLFlags:
    init_kl_coef: float = flag(
        0.01,
        group=KL,
        dotted="algo.kl.init_coef",
        at_least=0,
        help="weight of the KL to the reference; 0: no reference",
    )
    kl_target: float | None = flag(
        None, group=KL, dotted="algo.kl.target", above=0, help="adapt the weight to reach this KL"
    )
    kl_horizon: int = flag(
        10_000,
        group=KL,
        dotted="algo.kl.horizon",
        unit="samples",
        at_least=1,
        help="how slowly the weight adapts",
    )
    kl_estimator: str = flag(
        "k1", group=KL, dotted="algo.kl.estimator", choices=("k1", "k2", "k3"), help="see docs"
    )
    use_kl_loss: bool = flag(
        False, group=KL, dotted="algo.kl.use_loss", help="KL in the loss, not in the reward"
    )
    kl_unbiased_gradient: bool = flag(
        False,
        group=KL,
        dotted="algo.kl.unbiased_gradient",
        help="the true reverse KL's gradient, whatever the estimator",
    )


@dataclass(frozen=True, kw_only=True)
class ShapingFlags:
    reward_clip_range: tuple[float, float] = flag(
        (-10.0, 10.0),
        group=SHAPING,
        endless=True,
        dotted="reward.clip_range",
        help="rewards are clipped to this range",
    )
    normalize_reward: bool = flag(
        False,
        group=SHAPING,
        dotted="reward.normalize_enable",
        help="rewards by their running mean and deviation",
    )
    overlong_buffer_len: float | None = flag(
        None,
        group=SHAPING,
        dotted="reward.overlong_buffer_len",
        unit="tokens",
        above=0,
        help="the last so many tokens of a completion cost reward (DAPO)",
    )
    overlong_penalty_factor: float = flag(
        1.0,
        group=SHAPING,
        dotted="reward.overlong_penalty_factor",
        at_least=0,
        help="the most that they cost",
    )
    stop_properly_penalty_coef: float | None = flag(
        None,
        group=SHAPING,
        dotted="reward.stop_properly_penalty_coef",
        at_most=1,
        help="a truncated completion's reward is scaled by this; below 0: replaced by it",
    )


@dataclass(frozen=True, kw_only=True)
class FilteringFlags:
    dynamic_filtering: bool = flag(
        False,
        group=FILTERING,
        dotted="algo.dynamic_filtering_enable",
        help="replace prompts whose samples carry no signal (DAPO)",
    )
    dynamic_filtering_reward_range: tuple[float, float] = flag(
        (0.0, 1.0),
        group=FILTERING,
        endless=True,
        dotted="algo.dynamic_filtering_range",
        help="a prompt's mean score must lie inside",
    )


@dataclass(frozen=True, kw_only=True)
class CorrectionFlags:
    is_correction_level: str = flag(
        "off",
        group=CORRECTION,
        dotted="algo.advantage.is_correction_level",
        choices=("off", "token", "seq"),
        help="what is compared between trainer and engine: nothing, tokens, sequences",
    )
    is_correction_mode: str = flag(
        "mask",
        group=CORRECTION,
        dotted="algo.advantage.is_correction_mode",
        choices=("mask", "clip"),
        help="outside the bounds: dropped, or the weight clamped",
    )
    is_correction_gating: str = flag(
        "ratio",
        group=CORRECTION,
        dotted="algo.advantage.is_correction_gating",
        choices=("ratio", "binary_kl", "tv"),
        help="the statistic that the bounds are on",
    )
    is_correction_threshold: tuple[float, ...] = flag(
        (0.5, 5.0),
        group=CORRECTION,
        endless=True,
        dotted="algo.advantage.is_correction_threshold",
        at_least=0,
        help="LOW HIGH, or HIGH alone",
    )
