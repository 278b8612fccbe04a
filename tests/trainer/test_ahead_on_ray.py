"""The asynchronous program as it runs in a job: real engines in processes of their own."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.harness import Tiny, events, metric_rows, to_argv
from tests.trainer.test_on_ray import flags, process_of, ray_directory, start, wait_until
from trainer.config import parse
from trainer.contract import ExitCode, checkpoint_path
from trainer.in_flight import FILE, InFlight

__all__ = ["flags", "ray_directory"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

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
def ahead(tiny: Tiny, flags: dict[str, Any]) -> dict[str, Any]:
    return flags | AHEAD


def test_a_run_that_was_told_to_stop_goes_on_with_all_that_was_under_way(
    ahead: dict[str, Any], ray_directory: Path
) -> None:
    config = parse(to_argv(ahead))
    stopped = start(ahead, ray_directory)
    wait_until(lambda: len(events(config, "step")) >= 3, stopped)
    stopped.send_signal(signal.SIGTERM)
    said, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == ExitCode.STOPPED, said
    step = events(config, "checkpoint")[-1]["details"]["step"]
    directory = checkpoint_path(config.checkpoints, step)
    found = InFlight.parse((directory / FILE).read_bytes())
    cursor = json.loads((directory / "run.json").read_text())["prompts"]
    dealt = cursor["epoch"] * cursor["prompts"] + cursor["position"]
    assert dealt == step * config.rollout_batch_size + len(found.groups)
    assert found.groups

    finished = start(ahead, ray_directory)
    said, _ = finished.communicate(timeout=120)
    assert finished.returncode == ExitCode.FINISHED, said
    oldest = [row["train/staleness_max"] for row in metric_rows(config)]
    assert len(oldest) == config.max_steps
    assert max(oldest) == 2


def test_an_engine_that_stops_is_named_within_the_bound(
    ahead: dict[str, Any], ray_directory: Path
) -> None:
    running = start(ahead | {"max_steps": 1000}, ray_directory)
    config = parse(to_argv(ahead))
    wait_until(lambda: len(events(config, "step")) >= 2, running)
    stopped = process_of("engine-1", running)
    stopped.suspend()
    since = time.monotonic()
    said, _ = running.communicate(timeout=100)
    stopped.resume()
    assert time.monotonic() - since < 40
    assert running.returncode == ExitCode.JOB_FAILED, said
    assert "engine-1 did not answer within 10 s" in said
    assert "Traceback" not in said
