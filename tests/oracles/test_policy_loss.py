"""The policy's loss, its gradient and its metrics against OpenRLHF's PolicyLoss and TRL's GRPO."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.oracles import ours
from tests.oracles.agreement import TOLERANCE, given, same
from tests.oracles.batches import Batch, batches, wide_batches
from tests.oracles.policy_loss_calls import HIGH, LOW, objective, of_openrlhf, of_trl, spread
from tests.oracles.process import Peers
from trainer.config.options.algorithm import CorrectionSettings, KLSettings

ANY = batches() | wide_batches()
BOUNDS = st.sampled_from([(0.5, 5.0), (0.9, 1.1), (0.0, 1.0), (1.0, 1.0)])


def agree(outcome: ours.Outcome, theirs: dict[str, Any], *, metrics: bool = True) -> None:
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])
    for name, value in theirs["metrics"].items() if metrics else ():
        same(outcome.metrics[name], value)


@given(wide_batches(), st.sampled_from([1.5, 3.0, 10.0]), BOUNDS)
def test_every_bound_binds_in_a_wide_batch(
    batch: Batch, dual_clip: float, bounds: tuple[float, float]
) -> None:
    """Else a loss without it would agree with the peers', too."""

    def clamped(low: float, high: float) -> float:
        correction = CorrectionSettings(level="token", mode="clip", threshold=(low, high))
        return ours.policy_loss(batch, objective(correction=correction)).value

    def apart(one: float, other: float) -> bool:
        return abs(one - other) > 10 * TOLERANCE * max(1, abs(other))

    bounded = ours.policy_loss(batch, objective(dual_clip=dual_clip)).value
    assert apart(ours.policy_loss(batch, objective()).value, bounded)
    assert apart(clamped(bounds[0], np.inf), clamped(*bounds))
    assert bounds[0] == 0 or apart(clamped(0, bounds[1]), clamped(*bounds))


@given(ANY)
def test_the_clipped_objective_equals_openrlhf_s(peers: Peers, batch: Batch) -> None:
    agree(ours.policy_loss(batch, objective()), of_openrlhf(peers, batch))


@given(batches())
def test_the_mean_of_sequences_means_equals_openrlhf_s(peers: Peers, batch: Batch) -> None:
    theirs = of_openrlhf(peers, batch, token_level_loss=False)
    agree(ours.policy_loss(batch, objective(), aggregation="sequence"), theirs)


@given(ANY, st.sampled_from([1.5, 3.0, 10.0]))
def test_the_dual_clip_equals_openrlhf_s(peers: Peers, batch: Batch, bound: float) -> None:
    theirs = of_openrlhf(peers, batch, dual_clip=bound)
    agree(ours.policy_loss(batch, objective(dual_clip=bound)), theirs)


@pytest.mark.parametrize("level", ["off", "token", "seq"])
@given(batch=batches(spread=3.0) | wide_batches())
def test_gspo_equals_openrlhf_s(peers: Peers, batch: Batch, level: str) -> None:
    theirs = of_openrlhf(peers, batch, policy_loss_type="gspo", is_correction_level=level)
    gspo = objective(policy_loss_type="gspo", correction=CorrectionSettings(level=level))
    agree(ours.policy_loss(batch, gspo, aggregation="sequence"), theirs, metrics=False)


@pytest.mark.parametrize("level", ["token", "seq"])
@given(batch=ANY, bounds=BOUNDS)
def test_dropping_by_the_ratio_to_the_engine_equals_openrlhf_s(
    peers: Peers, batch: Batch, level: str, bounds: tuple[float, float]
) -> None:
    corrected_equally(peers, batch, CorrectionSettings(level=level, threshold=bounds))


@given(ANY, BOUNDS)
def test_clamping_the_ratio_to_the_engine_equals_openrlhf_s(
    peers: Peers, batch: Batch, bounds: tuple[float, float]
) -> None:
    corrected_equally(
        peers, batch, CorrectionSettings(level="token", mode="clip", threshold=bounds)
    )


@pytest.mark.parametrize("level", ["token", "seq"])
@pytest.mark.parametrize("gating", ["binary_kl", "tv"])
@given(batch=ANY, limit=st.sampled_from([0.01, 0.1, 0.3]))
def test_dropping_by_the_distance_to_the_engine_equals_openrlhf_s(
    peers: Peers, batch: Batch, level: str, gating: str, limit: float
) -> None:
    settings = CorrectionSettings(level=level, gating=gating, threshold=(0.0, limit))
    corrected_equally(peers, batch, settings)


def corrected_equally(peers: Peers, batch: Batch, settings: CorrectionSettings) -> None:
    theirs = of_openrlhf(
        peers,
        batch,
        is_correction_level=settings.level,
        is_correction_mode=settings.mode,
        is_correction_gating=settings.gating,
        is_correction_threshold=settings.threshold,
    )
    if settings.level == "seq":
        del theirs["metrics"]["is_filter_ratio"]  # a share of sequences there, of tokens here
    agree(ours.policy_loss(batch, objective(correction=settings)), theirs)


