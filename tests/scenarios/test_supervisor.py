"""The head's decisions over a whole run: real control port and journal, a scripted job runner."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.files.child_variables import NODE_MARK
from contract.run_dir import RunFiles, write_atomically
from entrypoint.cluster.client import ControlClient, RefusedError
from entrypoint.config.settings import Settings
from entrypoint.job import attempt, supervisor
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.ray_jobs import JobClient, JobInfo, JobRefusedError
from entrypoint.job.recipes.command.recipe import AnyCommand
from entrypoint.net import wait
from entrypoint.net.wait import GaveUpError
from entrypoint.processes.inbox import RayEnded, StopAsked, WorkerLeaves
from entrypoint.processes.process import Process
from entrypoint.run.journal import Journal
from tests.support.control import TOKEN
from tests.support.world import DIED, FINISHED, STOPPED, ScriptedJobs, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_run_that_finishes_is_one_attempt(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED, at_step=100))
    assert world.lives() == Outcome("finished", ExitCode.FINISHED, "the job has finished")
    assert world.kinds() == ["roll", "attempt"]
    assert world.jobs.submitted[0]["ROLLCALL_ATTEMPT"] == "1"


def test_a_run_directory_that_takes_no_write_is_a_phase_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal takes no event then; page, metrics and `status` show the phase."""
    phases: list[str] = []
    said: list[str] = []

    def full_for_a_while(path: Path, content: str) -> None:
        phases.append(world.control.phase)
        said.append(world.control.sentence)
        if len(phases) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_atomically(path, content)

    monkeypatch.setattr(supervisor, "write_atomically", full_for_a_while)
    full = JobInfo("FAILED", "no space left", driver_exit_code=ExitCode.RUN_DIR)
    world = World(tmp_path, ends(full), ends(FINISHED, at_step=9))
    assert world.lives().name == "finished"
    assert phases == ["waiting for storage"] * 3
    why = f"{world.run.root}: No space left on device: free space there"
    assert said[1:] == [why] * 2
    assert world.control.sentence != why


def test_a_job_that_dies_is_resumed_from_its_newest_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, ends(DIED, at_step=40), ends(FINISHED, at_step=100))
    assert world.lives().name == "finished"
    assert world.kinds() == ["roll", "attempt", "failure", "decision", "roll", "attempt"]
    assert world.sentences("failure") == ["unknown: RuntimeError: broken"]
    assert world.sentences("decision") == ["the job died: resuming from step 40"]
    first, second = world.jobs.submitted
    assert "ROLLCALL_RESUME_FROM" not in first
    assert (second["ROLLCALL_RESUME_FROM"], second["ROLLCALL_ATTEMPT"]) == ("40", "2")
    assert len(set(world.jobs.ids)) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ROLLCALL_NAME": "low rate"}, "low rate"),
        ({"ROLLCALL_NAME": "low rate", "WANDB_NAME": "mine"}, None),  # the job inherits it
        ({}, None),
    ],
)
def test_wandb_gets_the_name_of_the_run_unless_the_user_has_one_for_it(
    tmp_path: Path, given: dict[str, str], told: str | None
) -> None:
    world = World(tmp_path, ends(FINISHED, at_step=9), workers=0, minimum=0, **given)
    assert world.lives().name == "finished"
    assert world.jobs.submitted[0].get("WANDB_NAME") == told


def test_what_the_nodes_hold_in_memory_is_told_of_also_when_ray_has_ended(tmp_path: Path) -> None:
    def ray_ends(world: World) -> JobInfo:
        ends(DIED, at_step=44, in_memory=43, says=["Step 44 of 100: reward 0.1."])(world)
        world.inbox.put(RayEnded(1, "its files are gone"))
        time.sleep(0.7)
        return DIED

    died = ends(DIED, at_step=42, in_memory=41)
    world = World(tmp_path, died, ray_ends, ends(FINISHED, at_step=50))
    world.context.recipe = Saves(40)
    assert world.lives().name == "finished"
    held = "step {} or a later one that the nodes hold in memory, else step 40"
    assert world.sentences("decision") == [
        f"the job died: resuming from {held.format(41)}",
        f"a node was lost: resuming from {held.format(43)}",
    ]
    assert world.sentences("failure")[1] == "node_lost: its files are gone"
    assert world.sentences("attempt")[1:] == [
        f"attempt 2 starts from {held.format(41)}",
        f"attempt 3 starts from {held.format(43)}",
    ]


