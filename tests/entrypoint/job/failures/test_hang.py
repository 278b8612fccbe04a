"""When a silent run counts as hung."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from contract.progress import Phase, Progress
from entrypoint.config.durations import SHORTEST_HANG
from entrypoint.config.read import read_settings
from entrypoint.job import attempt
from entrypoint.job.failures import hang
from entrypoint.job.failures.hang import (
    COMPUTING_SECONDS,
    KNOWN_STARTS,
    START_SECONDS,
    HangWatch,
    given_timeout,
    limit,
    start_seconds,
)
from entrypoint.job.ray_jobs import JobInfo
from tests.support.flight_events import Clock
from tests.support.world import FINISHED, STOPPED, World, ends

PARTS = ("generate", "reward", "forward", "update", "publish", "step")


class Run:
    """A run as its watch sees it, on a clock that is set by hand."""

    def __init__(
        self,
        timeout: float | None = None,
        service_outage: float = 0.0,
        *,
        tells_phases: bool = True,
    ) -> None:
        self.now = 0.0
        self.lines = 0
        self.watch = HangWatch(
            timeout, service_outage, clock=lambda: self.now, tells_phases=tells_phases
        )
        self.progress: Progress | None = None
        self.phase: Phase | None = None
        self.watch.begin()

    def after(self, seconds: float) -> str | None:
        self.now += seconds
        return self.watch.look(self.progress, self.phase, self.lines)

    def step(self, number: int) -> None:
        self.progress = Progress(
            step=number, total_steps=99, samples=0, attempt=1, reward=0, reward_first=0
        )

    def parts(self, steps: int, seconds: float) -> None:
        """So many steps, each of whose parts takes so long."""
        self.after(0)
        for number in range(1, steps + 1):
            for part in PARTS:
                self.phase = Phase(1, number, part)
                if part == "step":
                    self.step(number)
                assert self.after(seconds) is None

    def silence(self, longest: float = 10_000) -> tuple[float, str]:
        """How long it can be silent, to the second, and what is said then."""
        for second in range(1, int(longest)):
            if told := self.after(1):
                return second, told
        raise AssertionError(f"no hang within {longest} s")


@pytest.mark.parametrize("debugger", ["1", "post-mortem"])
def test_a_job_that_waits_in_a_debugger_does_not_hang_unless_the_user_says_when(
    debugger: str,
) -> None:
    run = Run(given_timeout(read_settings({"DEBUG_RAY": debugger})))
    run.parts(steps=20, seconds=1.0)
    assert run.after(100_000) is None
    told = {"DEBUG_RAY": debugger, "ROLLCALL_HANG_TIMEOUT": "30s"}
    assert given_timeout(read_settings(told)) == 30
    assert given_timeout(read_settings({})) is None


def test_a_job_may_take_half_an_hour_until_its_first_sign_of_life() -> None:
    seconds, told = Run().silence()
    assert seconds == START_SECONDS + 1
    assert told == "nothing from the job for 30 min 1 s"


def test_without_phases_twenty_median_steps_are_a_hang_but_at_least_ten_minutes() -> None:
    run = Run()
    run.after(0)
    for number in range(1, 4):
        run.step(number)
        assert run.after(60) is None
    assert run.silence()[0] == pytest.approx(20 * 60, abs=61)
    assert limit("step", [1.0] * 50) == SHORTEST_HANG


def test_of_a_command_that_tells_no_steps_only_the_user_can_say_what_a_hang_is() -> None:
    untold = Run(tells_phases=False)
    assert untold.after(100_000) is None
    told = Run(timeout=900, tells_phases=False)
    for _ in range(10):
        told.lines += 1
        assert told.after(800) is None
    assert told.silence() == (901, "nothing in the job's log for 15 min 1 s")


def test_of_a_command_that_tells_steps_a_hang_is_judged_once_one_was_seen() -> None:
    run = Run(tells_phases=False)
    run.after(0)
    run.lines = 1
    assert run.after(5_000) is None
    run.step(1)
    assert run.after(5_000) is None
    assert run.silence(300_000)[0] > 3 * 10_000
    run.watch.begin()  # what was learned outlives an attempt
    run.after(0)
    assert "nothing since the start" in run.silence(300_000)[1]


def test_a_command_that_starts_again_may_take_as_long_as_a_start() -> None:
    """Its step of the attempt before is not a sign of life: models are loaded, from a slow disk."""
    run = Run(tells_phases=False)
    run.after(0)
    for number in range(1, 100):  # more than the watch keeps
        run.step(number)
        assert run.after(10) is None
    run.watch.begin()
    run.after(0)
    seconds, told = run.silence()
    assert seconds == START_SECONDS + 1
    assert told == "nothing since the start for 30 min 1 s, which took at most 10 s before"
    run.watch.begin()
    run.after(0)
    run.step(100)
    assert run.after(20) is None
    assert run.silence()[0] == SHORTEST_HANG + 1, "from its first step on, steps count"


def test_a_command_whose_start_was_long_before_may_be_as_long_again() -> None:
    run = Run(tells_phases=False)
    run.after(0)
    run.step(1)
    assert run.after(3_000) is None
    for number in range(2, 100):
        run.step(number)
        assert run.after(10) is None
    run.watch.begin()
    run.after(0)
    assert run.silence()[0] == 3 * 3_000 + 1


def test_a_command_whose_last_starts_were_short_hangs_in_its_start_after_ten_minutes() -> None:
    run = Run(tells_phases=False)
    for number in range(1, KNOWN_STARTS + 1):
        run.watch.begin()
        run.after(0)
        assert run.after(1_200 if number < KNOWN_STARTS else 20) is None
        run.step(number)
        assert run.after(10) is None
    run.watch.begin()
    run.after(0)
    assert run.silence()[0] == 3 * 1_210 + 1, "the longest start counts all the same"
    known = HangWatch(None, clock=lambda: run.now, tells_phases=False, starts=[20.0, 30.0, 9.0])
    known.look(run.progress, None)
    run.watch = known
    seconds, told = run.silence()
    assert seconds == SHORTEST_HANG + 1
    assert told == "nothing since the start for 10 min 1 s, which took at most 30 s before"


def test_a_part_that_only_computes_hangs_after_two_minutes_once_its_length_is_known() -> None:
    run = Run()
    run.parts(20, seconds=1)
    run.phase = Phase(1, 21, "generate")
    run.after(1)
    run.phase = Phase(1, 21, "reward")
    seconds, told = run.silence()
    assert seconds == COMPUTING_SECONDS + 2
    assert told == "nothing after 'reward' of step 21 for 2 min 1 s, which took at most 1 s before"


def test_a_part_that_waits_for_a_service_may_be_silent_for_longer_than_the_outage() -> None:
    run = Run(service_outage=3600)
    run.parts(20, seconds=1)
    run.phase = Phase(1, 21, "generate")  # the rewards follow
    assert run.silence()[0] > 3600


def test_a_repair_may_take_as_long_as_a_start() -> None:
    assert limit("repair", [5.0] * 20) == START_SECONDS


def test_a_restore_lives_while_bytes_arrive_and_may_then_be_as_silent_as_a_start() -> None:
    run = Run()
    run.after(0)
    for count in range(1, 1000):
        run.phase = Phase(1, 20, "restore", count)
        assert run.after(10) is None
    assert run.silence()[0] == START_SECONDS + 1


def test_one_long_part_of_many_is_no_hang_when_it_comes_again() -> None:
    gaps = [2.0] * 49 + [300.0]
    assert limit("forward", gaps) == 900


def test_what_was_learned_outlives_the_attempt_but_not_its_silence() -> None:
    run = Run()
    run.parts(20, seconds=1)
    run.now += 5000  # between two attempts
    run.watch.begin()
    run.phase = None
    assert run.after(1) is None
    run.phase = Phase(2, 21, "reward")
    assert run.silence()[0] == COMPUTING_SECONDS + 2


def test_a_given_time_counts_steps_alone() -> None:
    run = Run(timeout=30)
    run.parts(3, seconds=1)
    for _ in range(30):
        run.phase = Phase(1, 9, PARTS[int(run.now) % 5])
        run.after(1)
    assert run.after(1) == "no step for 31 s"


def test_the_journal_tells_how_long_the_starts_of_a_command_took() -> None:
    journal = Clock()
    journal.then(10, "attempt", 1, command="ours", resume_from=0)
    journal.then(600, "resume", 1, step=0)
    journal.steps(1, 1, 2, 3)
    journal.then(10, "attempt", 2, command="ours", resume_from=3)
    journal.then(10, "failure", 2, failure="crash")  # it told no step
    journal.then(10, "attempt", 3, command="another", resume_from=3)
    journal.steps(3, 4, seconds=7_000)
    journal.then(10, "attempt", 4, command="ours", resume_from=3)
    journal.steps(4, 4, seconds=900)
    assert start_seconds(journal.rows, "ours") == [600, 900]


def test_a_head_that_restarts_watches_the_first_start_of_a_program_that_told_steps_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "START_SECONDS", 1.0)
    monkeypatch.setattr(hang, "SHORTEST_HANG", 1.0)
    assert World(tmp_path, ends(FINISHED, at_step=3)).lives().name == "finished"

    def hangs(world: World) -> JobInfo:
        assert world.jobs.stopped.wait(60)
        return STOPPED

    world = World(tmp_path, hangs, ends(FINISHED, at_step=4), ROLLCALL_REWARD_TIMEOUT="1s")
    world.run.logs.mkdir(exist_ok=True)
    assert world.lives().name == "finished"
    assert world.sentences("failure")[0].startswith("hang: nothing since the start for ")


def test_time_in_which_the_head_was_frozen_is_no_silence_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, look = threading.Event(), attempt.Attempt._look_for_kills

    def freezes(self: attempt.Attempt) -> None:
        if not frozen.is_set():
            time.sleep(4)
            frozen.set()
        look(self)

    def goes_on(world: World) -> JobInfo:
        assert frozen.wait(60)
        return STOPPED if world.jobs.stopped.wait(1) else ends(FINISHED, at_step=3)(world)

    monkeypatch.setattr(hang, "FROZEN_SECONDS", 1.0)
    monkeypatch.setattr(attempt.Attempt, "_look_for_kills", freezes)
    world = World(tmp_path, goes_on, ends(FINISHED), ROLLCALL_HANG_TIMEOUT="3s")
    assert world.lives().name == "finished"
    assert world.sentences("failure") == []
