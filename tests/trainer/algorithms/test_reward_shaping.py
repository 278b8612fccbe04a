"""Length penalties, running normalisation, the adaptive weight of the KL, dynamic sampling."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.types import Prompt, Score
from tests.support.lessons import lesson_of
from tests.support.ragged import sequences_of
from tests.support.tiny_run import Tiny
from trainer.algorithms.reward_shaping import LengthPenalties, RunningMoments
from trainer.config.options.algorithm import KLSettings, ShapingSettings
from trainer.metrics import step_metrics
from trainer.metrics.recorder import Stopwatch
from trainer.rollout import dynamic_sampling
from trainer.types import Completion, Sample, TrainingError

NUMBERS = st.lists(st.floats(-100, 100, width=32), max_size=8)


def penalised(penalties: LengthPenalties, *samples: tuple[float, int, bool]) -> list[float]:
    rewards, lengths, finished = (np.array(column) for column in zip(*samples, strict=True))
    return [float(r) for r in penalties.apply(rewards.astype(np.float32), lengths, finished)]


def test_the_last_tokens_of_the_limit_cost_more_and_more() -> None:
    penalties = LengthPenalties(
        20, ShapingSettings(overlong_buffer_len=8, overlong_penalty_factor=2.0)
    )
    got = penalised(penalties, (1.0, 3, True), (1.0, 12, True), (1.0, 14, True), (1.0, 20, False))
    assert got == pytest.approx([1.0, 1.0, 1.0 - 2.0 * 2 / 8, 1.0 - 2.0])


@pytest.mark.parametrize(("coefficient", "expected"), [(0.25, 0.5), (0.0, 0.0), (-0.5, -0.5)])
def test_a_truncated_completion_keeps_a_share_or_gets_a_fixed_reward(
    coefficient: float, expected: float
) -> None:
    penalties = LengthPenalties(9, ShapingSettings(stop_properly_penalty_coef=coefficient))
    assert penalised(penalties, (2.0, 9, True), (2.0, 9, False)) == pytest.approx([2.0, expected])


def test_an_unknown_reward_stays_unknown_whatever_its_length() -> None:
    penalties = LengthPenalties(
        9, ShapingSettings(overlong_buffer_len=3, stop_properly_penalty_coef=-1.0)
    )
    assert np.isnan(penalised(penalties, (float("nan"), 9, False))).all()


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_running_moments_are_those_of_all_rewards_at_once(batches: list[list[float]]) -> None:
    moments = RunningMoments()
    for batch in batches:
        moments = moments.including(np.array([*batch, np.nan]))
    everything = [reward for batch in batches for reward in batch]
    assert moments.count == len(everything)
    if everything:
        assert moments.mean == pytest.approx(statistics.fmean(everything), abs=1e-6)
    if len(everything) > 1:
        variance = moments.squares / (moments.count - 1)
        assert variance == pytest.approx(statistics.variance(everything), abs=1e-6)


def test_normalised_rewards_have_the_runs_mean_and_deviation() -> None:
    rewards = np.array([1.0, 3.0, 8.0], dtype=np.float32)
    normal = RunningMoments().including(rewards).normalise(rewards)
    assert normal.mean() == pytest.approx(0, abs=1e-6)
    assert normal.std(ddof=1) == pytest.approx(1)


def test_equal_rewards_normalise_to_zero() -> None:
    rewards = np.full(3, 7.0, dtype=np.float32)
    assert not RunningMoments().including(rewards).normalise(rewards).any()


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(6.0, 0.1), (6.6, 0.1 * (1 + 0.1 * 0.5)), (60.0, 0.1 * 1.1), (0.0, 0.1 * 0.9)],
)
def test_the_kls_weight_rises_above_the_target_and_falls_below(kl: float, expected: float) -> None:
    got = KLSettings(target=6.0, horizon=512).next_coefficient(0.1, kl, 256)
    assert got == pytest.approx(expected)


def test_without_a_target_the_kls_weight_stays() -> None:
    assert KLSettings(horizon=1).next_coefficient(0.1, 99.0, 256) == 0.1


@pytest.mark.parametrize(("in_loss", "expected"), [(False, 0.255), (True, 0.02)])
def test_a_step_s_kl_is_a_mean_of_sequences_in_the_reward_and_of_tokens_in_the_loss(
    tiny: Tiny, tmp_path: Path, in_loss: bool, expected: float
) -> None:
    """As OpenRLHF's: with a target of 0.1, one is above it and the other below."""
    action_mask = np.arange(51) < np.array([[50], [1], [0]])
    reference = np.where(action_mask, [[-0.01], [-0.5], [0.0]], 0).astype(np.float32)
    sequences = sequences_of(np.ones(action_mask.shape), [51] * 3, action_mask)
    config = tiny.config(tmp_path, **({"use_kl_loss": True} if in_loss else {}))
    policy = np.zeros(51, dtype=np.float32)
    outputs = {"policy": policy, "reference": reference[action_mask], "critic": policy}
    lesson = lesson_of(sequences, outputs, config)
    step = step_metrics.of(group(0, Score.of(1.0)), lesson, {}, Stopwatch(), config)
    assert step.kl == step.row["train/kl"] == pytest.approx(expected, abs=5e-4)


