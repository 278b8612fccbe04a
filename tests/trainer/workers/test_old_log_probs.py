"""Old log-probabilities are computed where the step needs them, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.learners import experience, largest_difference, policy, weights_of
from tests.support.tiny_run import Tiny


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ({"train_batch_size": 8, "init_kl_coef": 0}, False),
        ({"train_batch_size": 8, "use_kl_loss": True}, False),
        ({"train_batch_size": 8}, True),  # the KL is in the reward
        ({"train_batch_size": 4, "init_kl_coef": 0}, True),
        ({"train_batch_size": 8, "init_kl_coef": 0, "max_epochs": 2}, True),
    ],
)
def test_they_are_needed_by_a_second_update_and_by_a_kl_in_the_reward(
    tiny: Tiny, run_dir: Path, flags: dict[str, object], needed: bool
) -> None:
    assert tiny.config(run_dir, **flags).needs_old_log_probs is needed


def test_the_first_update_finds_out_what_a_pass_before_would_have_said(tiny: Tiny) -> None:
    known = experience()
    before = policy(tiny).log_probs(known.sequences)
    results = []
    for old in (before, None):
        actor = policy(tiny)
        metrics = actor.update(replace(known, old_log_probs=old), step=1)
        assert metrics["ratio"] == pytest.approx(1, abs=1e-5)
        results.append({name: array.copy() for name, array in weights_of(actor).items()})
    assert np.any(before)
    assert largest_difference(*results) < 1e-4
