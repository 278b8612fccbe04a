"""The moving average of the weights against OpenRLHF's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from tests.oracles.agreement import given, same
from tests.oracles.process import Peers
from trainer.models.ema import MovingAverage


@given(st.integers(2, 8), st.sampled_from([0.0, 0.5, 0.992, 1.0]), st.integers(0, 2**32 - 1))
def test_the_moving_average_equals_openrlhf_s(
    peers: Peers, count: int, beta: float, seed: int
) -> None:
    updates = list(np.random.default_rng(seed).normal(size=(count, 2, 3)))
    model = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)

    def learn(update: np.ndarray) -> None:
        model.weight.data.copy_(torch.tensor(update))

    learn(updates[0])
    average = MovingAverage(model, beta)
    for update, theirs in zip(
        updates[1:], peers.openrlhf("moving_averages", updates=updates, beta=beta), strict=True
    ):
        learn(update)
        average.update(model.parameters())
        same(average.tensors["weight"].numpy(), theirs)
