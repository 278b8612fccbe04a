"""What the head meets beside a job that fails: nodes, a Ray, storage, which fail at odd moments."""

from __future__ import annotations

import errno
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.job import attempt
from entrypoint.job.failures.policy import Replace
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.node import ray_head
from entrypoint.node.ray_head import HeadRay
from entrypoint.node.ray_state import Alive
from entrypoint.processes.inbox import Inbox, RayEnded, StopAsked
from tests.support.control import TOKEN
from tests.support.waiting import eventually
from tests.support.world import DIED, FINISHED, STOPPED, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_worker_whose_memory_ran_out_is_named_and_so_is_what_happened(tmp_path: Path) -> None:
    def loses_a_rank(world: World) -> JobInfo:
        world.check_in("a", "127.0.0.3", oom_kills=8)
        line = "RuntimeError: Read error [10.0.0.2]:1: Connection reset by peer, gloo/transport"
        return ends(DIED, at_step=5, says=[line])(world)

    world = World(tmp_path, loses_a_rank, ends(FINISHED, at_step=9), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3", oom_kills=7))
    assert world.lives().name == "finished"
    told = "a was out of memory, and the kernel killed a process there"
    assert world.sentences("oom-kill") == [told]
    assert world.sentences("failure") == [f"host_oom: {told}"]
    (decision,) = world.sentences("decision")
    assert decision == (
        "out of memory (host_oom) on a: resuming from step 5 once; give the node more memory (for "
        "/dev/shm too), or have the job hold less on each node"
    )


def test_ray_that_ends_between_two_attempts_is_started_anew_and_costs_no_other(
    tmp_path: Path,
) -> None:
    def dies_before_ray(world: World) -> JobInfo:
        world.nodes.discard("127.0.0.3")
        world.control.new_incarnation()
        world.later(0.3, ray_ends)
        return ends(DIED, at_step=3)(world)

    def ray_ends() -> None:
        world.ray_ended = True
        world.inbox.put(RayEnded(1))

    world = World(tmp_path, dies_before_ray, ends(FINISHED, at_step=9), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    world.when_revived = lambda: world.check_in("a", "127.0.0.3")
    assert world.lives().name == "finished"
    assert world.revived == 1
    assert len(world.jobs.submitted) == 2
    assert world.sentences("ray") == ["Ray on the head ended: restarting Ray on all nodes"]


def test_ray_is_started_anew_also_where_a_worker_is_sent_away(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.rendezvous.recover(Replace("a GPU of a failed", "a"), 1, ray_lost=True)
    assert world.revived == 1


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeadRay:
    """Whose Ray knows a node of the name a."""
    known = [Alive("01ab", "a", "127.0.0.3")]
    monkeypatch.setattr(ray_head, "alive_nodes", lambda dashboard, token: known)
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_RECIPE": "command"})
    me = NodeInfo(node="head", address="127.0.0.2", versions={}, inventory={"gpus": 0})
    return HeadRay(settings, me, TOKEN, Inbox())


def test_a_log_that_storage_does_not_take_costs_the_word_to_ray_alone(
    cluster: HeadRay, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = RunFiles(tmp_path).logs
    logs.write_text("in the way of the directory")
    assert not cluster.mark_dead("a", "a asks to join again")
    (said,) = caplog.messages
    assert said.startswith("Ray does not learn that a asks to join again: ")
    assert str(logs) in said


def test_a_word_to_ray_whose_log_is_gone_is_missed_in_one_line(
    cluster: HeadRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    gone = f"import shutil, sys; shutil.rmtree({str(RunFiles(tmp_path).logs)!r}); sys.exit(1)"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{gone}"\n')
    program.chmod(0o755)
    monkeypatch.setattr("entrypoint.processes.programs.sys.executable", str(program))
    assert cluster.mark_dead("a", "a asks to join again")
    eventually(lambda: len(caplog.messages) == 1)
    assert caplog.messages[0].startswith("Ray does not learn that a asks to join again: [Errno 2]")


def test_a_job_whose_end_ray_never_tells_is_killed_and_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "LATE_SECONDS", 0.5)
    over = threading.Event()

    def never_ends(world: World) -> JobInfo:
        world.inbox.put(StopAsked("SIGTERM"))
        over.wait(20)
        return STOPPED

    world = World(tmp_path, never_ends, ROLLCALL_GRACE_SECONDS="1")
    begun = time.monotonic()
    assert world.lives().exit_code is ExitCode.STOPPED
    assert time.monotonic() - begun < 10
    over.set()
    assert world.sentences("stop")[1:] == ["the job has not ended for 1.5 s: killing it"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_that_cannot_be_followed_does_not_hide_the_end_of_the_job(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED))

    def breaks(*_: object) -> None:
        raise RuntimeError("not a line that anybody expected")

    monkey: Any = world.jobs
    monkey.follow = breaks
    assert world.lives().name == "finished"


def test_progress_that_cannot_be_read_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_stale(world: World) -> JobInfo:
        ends(FINISHED, at_step=3)(world)
        monkeypatch.setattr(Progress, "read", stale)
        time.sleep(0.7)
        monkeypatch.undo()
        return FINISHED

    def stale(path: Path) -> Progress:
        raise OSError(errno.ESTALE, "Stale file handle")

    assert World(tmp_path, goes_stale).lives().name == "finished"


def test_a_driver_that_ray_cannot_start_for_a_while_is_started_later_in_whatever_step(
    tmp_path: Path,
) -> None:
    full = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    no_fork = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    not_started = "JOB_ENTRYPOINT_COMMAND_START_ERROR"
    acts = (
        ends(JobInfo("FAILED", no_fork, not_started)),
        ends(DIED, at_step=120),
        ends(JobInfo("FAILED", full, not_started)),
        ends(JobInfo("FAILED", "runtime_env setup failed: no", "RUNTIME_ENV_SETUP_FAILURE")),
        ends(FINISHED, at_step=121),
    )
    world = World(tmp_path, *acts)
    assert world.lives().name == "finished"
    assert world.sentences("failure") == [
        f"unknown: {no_fork}",
        "unknown: RuntimeError: broken",
        "storage: OSError: [Errno 28] No space left on device",
        "unknown: runtime_env setup failed: no",
    ]