class Saves(AnyCommand):
    """A job whose newest checkpoint is of one step for ever."""

    def __init__(self, step: int) -> None:
        self._step = step

    def latest(self, settings: Settings) -> int | None:
        return self._step


class LeavesModel(AnyCommand):
    """A framework that writes the trained model to a directory of its own."""

    def exported(self, settings: Settings) -> Path | None:
        return settings.run_dir / "own/model"


@pytest.mark.parametrize(("ending", "is_there"), [(FINISHED, True), (STOPPED, False)])
def test_a_finished_job_has_its_model_in_the_run_directory(
    tmp_path: Path, ending: JobInfo, is_there: bool
) -> None:
    (tmp_path / "own/model").mkdir(parents=True)
    world = World(tmp_path, ends(ending, at_step=100))
    world.context.recipe = LeavesModel()
    assert world.lives().name == ("finished" if is_there else "stopped")
    assert (tmp_path / "hf").is_dir() == is_there
    model = tmp_path / "own/model"
    told = [f"{tmp_path}/hf is the trained model, {model}"] if is_there else []
    assert world.sentences("export") == told


def test_storage_that_takes_no_link_does_not_fail_a_finished_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".hf-link").mkdir()  # in the link's way
    world = World(tmp_path, ends(FINISHED, at_step=100))
    world.context.recipe = LeavesModel()
    assert world.lives().name == "finished"
    assert f"{tmp_path}/hf is not a link to the model: " in caplog.text


def test_attempts_without_progress_exhaust_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path, *[ends(DIED)] * 5, ROLLCALL_MAX_RESTARTS="2")
    outcome = world.lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.JOB_FAILED)
    assert "3 attempts in a row brought no new step" in outcome.sentence
    assert len(world.jobs.submitted) == 3


def test_an_error_of_the_code_that_comes_again_is_not_tried_a_third_time(tmp_path: Path) -> None:
    bug = JobInfo("FAILED", "KeyError: 'answer'", driver_exit_code=1)
    world = World(tmp_path, *[ends(bug, says=("KeyError: 'answer'",))] * 5)
    outcome = world.lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.JOB_FAILED)
    assert "same error twice in a row" in outcome.sentence
    assert len(world.jobs.submitted) == 2


def test_progress_renews_the_budget(tmp_path: Path) -> None:
    steps = (1, 2, 2, 3, 3, 4)  # never two attempts in a row without a new step
    acts = [ends(DIED, at_step=step) for step in steps]
    world = World(tmp_path, *acts, ends(FINISHED, at_step=5), ROLLCALL_MAX_RESTARTS="1")
    assert world.lives().name == "finished"
    assert len(world.jobs.submitted) == 7


def test_a_job_that_is_used_wrongly_is_not_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path, ends(JobInfo("FAILED", "--qqq: unknown flag", driver_exit_code=64)))
    assert world.lives().exit_code is ExitCode.USAGE
    assert world.sentences("failure") == ["usage: --qqq: unknown flag"]


def test_the_reason_of_a_wrong_use_is_the_trainers_and_not_what_ray_relays_after_it(
    tmp_path: Path,
) -> None:
    says = (
        "the saved cursor belongs to other prompts than a.jsonl",
        "\x1b[36m(PolicyActor pid=7)\x1b[0m FutureWarning: it was moved",
    )
    job = JobInfo("FAILED", "last available logs:\n" + "\n".join(says), driver_exit_code=64)
    world = World(tmp_path, ends(job, says=says))
    assert world.lives().exit_code is ExitCode.USAGE
    assert world.sentences("failure") == [f"usage: {says[0]}"]


def test_a_killed_program_is_named_by_its_signal(tmp_path: Path) -> None:
    killed = JobInfo("FAILED", "last available logs:\n  warnings.warn(", driver_exit_code=-9)
    world = World(tmp_path, ends(killed), ends(FINISHED))
    world.lives()
    told = "the program was ended by signal 9 (SIGKILL, Killed): often by the kernel"
    assert world.sentences("failure")[0].startswith(f"unknown: {told}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (JobRefusedError("TypeError: no such thing"), "TypeError: no such thing"),
        (GaveUpError("Ray to take the job: not there"), "Ray to take the job: not there"),
    ],
)
def test_a_job_that_ray_does_not_take_counts_as_a_failed_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    """The same words of Ray are no error of the job's code, which would end the run earlier."""
    world = World(tmp_path, ROLLCALL_MAX_RESTARTS="2")
    monkeypatch.setattr(attempt, "UNTAKEN_SECONDS", 0.0)
    phases, states = [], []

    def refuse(*_: object) -> None:
        time.sleep(0.1)
        phases.append(world.control.phase)
        states.append(world.control.state()["last_failure"])
        raise error

    monkeypatch.setattr(world.jobs, "submit", refuse)
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.JOB_FAILED
    assert outcome.sentence.startswith("Ray did not take the job, and 3 attempts in a row")
    told = world.sentences("failure")
    assert len(told) == 3
    assert all(one.startswith(f"not_taken: the job has not begun: {said}") for one in told)
    assert phases == ["waiting for Ray to take the job"] * 3
    assert [state and state["in_vain"] for state in states] == [None, 1, 2]
    assert states[1]["to_do"].startswith("Read logs/head.log")


