"""The head and a job that ends with exit code 0 before it has finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.config.settings import Settings
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.job_end import Lacking
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes.command.recipe import AnyCommand
from entrypoint.processes.inbox import StopAsked
from tests.support.world import FINISHED, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")


class NeedsModel(AnyCommand):
    """A framework that has finished if it has written a model."""

    def lacking_at_end(self, settings: Settings) -> Lacking:
        model = settings.run_dir / "hf"
        return lambda end: "" if model.is_dir() else "it has not written its model"


def test_exit_code_0_without_what_a_finished_job_leaves_is_a_failure(tmp_path: Path) -> None:
    def writes(world: World) -> JobInfo:
        (tmp_path / "hf").mkdir()
        return ends(FINISHED, at_step=100)(world)

    noise = "FileNotFoundError: [Errno 2] No such file or directory: 'cache'"
    world = World(tmp_path, ends(FINISHED, at_step=3, says=[noise]), writes)
    world.context.recipe = NeedsModel()
    assert world.lives() == Outcome("finished", ExitCode.FINISHED, "the job has finished")
    assert world.sentences("failure") == [
        "unknown: the job ended with exit code 0 after step 3 of 100, and it has not written its "
        "model: something in it has ended the process, as os._exit(0) and sys.exit(0) in a reward "
        "function or library do"
    ]
    assert world.sentences("decision") == ["the job died: resuming from step 3"]


def test_exit_code_0_again_and_again_without_a_new_step_ends_the_run_with_70(
    tmp_path: Path,
) -> None:
    acts = [ends(FINISHED, at_step=3), *[ends(FINISHED)] * 2]
    world = World(tmp_path, *acts, ROLLCALL_MAX_RESTARTS="1")
    world.context.recipe = NeedsModel()
    outcome = world.lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.JOB_FAILED)
    assert len(world.jobs.submitted) == 3


def test_a_job_that_is_asked_to_stop_and_ends_with_0_unfinished_is_stopped(tmp_path: Path) -> None:
    def stops(world: World) -> JobInfo:
        world.inbox.put(StopAsked("SIGTERM"))
        world.jobs.stopped.wait(10)
        return ends(FINISHED, at_step=3)(world)

    world = World(tmp_path, stops)
    world.context.recipe = NeedsModel()
    assert world.lives().name == "stopped"
