"""A machine that is about to be taken away says so: by a signal, or by a file that appears."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from contract.exit_codes import ExitCode
from contract.files import notice
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.node.member import Member
from entrypoint.node.way_in import WayIn
from entrypoint.processes import inbox as inboxes
from entrypoint.processes.inbox import (
    STOPPING,
    HeadLost,
    HeadSaid,
    Inbox,
    Message,
    StacksAsked,
    StopAsked,
)
from tests.support.control import TOKEN
from tests.support.hurried import hurried
from tests.support.other_user import as_nobody
from tests.support.waiting_worker import environment, worker_that_waits
from tests.support.world import STOPPED, World, ends


def test_a_file_that_appears_is_a_request_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "FILE_POLL_SECONDS", 0.05)
    inbox, path = Inbox(), tmp_path / "preempted"
    inbox.listen_to_file(path)
    assert inbox.take(timeout=0.1) is None
    path.touch()
    message = inbox.take(timeout=5)
    assert message == StopAsked(f"{path} is there (ROLLCALL_PREEMPT_FILE)")
    assert inbox.stop.is_set()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in which every user may make files, as in /tmp."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o1777)
        yield Path(directory)


@pytest.mark.parametrize("kind", ["theirs", "linked", "hard-linked", "directory"])
def test_a_file_of_another_user_is_not_heeded_and_is_named_once(
    kind: str, shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inboxes, "FILE_POLL_SECONDS", 0.02)
    inbox, path, ours = Inbox(), shared / "preempted", shared / "ours"
    ours.touch()
    acts: dict[str, Callable[[], object]] = {
        "theirs": lambda: as_nobody(path.touch),
        "linked": lambda: as_nobody(lambda: path.symlink_to(ours)),
        "hard-linked": lambda: path.hardlink_to(ours),
        "directory": path.mkdir,
    }
    acts[kind]()
    inbox.listen_to_file(path)
    assert inbox.take(timeout=0.2) is None
    (said,) = caplog.messages
    assert said.startswith(f"{path} is there, and is not heeded: ")
    path.rmdir() if path.is_dir() else path.unlink()
    path.touch()
    assert isinstance(inbox.take(timeout=5), StopAsked)


def test_a_place_for_the_file_that_is_missing_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "notice" / "preempted"
    assert notice.unusable(path) == ""
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert notice.unusable(Path("/proc/none/preempted")) == ""  # it may appear later
    path.parent.chmod(0o777)
    assert "other users can replace" in notice.unusable(path)


def test_a_device_as_the_file_ends_the_start_with_64(tmp_path: Path) -> None:
    """A node would stop at once, each time."""
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint"],
        env=environment(tmp_path) | {"ROLLCALL_PREEMPT_FILE": "/dev/null"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 64
    assert "ROLLCALL_PREEMPT_FILE='/dev/null' is there, and is not a regular file" in done.stderr


@pytest.fixture
def _handlers_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


@pytest.mark.usefixtures("_handlers_put_back")
def test_what_batch_systems_send_before_the_end_is_a_request_to_stop() -> None:
    inbox = Inbox()
    inbox.listen_to_signals()
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
    for number in map(signal.Signals.__getitem__, names):
        assert signal.getsignal(number) is not signal.SIG_DFL, number
        os.kill(os.getpid(), number)
        assert inbox.take(timeout=5) == StopAsked(number.name)


def test_a_node_whose_file_appears_ends_with_143(tmp_path: Path) -> None:
    path = tmp_path / "preempted"
    with worker_that_waits(tmp_path, ROLLCALL_PREEMPT_FILE=str(path)) as node:
        path.touch()
        assert node.wait(10) == 143
        assert node.stdout is not None
        said = f"{path} is there (ROLLCALL_PREEMPT_FILE): asked to stop while waiting for the head"
        assert said in node.stdout.read()


def test_a_run_that_is_stopped_before_its_first_attempt_says_by_what(tmp_path: Path) -> None:
    """A file of an earlier preemption would end each new start without a word."""
    world = World(tmp_path, workers=1)
    world.later(0.1, lambda: world.inbox.put(StopAsked("/spot is there (ROLLCALL_PREEMPT_FILE)")))
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.STOPPED
    assert outcome.sentence == (
        "/spot is there (ROLLCALL_PREEMPT_FILE): asked to stop while waiting for the roll"
    )


class Head:
    """What a worker that leaves meets."""

    def __init__(self, inbox: Inbox, answers: tuple[Message, ...], *, hears: bool = True) -> None:
        self._inbox = inbox
        self._answers = answers
        self._hears = hears

    def leave(self, node: str, why: str) -> bool:
        for answer in self._answers:
            self._inbox.put(answer)
        return self._hears


def left(*answers: Message, hears: bool = True, grace: float = 0.3) -> tuple[Message, float]:
    """How a worker that was told to stop ends, and after how long."""
    settings = hurried(
        {"RAY_WORKER": "1", "HEAD_POD_ID": "abc", "ROLLCALL_GRACE_SECONDS": f"{grace}s"}
    )
    inbox = Inbox()
    head = cast(ControlClient, Head(inbox, answers, hears=hears))
    info = NodeInfo(node="a", address="10.0.0.2", versions={})
    member = Member(settings, inbox, WayIn("head", head, info, "first", None), "token")
    began = time.monotonic()
    return member._leave(StopAsked("SIGTERM")), time.monotonic() - began


def test_a_worker_leaves_as_soon_as_the_head_lets_it_go() -> None:
    message, seconds = left(HeadLost("the head was started again"), grace=20)
    assert message == StopAsked("SIGTERM")
    assert seconds < 10


def test_a_worker_whose_run_ends_meanwhile_ends_with_its_outcome() -> None:
    assert left(HeadSaid("stopped", 143), grace=20)[0] == HeadSaid("stopped", 143)


def test_a_worker_that_is_told_twice_still_lets_the_job_save() -> None:
    told = (StopAsked("SIGUSR1"), StacksAsked(1), HeadSaid("stopped", 143))
    assert left(*told, grace=20)[0] == HeadSaid("stopped", 143)
    assert left(StopAsked("SIGUSR1"))[1] > 0.25


def test_a_worker_waits_no_longer_than_its_grace() -> None:
    message, seconds = left()
    assert message == StopAsked("SIGTERM")
    assert 0.25 < seconds < 3


def test_a_worker_whose_head_does_not_hear_leaves_at_once() -> None:
    message, seconds = left(hears=False, grace=20)
    assert message == StopAsked("SIGTERM")
    assert seconds < 10


def test_a_stop_counts_more_than_the_worker_that_the_job_was_already_stopped_for(
    tmp_path: Path,
) -> None:
    def stopped_twice(world: World) -> JobInfo:
        assert ControlClient("127.0.0.1", world.port, TOKEN).leave("a", "SIGTERM")
        assert world.jobs.stopped.wait(10)
        world.inbox.put(StopAsked("SIGTERM"))
        time.sleep(1)
        return ends(STOPPED, at_step=7)(world)

    world = World(tmp_path, stopped_twice, workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().exit_code is ExitCode.STOPPED
    assert world.kinds() == ["roll", "attempt", "stop", "stop"]
