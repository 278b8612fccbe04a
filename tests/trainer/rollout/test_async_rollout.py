"""Rollouts ahead of training: what steps are made of, what new weights meet, what resumes find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract.manifest import checkpoint_path
from env.types import RewardFunction, RewardRequest, Score
from tests.support.engines import settings
from tests.support.local_workers import LocalWorkerGroup
from tests.support.saved_states import weights_of
from tests.support.tiny_run import (
    GRPO,
    StopAfter,
    Tiny,
    metric_rows,
    rollouts_have_ended,
    share_of,
    train,
)
from tests.support.waiting import eventually
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.writer import IN_FLIGHT, RunState
from trainer.cluster.stop import Stopped, StopRequest
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.rollout import dispatcher, prompts
from trainer.rollout.async_rollout import AsyncRollouts
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.generate import Generator
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.rollout_state import PendingRollouts
from trainer.rollout.source import StepRollouts
from trainer.types import (
    BeyondRepairError,
    Completion,
    LostWorkerError,
    PartialRollout,
    Sample,
    TrainingError,
)

STEPS = 4
Numbers = tuple[NDArray[Any], ...]
AHEAD: dict[str, Any] = {**GRPO, "async_train": True, "max_steps": STEPS}
HALF_WRITTEN: dict[str, Any] = {
    **AHEAD,
    "partial_rollout": True,
    "generate_max_len": 12,
    "micro_rollout_batch_size": 1,  # one after the other: some are always under way
}


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are asked for one token at a time."""
    monkeypatch.setattr(dispatcher, "SLICE", 0.0)


def each_prompt_once(config: Config, samples: Sequence[Sample]) -> bool:
    """Both completions of each of the first prompts, in whatever order, and of no other."""
    assert config.train.max_steps is not None
    dealt = prompts.load(config).stream.next_batch(
        config.train.max_steps * config.rollout_batch_size
    )
    return sorted(s.prompt.index for s in samples) == sorted([p.index for p in dealt] * 2)


def stopped(config: Config, calls: int = 1) -> tuple[int, PendingRollouts]:
    """The step after which a run was stopped, and what was under way then."""
    after = StopAfter(calls)
    with pytest.raises(Stopped):
        train(config, after.reward, after.stop)
    step = metric_rows(config)[-1]["step"]
    return step, PendingRollouts.parse(
        (checkpoint_path(config.checkpoints, step) / IN_FLIGHT).read_bytes()
    )


@pytest.mark.parametrize(
    "flags",
    [{"vllm_num_engines": 3}, {**GRPO, "dynamic_filtering": True, "generate_max_len": 8}],
    ids=["ppo", "filtering"],
)
def test_with_no_staleness_a_run_is_the_synchronous_one_to_the_bit(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any]
) -> None:
    flags = flags | {"max_steps": 2}
    synchronous = tiny.config(run_dir.with_name("synchronous"), **flags)
    asynchronous = tiny.config(run_dir, **flags, async_train=True, max_staleness=0)
    for config in (synchronous, asynchronous):
        train(config)
    expected, found = weights_of(synchronous, 2), weights_of(asynchronous, 2)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    for before, after in zip(metric_rows(synchronous), metric_rows(asynchronous), strict=True):
        assert before["train/reward"] == after["train/reward"]
        assert after["train/staleness_max"] == 0
        if "dynamic_filtering" in flags:
            passed = after["train/dynamic_filtering_pass_rate"]
            assert before["train/dynamic_filtering_pass_rate"] == passed < 1


def test_rollouts_of_the_next_steps_come_while_one_is_trained(
    tiny: Tiny, run_dir: Path, trained: list[Sample]
) -> None:
    config = tiny.config(run_dir, **AHEAD, max_staleness=2)
    train(config)
    rows = metric_rows(config)
    assert [row["train/staleness_max"] for row in rows] == [0, 1, 2, 2]
    assert all(row["train/older_tokens"] == 1 for row in rows[1:])
    assert all("timing/wait" in row for row in rows)
    assert each_prompt_once(config, trained)


def test_new_weights_go_on_with_half_written_completions(
    tiny: Tiny, run_dir: Path, trained: list[Sample], step_by_step: None
) -> None:
    """Evaluations and checkpoints between them change nothing."""
    config = tiny.config(run_dir, **HALF_WRITTEN, eval_dataset=tiny.held_out, eval_steps=1)
    train(config)
    assert each_prompt_once(config, trained)
    versions = [s.completion.versions[s.completion.action_mask] for s in trained]
    assert all(np.all(np.diff(one) >= 0) for one in versions)
    assert any(len(set(one)) > 1 for one in versions)
    assert any(0 < row.get("train/older_tokens", 0) < 1 for row in metric_rows(config))


