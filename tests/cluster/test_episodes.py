"""Episodes as they run in a job: the driver's event loop, engines in processes of their own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from tests.support.environments import write
from tests.support.tiny_run import Tiny, events, metric_rows, to_argv
from tests.support.trainer_program import Begin, flags_of, wait_until, worker_of
from trainer.config.parse import parse

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.faults
def test_an_engine_that_is_killed_costs_no_episode(
    tiny: Tiny, run_dir: Path, tmp_path: Path, begin: Begin
) -> None:
    flags: dict[str, Any] = flags_of(tiny, run_dir) | {
        "advantage_estimator": "group_norm",
        "init_kl_coef": 0,
        "max_steps": 1000,
        "environment": write(tmp_path),
        "environment_args": '{"slowest": 0.2}',
        "remote_rm_url": None,
        "max_len": 64,
        "prompt_max_len": 16,
    }
    config = parse(to_argv(flags))
    program = begin(flags)
    wait_until(lambda: len(events(config, "step")) >= 2, program)
    worker_of("engine-1", program).kill()
    wait_until(lambda: bool(events(config, "engine-replaced")), program)
    program.send_signal(signal.SIGTERM)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == ExitCode.STOPPED, said
    rows = metric_rows(config)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["train/turns"] for row in rows} == {3}
    assert {row["train/reward_failed"] for row in rows} == {0}
