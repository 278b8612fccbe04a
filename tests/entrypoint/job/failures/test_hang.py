"""When a silent run is hung, where it stood then, and whether a new attempt begins rightly."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract.progress import PHASE_BYTES, Phase, PhaseFile, Progress
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.failures import resume_check
from entrypoint.job.failures.hang import (
    COMPUTING_SECONDS,
    SHORTEST_SECONDS,
    START_SECONDS,
    HangWatch,
    given_timeout,
    limit,
)
from entrypoint.processes import process, stacks
from entrypoint.processes.process import Process
from entrypoint.processes.programs import beside_interpreter

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
    assert told == "nothing from the job for 1801 s"


def test_without_phases_twenty_median_steps_are_a_hang_but_at_least_ten_minutes() -> None:
    run = Run()
    run.after(0)
    for number in range(1, 4):
        run.step(number)
        assert run.after(60) is None
    assert run.silence()[0] == pytest.approx(20 * 60, abs=61)
    assert limit("step", [1.0] * 50) == SHORTEST_SECONDS


def test_of_a_command_that_tells_no_steps_only_the_user_can_say_what_a_hang_is() -> None:
    untold = Run(tells_phases=False)
    assert untold.after(100_000) is None
    told = Run(timeout=900, tells_phases=False)
    for _ in range(10):
        told.lines += 1
        assert told.after(800) is None
    assert told.silence() == (901, "nothing in the job's log for 901 s")


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
    assert "nothing after the last step" in run.silence(300_000)[1]


def test_a_part_that_only_computes_hangs_after_two_minutes_once_its_length_is_known() -> None:
    run = Run()
    run.parts(20, seconds=1)
    run.phase = Phase(1, 21, "generate")
    run.after(1)
    run.phase = Phase(1, 21, "reward")
    seconds, told = run.silence()
    assert seconds == COMPUTING_SECONDS + 2
    assert told == "nothing after 'reward' of step 21 for 121 s, which took at most 1.0 s before"


def test_a_part_that_waits_for_a_service_may_be_silent_for_longer_than_the_outage() -> None:
    run = Run(service_outage=3600)
    run.parts(20, seconds=1)
    run.phase = Phase(1, 21, "generate")  # the rewards follow
    assert run.silence()[0] > 3600


def test_a_repair_may_take_as_long_as_a_start() -> None:
    assert limit("repair", [5.0] * 20) == START_SECONDS


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


def test_a_phase_is_written_over_in_place_and_a_torn_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / ".phase"
    assert Phase.read(path) is None
    file = PhaseFile(path)
    for step in (9, 10, 123_456):
        file.write(Phase(3, step, "checkpoint"))
        assert Phase.read(path) == Phase(3, step, "checkpoint")
        assert path.stat().st_size == PHASE_BYTES
    file.close()
    path.write_text(path.read_text()[:20])
    assert Phase.read(path) is None


def test_a_phase_costs_no_more_than_a_tenth_of_a_millisecond(tmp_path: Path) -> None:
    file = PhaseFile(tmp_path / ".phase")
    rounds = []
    for _ in range(10):  # others run meanwhile: in the best of them this one was not interrupted
        began = time.perf_counter()
        for step in range(20):
            file.write(Phase(1, step, "generate"))
        rounds.append((time.perf_counter() - began) / 20)
    assert min(rounds) < 1e-4
    file.close()


def event(kind: str, step: int) -> dict[str, Any]:
    return {"kind": kind, "details": {"step": step}}


@pytest.mark.parametrize(
    ("resume_from", "events", "first", "told"),
    [
        (0, [], 1, None),
        (40, [], 43, None),  # no journal of its own; it is looked at now and then
        (40, [], 40, None),  # it says again where it is
        (40, [event("resume", 40), event("step", 41), event("step", 42)], 42, None),
        (40, [event("resume", 40)], 41, None),
        (40, [event("checkpoint-skipped", 40), event("resume", 30), event("step", 31)], 31, None),
        (0, [event("resume", 7), event("step", 8)], 8, None),  # from a directory of its own
        (40, [event("restore", 57), event("resume", 57), event("step", 58)], 58, None),
        (
            40,
            [event("restore", 56), event("resume", 57), event("step", 58)],
            58,
            "it was to go on after step 40, and went on after step 57",
        ),
        (40, [], 1, "it was to go on after step 40, and its first step was step 1"),
        (
            40,
            [event("resume", 0), event("step", 1)],
            1,
            "it was to go on after step 40, and went on after step 0",
        ),
        (
            40,
            [event("resume", 40), event("step", 1)],
            1,
            "it was to go on after step 40, and its first step was step 1",
        ),
        (
            40,
            [event("resume", 40), event("step", 43)],
            43,
            "it was to go on after step 40, and its first step was step 43",
        ),
    ],
)
def test_an_attempt_that_begins_elsewhere_than_at_its_checkpoint_is_named(
    resume_from: int, events: list[dict[str, Any]], first: int, told: str | None
) -> None:
    assert resume_check.mismatch(resume_from, events, first) == told


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[tuple[Settings, Process]]:
    """A node with one process that waits for ever, in a function of that name."""
    settings = read_settings(
        {
            "ROLLCALL_RUN_DIR": str(tmp_path),
            "ROLLCALL_NODE_NAME": f"stuck-{os.getpid()}",
            "ROLLCALL_RAY_TEMP_DIR": "/tmp/stacks",
        }
    )
    code = (
        "import time\n"
        "def waits_for_ever():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "waits_for_ever()"
    )
    env = {**os.environ, process.NODE_MARK: settings.node_mark}
    child = Process("stuck", [sys.executable, "-c", code], env=env, log_to=tmp_path / "said")
    while "ready" not in child.tail():
        time.sleep(0.02)
    yield settings, child
    child.stop(grace=0.1)


def test_the_stacks_of_a_nodes_processes_are_kept_or_why_they_cannot_be(
    stuck: tuple[Settings, Process], tmp_path: Path
) -> None:
    settings, child = stuck
    path = tmp_path / "stacks.txt"
    assert stacks.collect(settings, path) == 1
    text = path.read_text()
    assert f"=== {child.pid} {sys.executable} -c" in text
    if f"{beside_interpreter('py-spy')} cannot start" in text:
        assert "threads, in the kernel it waits in" in text
    else:
        assert "waits_for_ever (<string>:4)" in text


def test_a_frozen_process_is_read_too(stuck: tuple[Settings, Process], tmp_path: Path) -> None:
    settings, child = stuck
    psutil.Process(child.pid).suspend()
    stacks.collect(settings, tmp_path / "stacks.txt")
    text = (tmp_path / "stacks.txt").read_text()
    assert "waits_for_ever (<string>:4)" in text or "stopped, 1 threads" in text


@pytest.mark.parametrize(
    ("program", "asked"),
    [("_private/workers/default_worker.py", True), ("_private/log_monitor.py", False)],
)
def test_a_worker_of_rays_is_asked_even_without_a_title_and_a_helper_is_not(
    stuck: tuple[Settings, Process], tmp_path: Path, program: str, asked: bool
) -> None:
    settings, _ = stuck
    path = tmp_path / "site-packages" / "ray" / program
    path.parent.mkdir(parents=True)
    path.write_text("import time\ntime.sleep(60)")
    env = {**os.environ, process.NODE_MARK: settings.node_mark}
    child = Process("of Ray", [sys.executable, str(path)], env=env, log_to=tmp_path / "said too")
    try:
        assert (child.pid in [one.pid for one in stacks._of_the_job(settings)]) is asked
    finally:
        child.stop(grace=0.1)


def test_a_reader_of_stacks_that_hangs_itself_is_ended(
    stuck: tuple[Settings, Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = stuck
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "beside_interpreter", lambda _: str(program))
    monkeypatch.setattr(stacks, "EACH_SECONDS", 0.2)
    began = time.monotonic()
    assert stacks.collect(settings, tmp_path / "stacks.txt") == 1
    assert time.monotonic() - began < 10
    text = (tmp_path / "stacks.txt").read_text()
    assert "did not end within 0.2 s" in text
    assert "threads, in the kernel it waits in" in text
