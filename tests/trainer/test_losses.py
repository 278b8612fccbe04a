"""Losses and their gradients against the formulas, written out in Python's floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer import losses
from trainer.divergence import kl

LOW, HIGH = 0.8, 1.2


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def test_the_policy_loss_is_the_clipped_objective() -> None:
    log_probs = tensor([-1.0, -0.5, -2.0], [-0.1, -3.0, -1.0])
    old = [[-1.3, -0.5, -1.6], [-0.6, -2.9, -1.0]]
    gain = [[1.0, -0.7, 0.4], [-1.2, 0.9, 9.0]]
    actions = [[True, True, True], [True, True, False]]
    loss = losses.policy_loss(
        log_probs, torch.tensor(old), torch.tensor(gain), torch.tensor(actions), 0.2, 5
    )
    expected, slopes = 0.0, [[0.0] * 3 for _ in range(2)]
    for i in range(2):
        for j in range(3):
            if not actions[i][j]:
                continue
            ratio = math.exp(log_probs[i, j].item() - old[i][j])
            free, clipped = ratio * gain[i][j], min(max(ratio, LOW), HIGH) * gain[i][j]
            expected -= min(free, clipped) / 5
            # Where the clipped term is the smaller one, it is constant.
            slopes[i][j] = -free / 5 if free <= clipped else 0.0
    assert loss.value.item() == pytest.approx(expected, rel=1e-6)
    loss.value.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.numpy() == pytest.approx(np.array(slopes), rel=1e-6)


def test_one_impossible_token_does_not_overflow_the_policy_loss() -> None:
    log_probs = tensor([500.0])
    loss = losses.policy_loss(
        log_probs, torch.zeros(1, 1), -torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), 0.2, 1
    )
    assert loss.value.item() == pytest.approx(math.exp(losses.RATIO_LIMIT))


def test_the_value_loss_takes_the_worse_of_clipped_and_free() -> None:
    values, old, returns = [1.0, 2.0, -1.0], [0.0, 1.9, 0.5], [2.0, 2.5, 0.0]
    predicted = tensor(values)
    actions = torch.tensor([[True, True, True]])
    loss = losses.value_loss(
        predicted, torch.tensor([old]), torch.tensor([returns]), actions, 0.5, 3
    )
    expected = 0.0
    for value, before, target in zip(values, old, returns, strict=True):
        clipped = min(max(value, before - 0.5), before + 0.5)
        expected += 0.5 * max((clipped - target) ** 2, (value - target) ** 2) / 3
    assert loss.value.item() == pytest.approx(expected)
    loss.value.backward()
    assert predicted.grad is not None
    # First and third: the clipped term is the worse one and constant, or the free one has slope.
    assert predicted.grad.numpy()[0] == pytest.approx([0.0, (2.0 - 2.5) / 3, (-1.0 - 0.0) / 3])


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        ("k1", lambda d: d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(-d) - 1 + d),
    ],
)
def test_kl_estimators_are_schulmans_in_numpy_and_torch(estimator: str, formula: object) -> None:
    differences = [-3.0, -0.1, 0.0, 0.4, 2.0]
    expected = [max(-10.0, min(10.0, formula(d))) for d in differences]  # type: ignore[operator]
    array = np.array(differences)
    assert kl(array, np.zeros(5), estimator) == pytest.approx(expected)
    assert kl(torch.tensor(array), torch.zeros(5), estimator).numpy() == pytest.approx(expected)


def test_the_kl_loss_pulls_towards_the_reference() -> None:
    log_probs = tensor([-1.0, -2.0])
    actions = torch.tensor([[True, True]])
    losses.kl_loss(log_probs, torch.tensor([[-1.4, -1.7]]), actions, "k2", 2).value.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.numpy()[0] == pytest.approx([0.4 / 2, -0.3 / 2], rel=1e-5)


def test_micro_batches_add_up_to_the_whole_whatever_their_lengths() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 6)
    log_probs = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    old, gain = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    actions = torch.arange(6) < torch.tensor([[6], [1], [3], [2]])
    tokens = float(actions.sum())
    whole = losses.policy_loss(log_probs, old, gain, actions, 0.2, tokens)
    whole.value.backward()
    assert log_probs.grad is not None
    expected = log_probs.grad.clone()
    log_probs.grad = None
    for rows in ([0], [1, 2, 3]):
        part = losses.policy_loss(
            log_probs[rows], old[rows], gain[rows], actions[rows], 0.2, tokens
        )
        part.value.backward()
    assert torch.allclose(log_probs.grad, expected)
