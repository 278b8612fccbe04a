"""The learning rate over a run against OpenRLHF's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from tests.oracles.agreement import given, same
from tests.oracles.process import Peers
from trainer.config.options.optimizer import OptimizerSettings
from trainer.workers.optimizer import Optimizer


@pytest.mark.parametrize("name", ["constant_with_warmup", "linear", "cosine_with_min_lr"])
@given(updates=st.integers(1, 60), warm_up=st.sampled_from([0.0, 0.03, 0.07, 0.5]))
def test_the_learning_rate_of_each_update_equals_openrlhf_s(
    peers: Peers, name: str, updates: int, warm_up: float
) -> None:
    settings = {"lr_scheduler": name, "lr_warmup_ratio": warm_up, "min_lr_ratio": 0.1}
    theirs = peers.openrlhf("learning_rates", updates=updates, settings=settings)
    same(rates(name, updates, warm_up), theirs)


def test_a_short_run_warms_up_for_one_update() -> None:
    """33 updates at a share of 0.03 are 0.99 of one."""
    assert rates("constant_with_warmup", 33, 0.03)[:2] == [0.0, 1.0]


def rates(name: str, updates: int, warm_up: float) -> list[float]:
    model = torch.nn.Linear(1, 1)
    settings = OptimizerSettings(
        learning_rate=1.0,
        lr_scheduler=name,
        lr_warmup_ratio=warm_up,
        l2=0.0,
        max_norm=1.0,
    )
    optimizer, found = Optimizer(model, settings, updates), []
    for _ in range(updates):
        found.append(optimizer.learning_rate)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    return found
