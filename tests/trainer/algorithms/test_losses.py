"""Losses and their gradients against the formulas, written out in Python's floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.objectives import policy_objective
from trainer.algorithms import losses
from trainer.algorithms.importance_sampling import correct
from trainer.algorithms.kl import kl
from trainer.algorithms.losses import PolicyInputs, ValueInputs, token_weights
from trainer.algorithms.objectives import PolicyObjective
from trainer.config.options.algorithm import CorrectionSettings, KLSettings
from trainer.config.policy_losses import POLICY_LOSSES

LOW, HIGH = 0.8, 1.2


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def inputs(log_probs: Tensor, old: list[float], gain: list[float], **more: Any) -> PolicyInputs:
    """Tokens of one sequence, in a token mean over them, unless `more` says otherwise."""
    count = len(log_probs)
    given = {
        "weights": torch.full((count,), 1 / count, dtype=torch.float64),
        "rows": torch.zeros(count, dtype=torch.int64),
        "metric_weight": 1 / count,
        **more,
    }
    return PolicyInputs(
        log_probs=log_probs, old_log_probs=fixed(old), advantages=fixed(gain), **given
    )


def fixed(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def gradient(of: Tensor) -> list[float]:
    assert of.grad is not None
    return [float(slope) for slope in of.grad]


def test_the_policy_loss_is_the_clipped_objective() -> None:
    log_probs = tensor(-1.0, -0.5, -2.0, -0.1, -3.0)
    old, gain = [-1.3, -0.5, -1.6, -0.6, -2.9], [1.0, -0.7, 0.4, -1.2, 0.9]
    loss = losses.policy_loss(inputs(log_probs, old, gain), PolicyObjective())
    expected, slopes = 0.0, []
    for now, before, worth in zip(log_probs.tolist(), old, gain, strict=True):
        ratio = math.exp(now - before)
        free, clipped = ratio * worth, min(max(ratio, LOW), HIGH) * worth
        expected -= min(free, clipped) / 5
        # Where the clipped term is the smaller one, it is constant.
        slopes.append(-free / 5 if free <= clipped else 0.0)
    assert loss.value.item() == pytest.approx(expected, rel=1e-12)
    loss.value.backward()
    assert gradient(log_probs) == pytest.approx(slopes, rel=1e-12)


def test_the_clip_range_can_be_wider_above_than_below() -> None:
    log_probs = tensor(math.log(1.25), math.log(0.75))
    objective = policy_objective(eps_clip_low_high=(0.2, 0.28))
    loss = losses.policy_loss(inputs(log_probs, [0.0, 0.0], [1.0, -1.0]), objective)
    assert loss.value.item() == pytest.approx(-(1.25 - 0.8) / 2)
    loss.value.backward()
    assert gradient(log_probs) == pytest.approx([-1.25 / 2, 0.0])


def test_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likelier() -> None:
    log_probs = tensor(math.log(10.0), math.log(10.0))
    objective = policy_objective(dual_clip=3.0)
    loss = losses.policy_loss(inputs(log_probs, [0.0, 0.0], [-1.0, 1.0]), objective)
    assert loss.value.item() == pytest.approx((3.0 - 1.2) / 2)
    loss.value.backward()
    assert gradient(log_probs) == [0.0, 0.0]


def test_gspo_clips_one_ratio_for_each_sequence() -> None:
    log_probs = tensor(0.5, -0.1, 0.9)
    old, gain = [0.0, 0.0, 0.8], [1.0, 1.0, -2.0]
    rows = torch.tensor([4, 4, 9])
    weights = fixed([1 / 4, 1 / 4, 1 / 2])  # the mean of sequences' means
    objective = policy_objective(policy_loss_type="gspo", eps_clip_low_high=(0.3, 0.3))
    loss = losses.policy_loss(
        inputs(log_probs, old, gain, rows=rows, weights=weights, metric_weight=1 / 3), objective
    )
    first, second = math.exp((0.5 - 0.1) / 2), math.exp(0.1)
    clipped = min(first, 1.3)
    assert loss.value.item() == pytest.approx(-(clipped * 1.0 + second * -2.0) / 2)
    loss.value.backward()
    assert clipped == first
    assert gradient(log_probs) == pytest.approx([-first / 4, -first / 4, second])


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_no_gradient_depends_on_the_split_of_sequences_into_passes(name: str) -> None:
    rng, lengths = np.random.default_rng(3), np.array([3, 1, 4, 2])
    objective = policy_objective(policy_loss_type=name)
    rows = np.repeat(np.arange(4), lengths)
    old, drift = rng.normal(-2, 1, 10), rng.choice([-1.0, -0.1, 0.05, 0.9], 10)
    gains = np.array([1.3, -0.7, -1.1, 0.4])[rows]
    weights = token_weights(lengths, objective.loss.policy_aggregation, 5)[rows]

    def gradients(*passes: list[int]) -> list[float]:
        found = np.zeros(10)
        for sequences in passes:
            here = np.isin(rows, sequences)
            log_probs = tensor(*(old + drift)[here])
            given = inputs(
                log_probs,
                old[here].tolist(),
                gains[here].tolist(),
                rows=torch.tensor(rows[here]),
                weights=torch.tensor(weights[here]),
            )
            losses.policy_loss(given, objective).value.backward()
            found[here] = gradient(log_probs)
        return found.tolist()

    packed = gradients([0, 1, 2, 3])
    assert packed == pytest.approx(gradients([0], [1, 3], [2]), rel=1e-12)
    assert any(packed)


def test_entropy_is_rewarded_and_reported() -> None:
    entropy = tensor(0.5, 1.5)
    given = inputs(tensor(0.0, 0.0), [0.0, 0.0], [0.0, 0.0], entropy=entropy)
    loss = losses.policy_loss(given, policy_objective(entropy_loss_coef=0.1))
    assert loss.value.item() == pytest.approx(-0.1)
    assert loss.metrics["entropy"] == pytest.approx(1.0)
    loss.value.backward()
    assert gradient(entropy) == pytest.approx([-0.05, -0.05])


def test_an_objective_without_its_input_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="entropy"):
        losses.policy_loss(
            inputs(tensor(0.0), [0.0], [1.0]), policy_objective(entropy_loss_coef=0.0)
        )


def test_one_impossible_token_does_not_overflow_the_policy_loss() -> None:
    loss = losses.policy_loss(inputs(tensor(500.0), [0.0], [-1.0]), PolicyObjective())
    assert loss.value.item() == pytest.approx(math.exp(losses.RATIO_LIMIT))


def test_the_value_loss_takes_the_worse_of_clipped_and_free() -> None:
    values, old, returns = [1.0, 2.0, -1.0], [0.0, 1.9, 0.5], [2.0, 2.5, 0.0]
    predicted, weights = tensor(*values), fixed([1 / 3] * 3)
    inputs = ValueInputs(
        values=predicted,
        old_values=fixed(old),
        returns=fixed(returns),
        weights=weights,
        metric_weight=1 / 3,
    )
    loss = losses.value_loss(inputs, 0.5)
    expected = 0.0
    for value, before, target in zip(values, old, returns, strict=True):
        clipped = min(max(value, before - 0.5), before + 0.5)
        expected += 0.5 * max((clipped - target) ** 2, (value - target) ** 2) / 3
    assert loss.value.item() == pytest.approx(expected)
    loss.value.backward()
    # First and third: the clipped term is the worse one and constant, or the free one has slope.
    assert gradient(predicted) == pytest.approx([0.0, (2.0 - 2.5) / 3, (-1.0 - 0.0) / 3])


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        ("k1", lambda d: d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(-d) - 1 + d),
    ],
)
def test_kl_estimators_are_schulmans_in_numpy_and_torch(
    estimator: str, formula: Callable[[float], float]
) -> None:
    differences = [-30.0, -3.0, -0.1, 0.0, 0.4, 2.0, 10.5, 30.0]
    expected = [max(-10.0, min(10.0, formula(d))) for d in differences]
    array = np.array(differences)
    zero = np.zeros(len(array))
    assert kl(array, zero, estimator) == pytest.approx(expected)
    assert kl(torch.tensor(array), torch.tensor(zero), estimator).numpy() == pytest.approx(expected)


def test_no_kl_estimator_has_a_gradient_that_overflows() -> None:
    for estimator in ("k1", "k2", "k3"):
        log_probs = tensor(-1000.0, -1.0, 1000.0)
        kl(log_probs, fixed([0.0, -1.0, 0.0]), estimator).sum().backward()
        assert all(math.isfinite(slope) for slope in gradient(log_probs))


def test_the_kl_in_the_loss_pulls_towards_the_reference() -> None:
    log_probs = tensor(-1.0, -2.0)
    objective = policy_objective(kl=KLSettings(estimator="k2"))
    given = inputs(
        log_probs, [-1.0, -2.0], [0.0, 0.0], ref_log_probs=fixed([-1.4, -1.7]), kl_coef=0.5
    )
    losses.policy_loss(given, objective).value.backward()
    assert gradient(log_probs) == pytest.approx([0.5 * 0.4 / 2, 0.5 * -0.3 / 2])


@pytest.mark.parametrize("mode", ["token", "sequence", "constant"])
@pytest.mark.parametrize("loss_type", ["ppo", "gspo"])
def test_micro_batches_add_up_to_the_whole_whatever_their_lengths(
    mode: str, loss_type: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    actions = torch.arange(6) < torch.tensor([[6], [1], [3], [2]])
    rows = actions.nonzero()[:, 0]
    counts = actions.sum(dim=1)
    weights = torch.tensor(token_weights(counts.numpy(), mode, 8)).repeat_interleave(counts)
    log_probs, old, gain = torch.randn((3, len(rows)), generator=generator, dtype=torch.float64)
    log_probs.requires_grad_()

    def backward(chosen: Tensor) -> None:
        given = PolicyInputs(
            log_probs=log_probs[chosen],
            old_log_probs=old[chosen],
            advantages=gain[chosen],
            weights=weights[chosen],
            rows=rows[chosen],
            metric_weight=1 / len(rows),
        )
        losses.policy_loss(given, policy_objective(policy_loss_type=loss_type)).value.backward()

    backward(rows >= 0)
    whole = gradient(log_probs)
    log_probs.grad = None
    for part in ([0], [1, 2, 3]):
        backward(torch.isin(rows, torch.tensor(part)))
    assert gradient(log_probs) == pytest.approx(whole, rel=1e-9)


def test_a_token_counts_what_the_aggregation_says() -> None:
    actions = np.array([3, 1, 0])
    assert token_weights(actions, "token", 4)[:2] == pytest.approx([1 / 4] * 2)
    assert token_weights(actions, "sequence", 4)[:2] == pytest.approx([1 / 6, 1 / 2])
    assert token_weights(actions, "constant", 4)[:2] == pytest.approx([1 / 8] * 2)


ENGINE, TRAINER = [-1.0, -2.0, -0.5, -0.5], [-1.2, -0.2, -0.5, -2.5]
SEQUENCES = torch.tensor([0, 0, 1, 1])


def corrected(**settings: Any) -> list[float]:
    correction = correct(fixed(TRAINER), fixed(ENGINE), SEQUENCES, CorrectionSettings(**settings))
    return correction.weights.tolist()


def test_token_masking_drops_tokens_that_engine_and_trainer_see_too_differently() -> None:
    # Ratios e^-0.2, e^1.8, 1, e^-2: the second and the last are out of bounds.
    got = corrected(level="token", threshold=(0.5, 5.0))
    assert got == pytest.approx([math.exp(-0.2), 0.0, 1.0, 0.0])


def test_token_clipping_truncates_the_weight() -> None:
    got = corrected(level="token", mode="clip", threshold=(0.5, 2.0))
    assert got == pytest.approx([math.exp(-0.2), 2.0, 1.0, 0.5])


def test_sequence_masking_drops_whole_sequences_and_keeps_tokens_own_weights() -> None:
    # Geometric means e^0.8 and e^-1.
    got = corrected(level="seq", threshold=(0.5, 5.0))
    assert got == pytest.approx([math.exp(-0.2), math.exp(1.8), 0.0, 0.0])


def test_distances_between_probabilities_have_an_upper_bound() -> None:
    far = abs(math.exp(-0.2) - math.exp(-2.0))
    got = corrected(level="token", gating="tv", threshold=(0.0, far - 1e-6))
    assert got == pytest.approx([math.exp(-0.2), 0.0, 1.0, math.exp(-2.0)])
    assert corrected(level="token", gating="binary_kl", threshold=(0.0, 0.05))[1] == 0.0


def test_the_correction_scales_a_tokens_gradient_and_reports_what_it_dropped() -> None:
    log_probs = tensor(*TRAINER)
    objective = policy_objective(correction=CorrectionSettings(level="token"))
    given = inputs(log_probs, TRAINER, [1.0] * 4, rollout_log_probs=fixed(ENGINE))
    loss = losses.policy_loss(given, objective)
    loss.value.backward()
    assert gradient(log_probs) == pytest.approx([-math.exp(-0.2) / 4, 0.0, -1 / 4, 0.0])
    assert loss.metrics["is_filter_ratio"] == pytest.approx(2 / 4)
