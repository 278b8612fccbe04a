"""Whole runs in this process: what they learn, what they write, how they end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb

from contract.journal import read_events
from contract.manifest import newest_checkpoint
from contract.progress import Phase
from contract.run_dir import RunFiles
from entrypoint.run.flight_record import read_run
from env.types import RewardFunction, RewardRequest, Score
from tests.support.tiny_run import Tiny, events, metric_rows, share_of, train
from trainer.cluster.stop import Stopped, StopRequest
from trainer.metrics.recorder import beginning
from trainer.types import TrainingError

BANDIT: dict[str, Any] = {
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 4,
    "train_batch_size": 32,
    "micro_train_batch_size": 32,
    "micro_rollout_batch_size": 64,
    "actor_learning_rate": 2e-2,
    "critic_learning_rate": 1e-2,
    "lr_scheduler": "constant",
    "init_kl_coef": 1e-3,
    "max_steps": 20,
}


@pytest.mark.parametrize("algorithm", ["gae", "group_norm"])
def test_mixed_precision_trains(tiny: Tiny, run_dir: Path, algorithm: str) -> None:
    state = train(
        tiny.config(run_dir, param_dtype="bf16", advantage_estimator=algorithm, max_steps=1)
    )
    assert state.step == 1


@pytest.mark.parametrize(
    "algorithm",
    [
        {"advantage_estimator": "gae"},
        {"advantage_estimator": "group_norm"},
        {"advantage_estimator": "group_norm", "use_kl_loss": True, "kl_estimator": "k3"},
    ],
    ids=["ppo", "grpo", "grpo-kl-loss"],
)
def test_a_bandit_is_learned(tiny: Tiny, run_dir: Path, algorithm: dict[str, Any]) -> None:
    state = train(tiny.config(run_dir, **BANDIT, **algorithm))
    assert state.reward_first is not None
    assert state.reward_first < 0.3
    assert state.reward > 0.8


def test_the_policy_is_frozen_while_only_the_critic_learns(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, freezing_actor_steps=2, max_steps=3)
    train(config)
    rows = metric_rows(config)
    assert ["train/policy_loss" in row for row in rows] == [False, False, True]
    assert all("train/critic_loss" in row for row in rows)
    assert [row["train/kl"] for row in rows] == [0.0, 0.0, 0.0]


def test_a_run_tells_its_story(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, max_steps=3, save_steps=2, eval_dataset=tiny.held_out)
    state = train(config)
    progress = json.loads(config.files.progress.read_text())
    assert (progress["step"], progress["total_steps"], progress["samples"]) == (3, 3, 24)
    assert progress["checkpoint"] == 3
    assert progress["reward_first"] == state.reward_first
    assert progress["eval_before"] == events(config, "eval")[0]["details"]["accuracy"]
    assert progress["eval"] == events(config, "eval")[-1]["details"]["accuracy"]
    assert [event["details"]["step"] for event in events(config, "eval")] == [0, 3]
    assert [event["details"]["step"] for event in events(config, "step")] == [1, 2, 3]
    assert [event["details"]["step"] for event in events(config, "checkpoint")] == [2, 3]
    assert [event["details"]["step"] for event in events(config, "resume")] == [0]
    told = [event["kind"] for event in read_events(config.files.journal)]
    assert told.count("ready") == 1
    assert told.index("resume") < told.index("ready") < told.index("eval")
    assert Phase.read(config.files.phase) == Phase(1, 3, "checkpoint")
    row = metric_rows(config)[1]
    for name in ("train/reward", "train/policy_loss", "train/critic_loss", "train/kl"):
        assert np.isfinite(row[name])


def failing_at(*places: int) -> RewardFunction:
    """Cannot score the samples at some places of each batch; the others are worth 1."""

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        return [
            Score.failed("no answer") if place in places else Score.of(1.0)
            for place in range(len(requests))
        ]

    return reward


@pytest.mark.parametrize(
    ("step", "finished", "told"),
    [
        (0, 0, "Training starts: 60 steps to go."),
        (42, 42, "Training goes on after step 42 of 60: no finished step is lost."),
        (41, 42, "Training goes on after step 41 of 60; 1 step is repeated, because no"),
        (40, 42, "Training goes on after step 40 of 60; 2 steps are repeated, because no"),
        (0, 3, "Training starts: 60 steps to go; 3 steps are repeated, because no"),
    ],
)
def test_an_attempt_says_where_it_begins_and_what_is_lost(
    step: int, finished: int, told: str
) -> None:
    assert beginning(step, 60, finished).startswith(told)


def test_an_attempt_that_goes_back_on_request_says_so() -> None:
    assert beginning(5, 60, 10, asked=True) == (
        "Training goes on after step 5 of 60; "
        "5 steps are repeated, because --load_step asks for it."
    )
    assert beginning(5, 60, 5, asked=True).endswith("no finished step is lost.")


def test_a_failed_reward_is_left_out_and_never_a_zero(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, max_steps=1)
    state = train(config, failing_at(1, 6))
    row = metric_rows(config)[0]
    assert row["train/reward_failed"] == pytest.approx(2 / 8)
    assert row["train/reward"] == 1.0
    assert state.samples == 6
    assert [event["sentence"] for event in events(config, "no-reward")] == [
        "2 of 8 samples of step 1 have no reward: no answer. They do not count in training."
    ]
    shown = read_run.of_run(RunFiles(run_dir)).no_reward
    assert shown.startswith("2 of 8 samples of step 1 have no reward")


def test_a_batch_without_any_reward_ends_the_run(tiny: Tiny, run_dir: Path) -> None:
    with pytest.raises(TrainingError, match="none of 8 completions could be scored: no answer"):
        train(tiny.config(run_dir), failing_at(*range(8)))


def test_a_reward_that_is_not_finite_stops_and_leaves_the_checkpoint(
    tiny: Tiny, run_dir: Path
) -> None:
    calls = 0

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        nonlocal calls
        calls += 1
        return [Score.of(float("nan") if calls == 3 else 1.0) for _ in requests]

    config = tiny.config(run_dir, save_steps=1)
    with pytest.raises(TrainingError, match=r"reward of prompt \d+ is nan"):
        train(config, reward)
    assert newest_checkpoint(config.checkpoints) == 2


def test_sigterm_saves_at_the_next_step_boundary(tiny: Tiny, run_dir: Path) -> None:
    calls = 0

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return share_of("1")(requests)

    before = signal.getsignal(signal.SIGTERM)
    stop = StopRequest()
    stop.install()
    config = tiny.config(run_dir)
    try:
        with pytest.raises(Stopped, match="after step 2 of 4"):
            train(config, reward, stop)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert newest_checkpoint(config.checkpoints) == 2
    assert json.loads(config.files.progress.read_text())["checkpoint"] == 2


@pytest.mark.parametrize("call", [3, 4], ids=["step", "evaluation"])
def test_nothing_comes_between_a_request_to_stop_and_the_save(
    tiny: Tiny, run_dir: Path, call: int
) -> None:
    """The reward function is called in an evaluation, in steps 1 and 2, in an evaluation."""
    stop, calls = StopRequest(), 0

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        nonlocal calls
        calls += 1
        stop.requested = calls >= call
        return share_of("1")(requests)

    flags = {"eval_dataset": tiny.held_out, "eval_steps": 2}
    config = tiny.config(run_dir, **flags)
    with pytest.raises(Stopped, match="after step 2 of 4"):
        train(config, reward, stop)
    assert calls == call
    assert newest_checkpoint(config.checkpoints) == 2
    train(tiny.config(run_dir, **flags, load_checkpoint=True))
    assert [event["details"]["step"] for event in events(config, "eval")] == [0, 2, 4]


def test_a_request_to_stop_in_the_last_step_is_a_save_and_then_the_end(
    tiny: Tiny, run_dir: Path
) -> None:
    stop, calls = StopRequest(), 0
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, max_steps=1)

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        nonlocal calls
        calls += 1
        stop.requested = calls >= 2
        assert calls < 3 or newest_checkpoint(config.checkpoints) == 1
        return share_of("1")(requests)

    assert train(config, reward, stop).evaluated == 1
    assert calls == 3
    assert config.exported.is_dir()


def test_a_request_to_stop_before_the_first_step_is_heeded(tiny: Tiny, run_dir: Path) -> None:
    stop = StopRequest()
    stop.requested = True
    with pytest.raises(Stopped, match="before step 1 of 4"):
        train(tiny.config(run_dir), stop=stop)


def test_wandb_goes_on_with_the_same_offline_run(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    flags = {"use_wandb": True, "advantage_estimator": "group_norm", "init_kl_coef": 0}
    first = train(tiny.config(run_dir, max_steps=1, **flags))
    second = train(tiny.config(run_dir, max_steps=2, load_checkpoint=True, **flags))
    assert first.wandb_id
    assert second.wandb_id == first.wandb_id
    logs = list((run_dir / "wandb").rglob(f"run-{first.wandb_id}.wandb"))
    assert len(logs) == 2
    assert all(comes_to_hold(log, b"train/reward") for log in logs)


def test_a_wandb_that_does_not_answer_stops_no_training(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: Any) -> None:
        raise wandb.Error("no such host")

    monkeypatch.setattr(wandb, "init", refuse)
    assert train(tiny.config(run_dir, max_steps=1, use_wandb=True)).step == 1
    assert "No W&B in this attempt: no such host" in capsys.readouterr().out


def comes_to_hold(log: Path, text: bytes) -> bool:
    """W&B's own process may still be writing when `finish` has returned."""
    deadline = time.monotonic() + 20
    while text not in log.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    return text in log.read_bytes()