@given(batches(), st.data())
def test_a_step_cut_into_micro_batches_has_openrlhf_s_gradient(
    peers: Peers, batch: Batch, data: st.DataObject
) -> None:
    rows = len(batch.action_mask)
    ends = sorted(data.draw(st.sets(st.integers(1, rows - 1), max_size=3)))
    aggregation = data.draw(st.sampled_from(["token", "sequence"]))
    theirs = peers.openrlhf(
        "gradients_of_a_cut_step",
        log_probs=batch.log_probs,
        arrays={
            "old_log_probs": batch.old,
            "advantages": batch.advantages,
            "action_mask": batch.action_mask,
        },
        settings={
            "clip_eps_low": LOW,
            "clip_eps_high": HIGH,
            "token_level_loss": aggregation == "token",
        },
        cuts=[slice(*cut) for cut in pairwise([0, *ends, rows])],
    )
    same(ours.policy_loss(batch, objective(), aggregation=aggregation).gradient, theirs)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@given(batch=batches(), unbiased=st.booleans())
def test_a_step_with_kl_and_entropy_in_the_loss_equals_openrlhf_s(
    peers: Peers, batch: Batch, estimator: str, unbiased: bool
) -> None:
    theirs = peers.openrlhf(
        "policy_step",
        log_probs=batch.log_probs,
        entropy=batch.entropy,
        arrays={
            "action_log_probs": batch.old,
            "base_action_log_probs": batch.reference,
            "advantages": batch.advantages,
            "action_mask": batch.action_mask,
        },
        settings={
            "policy_loss": {"clip_eps_low": LOW, "clip_eps_high": HIGH},
            "entropy_coef": 0.02,
            "kl_coef": 0.1,
            "kl": {
                "use_loss": True,
                "init_coef": 0.1,
                "estimator": estimator,
                "unbiased_gradient": unbiased,
            },
        },
    )
    settings = objective(
        kl=KLSettings(estimator=estimator, unbiased_gradient=unbiased), entropy_loss_coef=0.02
    )
    outcome = ours.policy_loss(batch, settings, kl_coef=0.1)
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])
    same(outcome.entropy_gradient, theirs["entropy_gradient"])


AGGREGATIONS = [
    ("grpo", "sequence"),
    ("bnpo", "token"),
    ("dapo", "token"),
    ("dr_grpo", "constant"),
]


@pytest.mark.parametrize(("loss_type", "aggregation"), AGGREGATIONS)
@given(batch=batches(spread=3.0) | wide_batches())
def test_the_clipped_objective_equals_trl_s(
    peers: Peers, batch: Batch, loss_type: str, aggregation: str
) -> None:
    outcome = ours.policy_loss(
        batch, objective(), advantages=spread(batch), aggregation=aggregation
    )
    theirs = of_trl(peers, batch, loss_type)
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])
    same(outcome.metrics["ppo_clip_ratio"], theirs["metrics"]["clip_ratio/region_mean"])


@given(batches(spread=3.0) | wide_batches(), st.sampled_from([1.5, 3.0, 10.0]))
def test_the_dual_clip_equals_trl_s_two_sided_clip(
    peers: Peers, batch: Batch, bound: float
) -> None:
    """One bounds the loss of a negative advantage, the other the ratio: the same thing."""
    outcome = ours.policy_loss(batch, objective(dual_clip=bound), advantages=spread(batch))
    theirs = of_trl(peers, batch, "dapo", args={"delta": bound})
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])


@given(batches(spread=3.0) | wide_batches())
def test_gspo_equals_trl_s(peers: Peers, batch: Batch) -> None:
    gspo = objective(policy_loss_type="gspo")
    outcome = ours.policy_loss(batch, gspo, advantages=spread(batch), aggregation="sequence")
    theirs = of_trl(peers, batch, "grpo", importance_sampling_level="sequence")
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])


@pytest.mark.parametrize("mode", ["mask", "clip"])
@given(batch=batches(spread=3.0) | wide_batches(), bounds=BOUNDS)
def test_a_token_s_correction_for_the_engine_equals_trl_s(
    peers: Peers, batch: Batch, mode: str, bounds: tuple[float, float]
) -> None:
    factors = peers.trl(
        "scores",
        algorithm="grpo",
        rewards=batch.rewards,
        action_mask=batch.action_mask,
        log_probs=batch.old,
        rollout_log_probs=batch.rollout,
        options={
            "num_generations": batch.group_size,
            "scale_rewards": "group",
            "use_vllm": True,
            "vllm_importance_sampling_mode": {"mask": "token_mask", "clip": "token_truncate"}[mode],
            "vllm_importance_sampling_clip_min": bounds[0],
            "vllm_importance_sampling_clip_max": bounds[1],
        },
    )["factors"]
    correction = CorrectionSettings(level="token", mode=mode, threshold=bounds)
    outcome = ours.policy_loss(batch, objective(correction=correction), advantages=spread(batch))
    theirs = of_trl(peers, batch, "dapo", factors)
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])


@given(batches(spread=0.3))
def test_kl_and_entropy_in_the_loss_equal_trl_s(peers: Peers, batch: Batch) -> None:
    """TRL's KL has the policy loss's denominator, its entropy the tokens: equal for "dapo"."""
    outcome = ours.policy_loss(
        batch,
        objective(kl=KLSettings(estimator="k3"), entropy_loss_coef=0.02),
        advantages=spread(batch),
        kl_coef=0.1,
    )
    theirs = of_trl(peers, batch, "dapo", beta=0.1, entropy_coef=0.02, _entropy_bonus_enabled=True)
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])
    same(outcome.entropy_gradient, theirs["entropy_gradient"])