def test_without_partial_rollouts_each_completion_is_of_one_policy(
    tiny: Tiny, run_dir: Path, trained: list[Sample], step_by_step: None
) -> None:
    config = tiny.config(run_dir, **HALF_WRITTEN | {"partial_rollout": None})
    train(config)
    assert all(len(set(s.completion.versions[s.completion.action_mask])) == 1 for s in trained)
    assert each_prompt_once(config, trained)


def test_a_stop_after_the_loss_of_a_process_repeats_no_prompt(
    tiny: Tiny, run_dir: Path, trained: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, stop, step_of = tiny.config(run_dir, **AHEAD), StopRequest(), AsyncRollouts.step

    def losing(rollouts: AsyncRollouts, step: int) -> StepRollouts:
        if step == 2 and not stop.requested:
            rollouts._begin()  # deals prompts
            stop.requested = True
            raise lost(Role.ENGINE)
        return step_of(rollouts, step)

    monkeypatch.setattr(AsyncRollouts, "step", losing)
    with pytest.raises(Stopped, match="after step 1"):
        train(config, stop=stop)
    train(config)
    assert each_prompt_once(config, trained)


@pytest.mark.parametrize("then", [True, None], ids=["partial rollouts", "whole ones"])
def test_a_resumed_run_goes_on_with_what_was_under_way(
    tiny: Tiny, run_dir: Path, trained: list[Sample], step_by_step: None, then: bool | None
) -> None:
    flags = {**HALF_WRITTEN, "load_checkpoint": True}
    step, found = stopped(tiny.config(run_dir, **flags))
    assert any(len(partial.tokens) for group in found.groups for partial in group.partials.values())
    before = len(trained)
    config = tiny.config(run_dir, **flags | {"partial_rollout": then})
    train(config)
    assert each_prompt_once(config, trained)
    for group in found.groups:
        its = [s.completion for s in trained[before:] if s.prompt == group.prompt]
        assert all(completion.version >= group.version for completion in its)
        for place, partial in group.partials.items():
            assert goes_on(partial, its[place])
            versions = its[place].versions[its[place].action_mask]
            assert min(versions[len(partial.tokens) :]) >= step, "of weights that were restored"


def goes_on(partial: PartialRollout, completion: Completion) -> bool:
    length = len(partial.tokens)
    written: Numbers = (completion.tokens, completion.log_probs, completion.versions)
    ours: Numbers = (partial.tokens, partial.log_probs, partial.versions)
    return all(
        np.array_equal(theirs[completion.action_mask][:length], mine)
        for theirs, mine in zip(written, ours, strict=True)
    )


def test_samples_that_are_ready_are_trained_after_a_resume_and_scored_no_more(
    tiny: Tiny, run_dir: Path, trained: list[Sample]
) -> None:
    config = tiny.config(run_dir, **AHEAD, max_staleness=3, load_checkpoint=True)
    step, found = stopped(config)
    ready = [group for group in found.groups if group.scores is not None]
    assert step == 1
    assert ready
    scored: list[str] = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        scored.extend(request.prompt for request in requests)
        return share_of("1")(requests)

    train(config, reward)
    assert each_prompt_once(config, trained)
    assert not {group.prompt.text for group in ready} & set(scored)


@pytest.mark.parametrize("change", [{"max_staleness": 0}, {"generate_max_len": 12}])
def test_prompts_are_dealt_again_where_their_samples_no_longer_fit(
    tiny: Tiny, run_dir: Path, trained: list[Sample], change: dict[str, Any]
) -> None:
    flags = {**AHEAD, "max_staleness": 2, "load_checkpoint": True}
    stopped(tiny.config(run_dir, **flags))
    config = tiny.config(run_dir, **flags | change)
    train(config)
    assert each_prompt_once(config, trained)


def test_a_synchronous_run_does_not_forget_what_was_under_way(tiny: Tiny, run_dir: Path) -> None:
    stopped(tiny.config(run_dir, **AHEAD))
    with pytest.raises(ResumeError, match=r"4 prompts were under way at step 1.*--async_train"):
        train(tiny.config(run_dir, **GRPO, load_checkpoint=True))


def test_prompts_without_signal_are_replaced_while_training_goes_on(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, **AHEAD, max_staleness=2, dynamic_filtering=True)
    train(config)
    rows = metric_rows(config)
    assert any(row["train/dynamic_filtering_pass_rate"] < 1 for row in rows)
    assert all(row["train/reward"] > 0 for row in rows), "a group without any 1 has no signal"
    assert 0 < max(row["train/staleness_max"] for row in rows) <= 2


def rollouts_of(tiny: Tiny, run: Path, reward: RewardFunction, **flags: Any) -> AsyncRollouts:
    config = tiny.config(run, **{**AHEAD, "max_staleness": 2, **flags})
    engines = EnginePool(LocalWorkerGroup([HFEngine(settings(tiny))]))
    rollouts = Generator.of(config, engines)
    return AsyncRollouts(config, rollouts, prompts.load(config).stream, reward, step=0)


def after(step: int) -> RunState:
    return RunState(step=step, seed=0, prompts={})


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (Score.failed("connection refused"), "none of 2 completions could be scored: connection"),
        (Score.of(1.0), "of 40 prompts only 0 have a mean score between 0 and 1"),
    ],
)
def test_prompts_that_all_have_no_signal_end_the_run_and_the_reason_is_said(
    tiny: Tiny, run_dir: Path, score: Score, reason: str
) -> None:
    filtering = {"dynamic_filtering": True, "dynamic_filtering_reward_range": (0, 1)}
    config = tiny.config(run_dir, async_train=True, **filtering, **GRPO)
    with pytest.raises(TrainingError, match=reason):
        train(config, lambda requests: [score] * len(requests))


