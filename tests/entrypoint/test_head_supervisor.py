"""The head's decisions over a whole run: real control port and journal, a scripted job runner."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path

import pytest

from entrypoint import wait
from entrypoint.control import Control
from entrypoint.head_client import HeadClient
from entrypoint.inbox import Inbox, RayEnded, StopAsked
from entrypoint.job import JobClient, JobInfo, JobRefusedError
from entrypoint.journal import Journal
from entrypoint.recipes.command import RECIPE
from entrypoint.roll import Card
from entrypoint.services import Services
from entrypoint.settings import Settings
from entrypoint.supervisor import Outcome, Supervisor
from trainer.contract import ExitCode, Progress, RunFiles

TOKEN = "correct-horse-battery"
FINISHED = JobInfo("SUCCEEDED", driver_exit_code=0)
DIED = JobInfo("FAILED", "Job failed\nValueError: broken", driver_exit_code=1)
STOPPED = JobInfo("STOPPED", driver_exit_code=143)

Act = Callable[["World"], JobInfo]
"""What a job does before it ends, and how it ends."""


class ScriptedJobs:
    """Behind JobClient's interface: submission number n does what the n-th act says."""

    def __init__(self, world: World, acts: Sequence[Act]) -> None:
        self._world = world
        self._acts = list(acts)
        self._ending: JobInfo | None = None
        self.submitted: list[Mapping[str, str]] = []
        self.ids: list[str] = []
        self.stopped = threading.Event()

    def submit(
        self,
        submission_id: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        stop: threading.Event,
    ) -> None:
        if stop.is_set():
            raise wait.InterruptedWaitError("asked to stop")
        self.ids.append(submission_id)
        self.submitted.append(env)
        self.stopped.clear()
        self._ending = None

    def follow(
        self,
        submission_id: str,
        log_to: Path,
        tell: Callable[[str], None],
        lost: threading.Event,
    ) -> None:
        self._ending = self._acts.pop(0)(self._world)

    def info(self, submission_id: str) -> JobInfo:
        return self._ending or JobInfo("RUNNING")

    def stop(self, submission_id: str) -> None:
        self.stopped.set()


