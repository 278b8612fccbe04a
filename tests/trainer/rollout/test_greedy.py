"""ReMax's greedy completions: of the newest weights, scored, a baseline, and never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from env.types import RewardRequest, Score
from tests.support import environments
from tests.support.engines import TEXTS, settings
from tests.support.local_workers import LocalWorkerGroup
from tests.support.saved_states import weights_of
from tests.support.tiny_run import StopAfter, Tiny, metric_rows, share_of, train
from trainer.algorithms.reward_shaping import RunningMoments
from trainer.cluster.stop import Stopped
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout import rewards
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.generate import Generator
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.prompts import load
from trainer.types import PartialRollout, Request, Sample

REMAX: dict[str, Any] = {"advantage_estimator": "remax", "init_kl_coef": 0}
SAMPLING = SamplingSettings(max_new_tokens=20)


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> HFEngine:
    return HFEngine(settings(tiny))


def test_a_completion_without_a_seed_is_that_of_temperature_0(engine: HFEngine) -> None:
    cold = engine.generate(
        [Request(text, (1,)) for text in TEXTS], replace(SAMPLING, temperature=0)
    )
    mixed = engine.generate([Request(text, (5, None, 6)) for text in TEXTS], SAMPLING)
    for expected, found in zip(cold, mixed[1::3], strict=True):
        assert np.array_equal(expected.tokens, found.tokens)
    alone = engine.generate([Request(text, (5, 6)) for text in TEXTS], SAMPLING)
    sampled = [one for at, one in enumerate(mixed) if at % 3 != 1]
    assert [one.text for one in sampled] == [one.text for one in alone]


def test_a_partial_rollout_without_a_seed_is_that_of_temperature_0(engine: HFEngine) -> None:
    cold = engine.generate([Request(TEXTS[0], (1,))], replace(SAMPLING, temperature=0))[0]
    begun = cold.tokens[cold.action_mask][:1]
    known: dict[str, Any] = {
        "tokens": begun, "log_probs": np.zeros(1, np.float32), "versions": np.zeros(1, np.int32)
    }  # fmt: skip
    partial = PartialRollout((0, 0), TEXTS[0], None, **known)
    (ended,) = engine.write([partial], SAMPLING, 60).ended
    assert np.array_equal(ended.completion.tokens, cold.tokens)


def test_each_prompt_has_one_greedy_completion_beside_its_samples(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **REMAX)
    generator = Generator.of(config, EnginePool(LocalWorkerGroup([HFEngine(settings(tiny))])))
    prompts = load(config).stream.next_batch(3)
    written = generator.generate(prompts, step=1)
    without = replace(generator, greedy=False).generate(prompts, step=1)
    assert [p.index for p, _ in written.greedy] == [p.index for p in prompts]
    assert [c.text for _, c in written.samples] == [c.text for _, c in without.samples]
    assert not without.greedy


def test_the_baseline_is_the_reward_of_the_prompt_s_own_greedy_completion(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **REMAX, overlong_buffer_len=2)
    engine = HFEngine(settings(tiny))
    generator = Generator.of(config, EnginePool(LocalWorkerGroup([engine])))
    written = generator.generate(load(config).stream.next_batch(3), step=1)

    def numbered(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(float(at)) for at in range(len(requests))]

    samples = rewards.score(numbered, written.samples, written.greedy)
    assert [s.score.reward for s in samples] == [0, 1, 2, 3, 4, 5]
    of_greedy = [s.greedy for s in samples if s.greedy]
    assert [s.score.reward for s in of_greedy] == [6, 6, 7, 7, 8, 8]
    assert all(s.prompt == one.prompt for s, one in zip(samples, of_greedy, strict=True))
    shaped, _ = rewards.shaped(config, samples, RunningMoments())
    expected = rewards.shaped(config, of_greedy, RunningMoments())[0].whole
    assert shaped.greedy is not None
    assert np.array_equal(shaped.greedy, expected)
    assert not np.array_equal(expected, [6, 6, 7, 7, 8, 8]), "penalties are of both"


def test_its_cost_is_in_the_metrics_and_it_trains_nothing(tiny: Tiny, run_dir: Path) -> None:
    asked: list[int] = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        asked.append(len(requests))
        return share_of("1")(requests)

    config = tiny.config(run_dir, **REMAX, max_steps=2)
    state = train(config, reward)
    assert asked == [12, 12]  # 4 prompts, 2 samples each, and 4 greedy completions
    assert state.samples == 16
    for row in metric_rows(config):
        assert 0 < row["train/greedy_length"] <= 3
        assert 0 <= row["train/greedy_reward"] <= 1
        counted = row["perf/tokens_per_second"] * row["timing/step"]
        assert counted > row["train/total_length"] * 8 + 4


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(tiny: Tiny, run_dir: Path) -> None:
    whole = tiny.config(run_dir.with_name("whole"), **REMAX)
    parted = tiny.config(run_dir, **REMAX)
    train(whole)
    after = StopAfter(2)
    with pytest.raises(Stopped, match="Stopped after"):
        train(parted, after.reward, after.stop)
    train(parted)
    expected, found = weights_of(whole, 4), weights_of(parted, 4)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


@pytest.mark.parametrize("flags", [{}, {"dynamic_filtering": True}], ids=["all", "filtered"])
def test_with_no_staleness_asynchronous_is_synchronous_to_the_bit(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any]
) -> None:
    flags = {**REMAX, **flags, "max_steps": 2, "generate_max_len": 8}
    synchronous = tiny.config(run_dir.with_name("synchronous"), **flags)
    asynchronous = tiny.config(run_dir, **flags, async_train=True, max_staleness=0)
    for config in (synchronous, asynchronous):
        train(config)
    expected, found = weights_of(synchronous, 2), weights_of(asynchronous, 2)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    for before, after in zip(metric_rows(synchronous), metric_rows(asynchronous), strict=True):
        for name in ("reward", "greedy_reward", "greedy_length"):
            assert before[f"train/{name}"] == after[f"train/{name}"]


def test_a_greedy_completion_is_continued_after_a_resume(
    tiny: Tiny, run_dir: Path, trained: list[Sample]
) -> None:
    flags = {**REMAX, "async_train": True, "partial_rollout": True, "generate_max_len": 12}
    config = tiny.config(run_dir, **flags, micro_rollout_batch_size=1, load_checkpoint=True)
    after = StopAfter(1)
    with pytest.raises(Stopped, match="Stopped after"):
        train(config, after.reward, after.stop)
    train(config)
    assert len(trained) == 4 * 8
    assert all(one.greedy and one.greedy.prompt == one.prompt for one in trained)


def test_an_episode_is_greedy_in_all_its_turns(
    tiny: Tiny, run_dir: Path, tmp_path: Path, trained: list[Sample]
) -> None:
    spec = environments.write(tmp_path)
    flags = {"environment": spec, "remote_rm_url": None, "max_steps": 1, "max_len": 64}
    config = tiny.config(run_dir, **REMAX, **flags, rollout_batch_size=2, train_batch_size=4)
    train(config)
    assert len(trained) == 4
    by_prompt = {one.prompt.index: one.greedy for one in trained if one.greedy}
    assert len(by_prompt) == 2
    engine = HFEngine(settings(tiny))
    for greedy in by_prompt.values():
        ends = np.flatnonzero(np.diff(np.append(greedy.completion.action_mask, False).astype(int)))
        assert len(ends) == 2 * 3  # begin and end of three replies
        first = Request(greedy.prompt.text, (1,))
        cold = replace(config.sampling, temperature=0)
        (expected,) = engine.generate([first], cold)
        length = len(expected.tokens)
        assert np.array_equal(greedy.completion.tokens[:length], expected.tokens)