def test_groups_that_are_replaced_for_later_steps_do_not_end_the_run(
    tiny: Tiny, run_dir: Path
) -> None:
    scored: list[Score] = []

    def every_fifth_group(requests: Sequence[RewardRequest]) -> list[Score]:
        first = len(scored)
        numbers = range(first, first + len(requests))
        scored.extend(Score.of(0.0 if number % 10 == 0 else 1.0) for number in numbers)
        return scored[first:]

    flags = {"max_staleness": 3, "dynamic_filtering": True}
    rollouts = rollouts_of(tiny, run_dir, every_fifth_group, **flags)
    rollouts.step(1)
    with rollouts.meanwhile():  # 4 groups of 20 for each of 3 more steps
        eventually(lambda: len(scored) >= 2 * 76)
    for step in (2, 3, 4):
        assert len(rollouts.step(step).written) == 8


def test_a_step_that_is_done_again_has_the_samples_that_it_had(tiny: Tiny, run_dir: Path) -> None:
    rollouts = rollouts_of(tiny, run_dir, share_of("1"))

    def numbers(step: int) -> list[tuple[int, list[int]]]:
        written = rollouts.step(step).written
        return [(prompt.index, c.tokens.tolist()) for prompt, c in written]

    first = numbers(1)
    rollouts.go_back(after(0))
    assert numbers(1) == first
    with rollouts.new_weights(1):
        pass
    second = numbers(2)
    assert not {index for index, _ in first} & {index for index, _ in second}
    rollouts.go_back(after(1))
    assert numbers(2) == second
    assert rollouts.oldest == 0
    rollouts.go_back(after(0))
    assert [numbers(1), numbers(2)] == [first, second]


def test_what_the_reward_function_raises_ends_the_run(tiny: Tiny, run_dir: Path) -> None:
    calls = 0

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise ConnectionError("the server is gone")
        return share_of("1")(requests)

    with pytest.raises(ConnectionError, match="gone"):
        train(tiny.config(run_dir, **AHEAD), reward)


def raising(error: Exception) -> RewardFunction:
    """At its first call."""
    errors = [error]

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        if errors:
            raise errors.pop()
        return share_of("1")(requests)

    return reward


def lost(role: str) -> LostWorkerError:
    return LostWorkerError(f"{role}-0 is lost", role)


def lose_the_policy(rollouts: AsyncRollouts) -> None:
    """Beside rollouts that have met a failure of their own."""
    with rollouts.meanwhile():
        rollouts_have_ended()
        raise lost("policy")


def test_a_process_lost_beside_the_loop_is_for_the_next_batch_to_raise_and_no_sample_is_lost(
    tiny: Tiny, run_dir: Path
) -> None:
    rollouts = rollouts_of(tiny, run_dir, raising(lost("reward")))
    with rollouts.meanwhile():
        rollouts_have_ended()
    with pytest.raises(LostWorkerError, match="reward-0"):
        rollouts.step(1)
    assert len(rollouts.step(1).written) == 8


def test_a_process_lost_beside_a_loop_that_lost_another_is_met_again_if_it_is_still_lost(
    tiny: Tiny, run_dir: Path
) -> None:
    rollouts = rollouts_of(tiny, run_dir, raising(lost("reward")))
    with pytest.raises(LostWorkerError, match="policy-0"):
        lose_the_policy(rollouts)
    rollouts.go_back(after(0))
    assert len(rollouts.step(1).written) == 8


def test_what_no_repair_mends_is_raised_even_where_the_loop_has_lost_a_process(
    tiny: Tiny, run_dir: Path
) -> None:
    rollouts = rollouts_of(tiny, run_dir, raising(BeyondRepairError("no engine is left")))
    with pytest.raises(BeyondRepairError, match="no engine is left"):
        lose_the_policy(rollouts)