def test_a_stop_lets_the_job_save_and_ends_with_143(tmp_path: Path) -> None:
    def saves_when_stopped(world: World) -> JobInfo:
        world.inbox.put(StopAsked("SIGTERM"))
        assert world.jobs.stopped.wait(10)
        return ends(STOPPED, at_step=7)(world)

    world = World(tmp_path, saves_when_stopped)
    outcome = world.lives()
    assert outcome == Outcome("stopped", ExitCode.STOPPED, "step 7 is saved")
    assert world.kinds() == ["roll", "attempt", "stop"]


def test_a_stop_before_the_roll_is_complete_ends_with_143(tmp_path: Path) -> None:
    world = World(tmp_path, workers=1, minimum=1)
    world.later(0.3, lambda: world.inbox.put(StopAsked("SIGTERM")))
    assert world.lives().exit_code is ExitCode.STOPPED
    assert world.jobs.submitted == []


def test_a_stop_between_two_attempts_ends_with_143(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_stopped_meanwhile(failures: int, first: float) -> float:
        world.inbox.put(StopAsked("SIGTERM"))
        return 60.0

    monkeypatch.setattr(wait, "backoff", is_stopped_meanwhile)
    world = World(tmp_path, ends(DIED))
    assert world.lives().exit_code is ExitCode.STOPPED
    assert world.kinds()[-1] == "decision"


def test_a_hung_job_is_killed_after_every_node_has_kept_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def hangs(world: World) -> JobInfo:
        marks = {NODE_MARK: world.settings.node_mark, "ROLLCALL_ATTEMPT": "1"}
        driver = Process("driver", ["sleep", "60"], env={**os.environ, **marks}, log_to=None)
        assert driver.wait(10) == 137
        return JobInfo("FAILED", driver_exit_code=-9)

    world = World(tmp_path, hangs, ends(FINISHED), ROLLCALL_HANG_TIMEOUT="2s")
    world.run.logs.mkdir()
    monkeypatch.setattr(world.control, "ask_for_stacks", asked.append)
    assert world.lives().name == "finished"
    assert asked == [0, 1, 0]
    assert (world.run.logs / "stacks-attempt-1.txt").read_text()
    assert world.sentences("failure")[0].startswith("hang: nothing in the job's log for ")
    assert world.sentences("decision")[0].startswith("the job made no progress")
    (stop,) = world.sentences("stop")
    assert "stacks-attempt-1.txt" in stop


def test_a_hung_job_in_an_existing_ray_has_rays_own_time_to_end_before_ray_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "LATE_SECONDS", 0.3)

    def hangs(world: World) -> JobInfo:
        assert world.jobs.stopped.wait(20)
        time.sleep(1.5)  # Ray waits for ROLLCALL_GRACE_SECONDS before SIGKILL
        return STOPPED

    world = World(
        tmp_path,
        hangs,
        ends(FINISHED),
        ROLLCALL_HANG_TIMEOUT="1s",
        ROLLCALL_GRACE_SECONDS="10",
    )
    world.context.settings = replace(world.settings, ray_address="http://127.0.0.1:9")
    world.run.logs.mkdir()
    assert world.lives().name == "finished"
    assert world.sentences("failure")[0].startswith("hang: ")
    assert world.revived == 0  # Ray answers: it is not restarted


def test_a_job_that_does_not_go_on_from_its_checkpoint_is_named_and_stopped(
    tmp_path: Path,
) -> None:
    def starts_over(world: World) -> JobInfo:
        ends(DIED, at_step=1)(world)
        assert world.jobs.stopped.wait(10)
        return STOPPED

    world = World(tmp_path, ends(DIED, at_step=40), starts_over)
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.JOB_FAILED
    assert world.sentences("failure")[1] == (
        "wrong_start: it was to go on after step 40, and its first step was step 1"
    )


