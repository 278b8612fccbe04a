"""Old log-probabilities are computed where the step needs them, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from env.types import Prompt, Score
from tests.support.learners import experience, largest_difference, policy, weights_of
from tests.support.lessons import lesson_of
from tests.support.ragged import learn, part_of
from tests.support.tiny_run import Tiny
from trainer.algorithms.kl import kl
from trainer.metrics import step_metrics
from trainer.metrics.recorder import Stopwatch
from trainer.types import Completion, Sample


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
    (before,) = policy(tiny).log_probs(part_of(known.sequences))
    results = []
    for old in (before, None):
        actor = policy(tiny)
        metrics = learn(actor, replace(known, old_log_probs=old), 1)
        assert metrics["ratio"] == pytest.approx(1, abs=1e-5)
        results.append({name: array.copy() for name, array in weights_of(actor).items()})
    assert np.any(before)
    assert largest_difference(*results) < 1e-4


def test_the_kl_of_a_step_is_that_of_the_policy_which_the_update_begins_with(
    tiny: Tiny, tmp_path: Path
) -> None:
    """Whatever policy has written the completions: rollouts that run ahead are of older ones."""
    known = experience()
    stale = replace(known.sequences, rollout_log_probs=np.full_like(known.advantages, -9))
    known = replace(known, sequences=stale, old_log_probs=None)
    updates = learn(policy(tiny), known, 1)
    config = tiny.config(tmp_path, use_kl_loss=True, kl_estimator="k3", train_batch_size=4)
    reference, values = known.ref_log_probs, known.values
    assert reference is not None
    assert values is not None
    lesson = lesson_of(stale, {"reference": reference, "critic": values}, config)
    one = np.zeros(1, np.int32)
    written = Completion(
        text="",
        tokens=one,
        action_mask=one > -1,
        log_probs=one.astype(np.float32),
        finished=True,
        versions=one,
    )
    samples = [Sample(Prompt(0, ""), written, Score.of(1.0))] * 4
    step = step_metrics.of(samples, lesson, updates, Stopwatch(), config)
    (before,) = policy(tiny).log_probs(part_of(stale))
    expected = float(kl(before, reference, "k3").mean())
    assert step.kl == step.row["train/kl"] == pytest.approx(expected, rel=1e-4)
