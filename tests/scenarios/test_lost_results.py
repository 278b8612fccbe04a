"""What a finished run has left is deleted: by the job itself, or before its next start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.config.read import read_settings
from entrypoint.job import exported_model
from entrypoint.job.ray_jobs import JobInfo
from tests.support.tiny_job import tiny_job
from tests.support.tiny_run import GRPO, Tiny, train
from tests.support.world import FINISHED, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_job_that_deletes_its_run_directory_has_not_finished(tmp_path: Path) -> None:
    root = tmp_path / "run"

    def deletes(world: World) -> JobInfo:
        ends(FINISHED, at_step=3)(world)
        shutil.rmtree(root)
        root.mkdir()
        return FINISHED

    root.mkdir()
    outcome = World(root, deletes).lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.RUN_DIR)


def test_the_model_of_a_finished_run_is_looked_for(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, max_steps=1, **GRPO)
    train(config)
    given = {"ROLLCALL_RECIPE": "builtin", "ROLLCALL_RUN_DIR": str(run_dir)}
    settings = read_settings(given, tiny_job(run_dir, 1))
    assert exported_model.lost(settings) == ""
    weights = next(config.exported.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    assert exported_model.lost(settings).startswith(f"its model in {config.exported} is gone, or n")
    shutil.rmtree(config.exported)
    assert exported_model.lost(settings) != ""
    command = read_settings(given | {"ROLLCALL_RECIPE": "command"}, ["true"])
    assert exported_model.lost(command) == "", "nobody knows where a command writes"