def test_a_score_s_metrics_replace_none_of_the_step_s(tiny: Tiny, tmp_path: Path) -> None:
    logged = {"reward": 7.0, "policy_loss": 7.0, "kl": 7.0, "words": 7.0, "eval/accuracy": 7.0}
    samples, config = group(0, Score.of(1.0, **logged)), tiny.config(tmp_path)
    sequences = sequences_of(np.ones((1, 1)), [1], np.ones((1, 1), dtype=np.bool_))
    zeros = np.zeros(1, dtype=np.float32)
    lesson = lesson_of(sequences, dict.fromkeys(("policy", "reference", "critic"), zeros), config)
    step = step_metrics.of(samples, lesson, {"policy_loss": 0.5}, Stopwatch(), config)
    assert (step.reward, step.kl) == (1.0, 0.0)
    own = {"reward": 1.0, "policy_loss": 0.5, "kl": 0.0, "words": 7.0}
    assert {name: step.row[f"train/{name}"] for name in own} == own
    assert {step.row[f"train/score_{name}"] for name in ("reward", "policy_loss", "kl")} == {7.0}
    assert step.row["train/eval/accuracy"] == 7.0
    assert "eval/accuracy" not in step.row


@given(st.integers(1, 100), st.integers(1, 500))
def test_the_kls_weight_falls_to_nothing_where_that_is_foretold_and_nowhere_else(
    horizon: int, samples: int
) -> None:
    settings = KLSettings(target=6.0, horizon=horizon)
    lowest = settings.next_coefficient(0.1, 0.0, samples)
    assert (lowest > 0) == settings.stays_positive(samples)


def test_a_kl_that_is_no_number_makes_no_weight() -> None:
    got = KLSettings(target=6.0, horizon=512).next_coefficient(0.1, float("nan"), 256)
    assert math.isnan(got)


def group(index: int, *scores: Score) -> list[Sample]:
    completion = Completion(
        text="",
        tokens=np.zeros(1, dtype=np.int64),
        action_mask=np.ones(1, dtype=np.bool_),
        log_probs=np.zeros(1, dtype=np.float32),
        finished=True,
        versions=np.zeros(1, dtype=np.int64),
    )
    return [Sample(Prompt(index, ""), completion, score) for score in scores]


RIGHT, WRONG, FAILED = Score.of(1.0), Score.of(0.0), Score.failed("no answer")
SIGNAL, EASY, HARD = (RIGHT, WRONG), (RIGHT, RIGHT), (WRONG, WRONG)


def test_prompts_without_signal_are_replaced_until_the_batch_is_full() -> None:
    prompts = iter([SIGNAL, EASY, HARD, (FAILED, FAILED), SIGNAL, SIGNAL])
    asked: list[int] = []

    def draw(count: int) -> list[Sample]:
        asked.append(count)
        start = sum(asked[:-1])
        return [s for i in range(count) for s in group(start + i, *next(prompts))]

    found = dynamic_sampling.collect(draw, 3, 2, (0.0, 1.0))
    assert [sample.prompt.index for sample in found.samples] == [0, 0, 4, 4, 5, 5]
    assert asked == [3, 2, 1]
    assert found.pass_rate == 3 / 6


def test_the_last_prompts_of_a_step_may_take_many_small_draws() -> None:
    numbers, asked = itertools.count(1), list[int]()

    def draw(count: int) -> list[Sample]:
        asked.append(count)
        drawn = [next(numbers) for _ in range(count)]
        return [s for n in drawn for s in group(n, *(EASY if n % 4 else SIGNAL))]

    found = dynamic_sampling.collect(draw, 16, 2, (0.0, 1.0))
    assert found.pass_rate == 16 / 64
    assert asked[-4:] == [1] * 4


def test_where_no_prompt_can_be_scored_the_error_says_why() -> None:
    with pytest.raises(TrainingError, match="none of 40 completions could be scored: no answer"):
        dynamic_sampling.collect(lambda n: group(0, FAILED, FAILED) * n, 2, 2, (0.0, 1.0))


def test_the_known_scores_decide_whether_a_prompt_has_a_signal() -> None:
    samples = group(0, RIGHT, FAILED, WRONG) + group(1, RIGHT, FAILED, RIGHT)
    kept = dynamic_sampling.with_signal(samples, 3, (0.0, 1.0))
    assert [members[0].prompt.index for members in kept] == [0]


def test_a_single_known_score_is_no_signal() -> None:
    half = Score.of(0.5)
    assert dynamic_sampling.with_signal(group(0, half, FAILED), 2, (0.0, 1.0)) == []
    assert len(dynamic_sampling.with_signal(group(0, half, half, FAILED), 3, (0.0, 1.0))) == 1


def test_prompts_that_never_bring_a_signal_end_in_an_error_that_says_so() -> None:
    with pytest.raises(TrainingError, match=r"of 20 prompts only 0 .* needs 2"):
        dynamic_sampling.collect(lambda n: group(0, *EASY) * n, 2, 2, (0.0, 1.0))
