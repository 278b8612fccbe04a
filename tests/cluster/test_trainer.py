"""The program as it runs in a job: its own process, real Ray actors, real signals."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path, newest_checkpoint
from tests.support.ray_nodes import short_directory
from tests.support.saved_states import weights_of
from tests.support.tiny_run import Tiny, events, to_argv, train
from tests.support.trainer_program import STEPS, flags_of, start, wait_until, worker_of
from trainer.config.config import Config
from trainer.config.parse import parse

pytestmark = [pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def ray_directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


@pytest.fixture
def flags(tiny: Tiny, run_dir: Path) -> dict[str, Any]:
    return flags_of(tiny, run_dir)


@pytest.mark.faults
def test_a_driver_killed_and_one_told_to_stop_leave_a_run_that_ends_as_if_never_touched(
    flags: dict[str, Any], ray_directory: Path, tmp_path: Path
) -> None:
    config = parse(to_argv(flags))

    def steps() -> int:
        return len(events(config, "step"))

    killed = start(flags, ray_directory)
    wait_until(lambda: steps() >= 7 and bool(events(config, "checkpoint")), killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    made, held = steps(), newest_checkpoint(config.checkpoints)
    assert held in (5 * (made // 5), 5 * (made // 5) - 5), "one may still have been under way"
    stopped = start(flags, ray_directory)
    wait_until(lambda: steps() >= made + 3, stopped)
    stopped.send_signal(signal.SIGTERM)
    said, _ = stopped.communicate(timeout=120)
    assert stopped.returncode == ExitCode.STOPPED, said
    assert "Traceback" not in said
    saved = newest_checkpoint(config.checkpoints)
    assert saved == events(config, "step")[-1]["details"]["step"]

    finished = start(flags, ray_directory)
    said, _ = finished.communicate(timeout=200)
    assert finished.returncode == ExitCode.FINISHED, said

    resumed = [event["details"]["step"] for event in events(config, "resume")]
    assert resumed == [0, held, saved]
    # In one process, without Ray and without an interruption: the same numbers, to the bit.
    alone = parse(to_argv(flags | {"run_dir": tmp_path / "alone"}))
    from env.registry import reward_function

    train(alone, reward_function("arithmetic"))
    expected = weights_of(alone, STEPS)
    assert all(
        torch.equal(value, expected[name]) for name, value in weights_of(config, STEPS).items()
    )


@pytest.mark.cluster
def test_a_reward_server_that_never_answers_ends_with_69(
    flags: dict[str, Any], ray_directory: Path
) -> None:
    unreachable = flags | {
        "remote_rm_url": "http://127.0.0.1:9/get_reward",
        "remote_rm_deadline": 2,
    }
    process = start(unreachable, ray_directory)
    said, _ = process.communicate(timeout=150)
    assert process.returncode == ExitCode.UNREACHABLE, said
    assert "Traceback" not in said


@pytest.mark.faults
def test_a_model_that_does_not_fit_the_flags_ends_in_one_sentence(
    flags: dict[str, Any], ray_directory: Path
) -> None:
    unfit = start(flags | {"lora_rank": 4, "target_modules": "nothing"}, ray_directory)
    said, _ = unfit.communicate(timeout=150)
    assert unfit.returncode == ExitCode.USAGE, said
    assert "--target_modules nothing: the model has none of them" in said
    assert "Traceback" not in said


@pytest.mark.faults
def test_a_stopped_rank_is_named_all_start_anew_and_another_layout_goes_on(
    flags: dict[str, Any], ray_directory: Path, tmp_path: Path
) -> None:
    several = {"actor_num_gpus_per_node": 2, "critic_num_gpus_per_node": 2, "zero_stage": 3}
    flags |= {"max_steps": 6, "save_steps": 1, "dist_timeout": 45, "lr_scheduler": "constant"}
    config = parse(to_argv(flags))

    running = start(flags | several, ray_directory)
    wait_until(lambda: len(events(config, "checkpoint")) >= 2, running)
    stopped = worker_of("policy-1", running)
    stopped.suspend()
    said, _ = running.communicate(timeout=200)
    assert running.returncode == ExitCode.FINISHED, said
    (replaced,) = events(config, "rank-replaced")
    assert "rank policy-1" in replaced["sentence"]
    silence = re.search(
        rf"process {stopped.pid}\) does not answer for (\d+) s", replaced["sentence"]
    )
    assert silence, replaced["sentence"]
    assert int(silence[1]) < 45, "a third of it and a look, not all of it"
    assert replaced["details"]["step"] >= 2
    assert not stopped.is_running()

    flags |= {"max_steps": 7}
    finished = start(flags, ray_directory)
    said, _ = finished.communicate(timeout=200)
    assert finished.returncode == ExitCode.FINISHED, said
    assert [event["details"]["step"] for event in events(config, "resume")] == [0, 6]
    alone = parse(to_argv(flags | {"run_dir": tmp_path / "alone"}))
    from env.registry import reward_function

    train(alone, reward_function("arithmetic"))
    assert position_in(config, 7) == position_in(alone, 7)
    expected = weights_of(alone, 7)
    for name, value in weights_of(config, 7).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)


def position_in(config: Config, step: int) -> dict[str, Any]:
    state = json.loads((checkpoint_path(config.checkpoints, step) / "run.json").read_text())
    prompts: dict[str, Any] = state["prompts"]
    return prompts
