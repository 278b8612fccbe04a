"""The asynchronous program as it runs in a job: real engines in processes of their own."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path
from tests.support.tiny_run import Tiny, events, metric_rows, to_argv
from tests.support.trainer_program import Begin, flags_of, wait_until, worker_of
from trainer.checkpoint.writer import IN_FLIGHT
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.rollout.rollout_state import PendingRollouts, PromptGroup

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AHEAD = {
    "advantage_estimator": "group_norm",
    "init_kl_coef": 0,
    "async_train": True,
    "max_staleness": 2,
    "partial_rollout": True,
    "generate_max_len": 20,
    "micro_rollout_batch_size": 2,
    "dist_timeout": 30,
}


@pytest.fixture
def ahead(tiny: Tiny, run_dir: Path) -> dict[str, Any]:
    return flags_of(tiny, run_dir) | AHEAD


@pytest.mark.faults
def test_a_run_that_was_told_to_stop_goes_on_with_all_that_was_under_way(
    ahead: dict[str, Any], begin: Begin
) -> None:
    config = parse(to_argv(ahead))
    stopped = begin(ahead)
    wait_until(lambda: len(events(config, "step")) >= 3, stopped)
    stopped.send_signal(signal.SIGTERM)
    said, _ = stopped.communicate(timeout=120)
    assert stopped.returncode == ExitCode.STOPPED, said
    step = events(config, "checkpoint")[-1]["details"]["step"]
    found = under_way(config, step)
    assert position_of(config, step) == 4 * step + len(found)
    assert found

    finished = begin(ahead)
    said, _ = finished.communicate(timeout=200)
    assert finished.returncode == ExitCode.FINISHED, said
    oldest = [row["train/staleness_max"] for row in metric_rows(config)]
    assert len(oldest) == config.train.max_steps
    assert max(oldest) == 2


@pytest.mark.faults
def test_what_was_under_way_in_an_engine_that_is_killed_is_written_by_others(
    ahead: dict[str, Any], begin: Begin
) -> None:
    flags = ahead | {"max_steps": 1000}
    config = parse(to_argv(flags))
    running = begin(flags)
    wait_until(lambda: len(events(config, "step")) >= 2, running)
    worker_of("engine-1", running).kill()
    wait_until(lambda: bool(events(config, "engine-replaced")), running)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == ExitCode.STOPPED, said
    rows = metric_rows(config)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert max(row["train/staleness_max"] for row in rows) == 2
    assert position_of(config, len(rows)) == 4 * len(rows) + len(under_way(config, len(rows)))


def test_a_policy_that_is_killed_trains_again_on_the_samples_that_it_had(
    ahead: dict[str, Any], begin: Begin
) -> None:
    flags = ahead | {"max_steps": 1000, "save_steps": 1}
    config = parse(to_argv(flags))
    running = begin(flags)
    wait_until(lambda: len(events(config, "step")) >= 4, running)
    worker_of("policy-0", running).kill()
    wait_until(lambda: bool(events(config, "rank-replaced")), running)
    made = len(events(config, "step"))
    wait_until(lambda: len(events(config, "step")) >= made + 3, running)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == ExitCode.STOPPED, said
    (resumed,) = events(config, "resume")
    assert resumed["details"]["step"] == 0, "in one attempt"
    rewards: dict[int, float] = {}
    for event in events(config, "step"):
        step, reward = event["details"]["step"], event["details"]["reward"]
        assert rewards.setdefault(step, reward) == reward
    last = max(rewards)
    assert sorted(rewards) == list(range(1, last + 1))
    assert max(row["train/staleness_max"] for row in metric_rows(config)) == 2
    assert position_of(config, last) == 4 * last + len(under_way(config, last))


def position_of(config: Config, step: int) -> int:
    """How many prompts the stream had dealt."""
    told = json.loads((checkpoint_path(config.checkpoints, step) / "run.json").read_text())
    cursor = told["prompts"]
    dealt: int = cursor["epoch"] * cursor["prompts"] + cursor["position"]
    return dealt


def under_way(config: Config, step: int) -> list[PromptGroup]:
    content = (checkpoint_path(config.checkpoints, step) / IN_FLIGHT).read_bytes()
    return PendingRollouts.parse(content).groups