def test_a_worker_that_is_taken_away_lets_the_job_save_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    def saves_for_the_worker(world: World) -> JobInfo:
        assert ControlClient("127.0.0.1", world.port, TOKEN).leave("a", "SIGTERM")
        assert world.jobs.stopped.wait(10)
        world.later(0.3, lambda: world.check_in("b", "127.0.0.4"))
        return ends(STOPPED, at_step=7)(world)

    world = World(tmp_path, saves_for_the_worker, ends(FINISHED), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().name == "finished"
    assert world.sentences("failure") == ["node_lost: a leaves: SIGTERM"]
    assert world.sentences("decision") == ["a node was lost: resuming from step 7"]
    assert [roll["details"]["present"] for roll in world.journal.events("roll")] == [["a"], ["b"]]


def test_a_worker_that_left_before_the_attempt_does_not_end_it(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED))
    world.inbox.put(WorkerLeaves("a", "SIGTERM"))
    assert world.lives().name == "finished"
    assert world.kinds() == ["roll", "attempt"]


def test_a_worker_that_dies_with_the_job_is_named_in_the_failure(tmp_path: Path) -> None:
    def loses_a_worker(world: World) -> JobInfo:
        with world.control._registry._lock:
            world.control._registry._entries["a"].hung_up = True
        world.later(0.3, lambda: world.check_in("a", "127.0.0.3"))
        return DIED

    world = World(tmp_path, loses_a_worker, ends(FINISHED), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().name == "finished"
    (failure,) = world.journal.events("failure")
    assert failure["details"]["failure"] == "node_lost"
    assert "a has been silent" in failure["details"]["lost_nodes"][0]


def test_a_worker_whose_gpu_failed_is_sent_away_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    line = "\x1b[36m(PolicyActor pid=7, ip=127.0.0.3)\x1b[0m CUDA error: uncorrectable ECC error"
    refused: list[str] = []

    def comes_back_and_is_replaced() -> None:
        with pytest.raises(RefusedError, match="a GPU of a failed") as refusal:
            world.check_in("a", "127.0.0.3")
        refused.append(str(refusal.value))
        world.check_in("a", "127.0.0.4")

    def fails(world: World) -> JobInfo:
        world.later(0.3, comes_back_and_is_replaced)
        return ends(DIED, at_step=3, says=[line])(world)

    world = World(tmp_path, fails, ends(FINISHED), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().name == "finished"
    assert refused
    (failure,) = world.journal.events("failure")
    assert failure["details"]["failure"] == "gpu_fault"
    assert failure["sentence"] == "gpu_fault: CUDA error: uncorrectable ECC error"
    (decision,) = world.journal.events("decision")
    assert decision["details"]["answer"] == "replace"


def test_a_full_run_directory_is_waited_for_before_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = iter((OSError(28, "No space left on device"), OSError(28, "full"), None))

    def write(path: Path, text: str) -> None:
        if error := next(disk):
            raise error
        path.write_text(text)

    monkeypatch.setattr(supervisor, "write_atomically", write)
    full = ends(DIED, at_step=3, says=["OSError: [Errno 28] No space left on device"])
    world = World(tmp_path, full, ends(FINISHED))
    assert world.lives().name == "finished"
    assert next(disk, "empty") == "empty"
    assert world.sentences("decision") == ["storage failed: resuming from step 3"]


def test_a_run_directory_that_never_takes_a_write_again_ends_with_73(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, text: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(supervisor, "write_atomically", write)
    readonly = ends(DIED, says=["OSError: [Errno 30] Read-only file system: 'x'"])
    world = World(tmp_path, readonly, ROLLCALL_REWARD_TIMEOUT="0.3s")
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.RUN_DIR
    assert "Read-only file system" in outcome.sentence


def test_a_head_that_comes_after_another_goes_on_counting(tmp_path: Path) -> None:
    Journal(RunFiles(tmp_path).journal, "head").record("attempt", "attempt 1 starts")
    world = World(tmp_path, ends(FINISHED))
    world.lives()
    assert world.jobs.submitted[0]["ROLLCALL_ATTEMPT"] == "2"
    assert world.jobs.ids == ["rollcall-first-2"]


def test_a_scripted_job_has_the_interface_of_the_real_one() -> None:
    for name in ("submit", "follow", "info", "stop"):
        real = signature(getattr(JobClient, name)).parameters
        assert list(signature(getattr(ScriptedJobs, name)).parameters) == list(real)