class WandbRun:
    """What stands for the run of a W&B that has no server."""

    id = "abc"

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.alerts: list[dict[str, Any]] = []

    def define_metric(self, *names: str, **more: str) -> None: ...

    def log(self, content: dict[str, Any]) -> None:
        self.logged.append(content)

    def alert(self, **content: Any) -> None:
        self.alerts.append(content)

    def finish(self, exit_code: int) -> None: ...


def test_wandb_has_a_table_of_samples_for_each_step_and_no_alert_of_a_run_that_finishes(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = WandbRun()
    monkeypatch.setattr(wandb, "init", lambda **_: made)
    config = tiny.config(run_dir, max_steps=2, use_wandb=True, log_samples=3)
    train(config)
    tables = [content for content in made.logged if "samples" in content]
    assert [content["train/global_step"] for content in tables] == [1, 2]
    rows = [json.loads(line) for line in config.files.samples.read_text().splitlines()]
    table = tables[0]["samples"]
    assert len(table.data) == 3
    first = dict(zip(table.columns, table.data[0], strict=True))
    assert first["prompt"] == rows[0]["prompt"]
    assert first["reward"] == rows[0]["reward"]
    assert json.loads(first["turns"]) == rows[0]["turns"]
    assert made.alerts == []


def test_wandb_alerts_of_an_attempt_that_fails_without_its_secrets(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = WandbRun()
    monkeypatch.setattr(wandb, "init", lambda **_: made)
    monkeypatch.setenv("MY_TOKEN", "0123456789abcdef")

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        raise RuntimeError("refused: 0123456789abcdef")

    with pytest.raises(RuntimeError):
        train(tiny.config(run_dir, max_steps=2, use_wandb=True), reward)
    (alert,) = made.alerts
    assert alert["level"] == "ERROR"
    assert alert["text"] == f"{run_dir}: RuntimeError: refused: ********"


def test_wandb_does_not_alert_of_a_stop(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stop = WandbRun(), StopRequest()
    monkeypatch.setattr(wandb, "init", lambda **_: made)
    stop.requested = True
    with pytest.raises(Stopped):
        train(tiny.config(run_dir, use_wandb=True), stop=stop)
    assert made.alerts == []