class World:
    """A head on loopback with everything but Ray; Ray's nodes are a set of addresses."""

    def __init__(self, root: Path, *acts: Act, workers: int = 0, minimum: int = 0, **env: str):
        self.run = RunFiles(root)
        self.settings = Settings.read(
            {"ROLLCALL_RUN_DIR": str(root), "ROLLCALL_RECIPE": "command", **env}, ["true"]
        )
        self.journal = Journal(self.run.journal, "head")
        self.inbox = Inbox()
        self.nodes = {"127.0.0.2"}
        self.revived = 0
        self._lives = False
        self._timers: list[threading.Timer] = []
        self.when_revived: Callable[[], None] = lambda: None
        self.jobs = ScriptedJobs(self, acts)
        self.port = free_port()
        self.control = Control(
            me=Card(node="head", address="127.0.0.2", versions={}),
            expected_workers=workers,
            incarnation="first",
            run=self.run,
            token=TOKEN,
            port=self.port,
            on_stop=print,
            on_check_in=lambda card, refusal: None,
        )
        self.supervisor = Supervisor(
            self.settings,
            RECIPE,
            self.journal,
            self.control,
            Services(self.settings, is_head=True, env={}, tell=print),
            self,
            self.jobs,  # type: ignore[arg-type]
            self.inbox,
            minimum=minimum,
        )

    def alive(self) -> set[str]:
        return self.nodes

    def revive(self) -> None:
        self.revived += 1
        self.later(0.3, self.when_revived)

    def lives(self) -> Outcome:
        with self.control:
            wait.until(
                "the control port",
                lambda: wait.connect("127.0.0.1", self.port),
                timeout=10,
                stop=threading.Event(),
            )
            self._lives = True
            for timer in self._timers:
                timer.start()
            return self.supervisor.run()

    def check_in(
        self, name: str, address: str, *, joined: bool = True, seen_by_ray: bool = True
    ) -> None:
        card = Card(node=name, address=address, versions={})
        HeadClient("127.0.0.1", self.port, TOKEN).check_in(card, joined=joined)
        if joined and seen_by_ray:
            self.nodes.add(address)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Once it lives, or where it does already, so many seconds from now."""
        timer = threading.Timer(seconds, call)
        if self._lives:
            timer.start()
        else:
            self._timers.append(timer)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.journal.events()]

    def sentences(self, kind: str) -> list[str]:
        return [event["sentence"] for event in self.journal.events(kind)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "backoff", lambda failures: 0.01 * failures)


def ends(info: JobInfo, *, at_step: int | None = None) -> Act:
    """A job that makes progress to `at_step`, saves there, and ends."""

    def act(world: World) -> JobInfo:
        if at_step is not None:
            progress = Progress(
                step=at_step,
                total_steps=100,
                samples=at_step,
                attempt=1,
                reward=0.0,
                reward_first=0.0,
                checkpoint=at_step,
            )
            progress.write(world.run.progress)
        return info

    return act


def test_a_run_that_finishes_is_one_attempt(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED, at_step=100))
    assert world.lives() == Outcome("finished", ExitCode.FINISHED, "the job has finished")
    assert world.kinds() == ["roll", "attempt"]
    assert world.jobs.submitted[0]["ROLLCALL_ATTEMPT"] == "1"


def test_a_job_that_dies_is_resumed_from_its_newest_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, ends(DIED, at_step=40), ends(FINISHED, at_step=100))
    assert world.lives().name == "finished"
    assert world.kinds() == ["roll", "attempt", "failure", "decision", "roll", "attempt"]
    assert world.sentences("failure") == ["unknown: ValueError: broken"]
    assert world.sentences("decision") == ["the job died: resuming from step 40"]
    first, second = world.jobs.submitted
    assert "ROLLCALL_RESUME_FROM" not in first
    assert (second["ROLLCALL_RESUME_FROM"], second["ROLLCALL_ATTEMPT"]) == ("40", "2")
    assert len(set(world.jobs.ids)) == 2


def test_attempts_without_progress_exhaust_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path, *[ends(DIED)] * 5, ROLLCALL_MAX_RESTARTS="2")
    outcome = world.lives()
    assert (outcome.name, outcome.exit_code) == ("failed", ExitCode.JOB_FAILED)
    assert "3 attempts in a row brought no new step" in outcome.sentence
    assert len(world.jobs.submitted) == 3


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


def test_a_killed_driver_is_named_by_its_signal(tmp_path: Path) -> None:
    killed = JobInfo("FAILED", "last available logs:\n  warnings.warn(", driver_exit_code=-9)
    world = World(tmp_path, ends(killed), ends(FINISHED))
    world.lives()
    assert world.sentences("failure") == ["unknown: the driver was ended by signal 9 (Killed)"]


def test_a_job_that_ray_refuses_counts_as_a_failed_attempt(tmp_path: Path) -> None:
    world = World(tmp_path, ROLLCALL_MAX_RESTARTS="0")

    def refuse(*_: object) -> None:
        raise JobRefusedError("TypeError: no such thing")

    world.jobs.submit = refuse  # type: ignore[assignment,method-assign]
    assert world.lives().exit_code is ExitCode.JOB_FAILED
    assert world.sentences("failure") == ["unknown: TypeError: no such thing"]


def test_the_job_waits_for_every_worker_and_for_ray_to_see_them(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED), workers=2)
    world.later(0.2, lambda: world.check_in("a", "127.0.0.3"))
    world.later(0.4, lambda: world.check_in("b", "127.0.0.4", joined=False))
    world.later(0.8, lambda: world.check_in("b", "127.0.0.4"))
    assert world.lives().name == "finished"
    (roll,) = world.journal.events("roll")
    assert roll["details"]["present"] == ["a", "b"]


def test_a_worker_that_says_it_joined_but_that_ray_does_not_see_is_waited_for(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, ends(FINISHED), workers=1, ROLLCALL_ROLL_TIMEOUT="1s", minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3", seen_by_ray=False))
    began = time.monotonic()
    world.lives()
    assert time.monotonic() - began > 1


def test_an_incomplete_roll_ends_with_69_and_names_who_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path, workers=3, minimum=3, ROLLCALL_ROLL_TIMEOUT="1s")
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    world.later(0.1, lambda: world.check_in("b", "127.0.0.4", joined=False))
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.UNREACHABLE
    assert "1 of 3 workers are there" in outcome.sentence
    assert "b has checked in and is starting Ray" in outcome.sentence
    assert "1 worker never checked in" in outcome.sentence
    assert world.jobs.submitted == []


def test_enough_workers_start_the_job_at_the_deadline(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED), workers=2, minimum=1, ROLLCALL_ROLL_TIMEOUT="1s")
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().name == "finished"
    assert "1 worker never checked in" in world.sentences("roll")[0]


def test_a_stop_lets_the_job_save_and_ends_with_143(tmp_path: Path) -> None:
    def saves_when_stopped(world: World) -> JobInfo:
        world.inbox.put(StopAsked("SIGTERM"))
        assert world.jobs.stopped.wait(10)
        return ends(STOPPED, at_step=7)(world)

    world = World(tmp_path, saves_when_stopped)
    outcome = world.lives()
    assert outcome == Outcome("stopped", ExitCode.STOPPED, "stopped; step 7 is saved")
    assert world.kinds() == ["roll", "attempt", "stop"]


def test_a_stop_before_the_roll_is_complete_ends_with_143(tmp_path: Path) -> None:
    world = World(tmp_path, workers=1, minimum=1)
    world.later(0.3, lambda: world.inbox.put(StopAsked("SIGTERM")))
    assert world.lives().exit_code is ExitCode.STOPPED
    assert world.jobs.submitted == []


def test_a_stop_between_two_attempts_ends_with_143(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "backoff", lambda failures: 60.0)
    world = World(tmp_path, ends(DIED))
    world.later(0.8, lambda: world.inbox.put(StopAsked("SIGTERM")))
    assert world.lives().exit_code is ExitCode.STOPPED
    assert world.kinds()[-1] == "decision"


def test_a_job_without_progress_is_stopped_as_hung_and_resumed(tmp_path: Path) -> None:
    def hangs(world: World) -> JobInfo:
        assert world.jobs.stopped.wait(10)
        return STOPPED

    world = World(tmp_path, hangs, ends(FINISHED), ROLLCALL_HANG_TIMEOUT="1s")
    assert world.lives().name == "finished"
    assert world.sentences("decision")[0].startswith("the job made no progress")


def test_when_ray_dies_under_the_job_it_is_revived_and_the_workers_join_again(
    tmp_path: Path,
) -> None:
    def loses_ray(world: World) -> JobInfo:
        world.inbox.put(RayEnded(1))
        time.sleep(1)
        return JobInfo("RUNNING")

    world = World(tmp_path, loses_ray, ends(FINISHED), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))

    world.when_revived = lambda: world.check_in("a", "127.0.0.3")
    assert world.lives().name == "finished"
    assert world.revived == 1
    assert world.control.incarnation != "first"
    assert world.sentences("failure") == ["node_lost: Ray on the head ended"]
    assert world.kinds().count("roll") == 2


def test_a_worker_that_dies_with_the_job_is_named_in_the_failure(tmp_path: Path) -> None:
    def loses_a_worker(world: World) -> JobInfo:
        with world.control._lock:
            world.control._entries["a"].hung_up = True
        world.later(0.3, lambda: world.check_in("a", "127.0.0.3"))
        return DIED

    world = World(tmp_path, loses_a_worker, ends(FINISHED), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().name == "finished"
    (failure,) = world.journal.events("failure")
    assert failure["details"]["failure"] == "node_lost"
    assert "a has been silent" in failure["details"]["lost_nodes"][0]


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
