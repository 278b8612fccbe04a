"""The copy of the driver's output: real files, and processes that write to them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract import log_copy
from contract.log_copy import Copy
from contract.redaction import MASK
from entrypoint.job import job_log
from entrypoint.job.ray_jobs import JobClient
from entrypoint.net.sockets import listen
from tests.support.control import TOKEN
from tests.support.fake_ray import SECRET, FakeRay, client

pytestmark = pytest.mark.timeout(60)
NEVER = threading.Event()
SPEAKS = "import sys; sys.stdout.reconfigure(write_through=True)\n"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where Ray has the output of submission "one" written, below `tmp_path`."""
    path = tmp_path / "session_2026-11-21_01-28-51_1_1/logs/job-driver-one.log"
    path.parent.mkdir(parents=True)
    return path


def driver(output: Path, code: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", SPEAKS + code]
    with output.open("ab") as file:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=file, stderr=file)


@contextmanager
def following(
    jobs: JobClient, log: Path, tell: Callable[[str], None], lost: threading.Event
) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=jobs.follow, args=("one", log, tell, lost), daemon=True)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def copied(root: Path, output: Path) -> tuple[str, list[str]]:
    """What the whole output is in the copy, and the lines that are told."""
    told: list[str] = []
    over = threading.Event()
    over.set()
    copy = Copy(root / "log", told.append, frozenset({TOKEN, SECRET}))
    job_log.follow(lambda: job_log.source(root, "one"), copy, over)
    assert output.exists()
    return (root / "log").read_bytes().decode(), told


def test_the_log_grows_while_the_job_runs_and_is_whole_at_its_end(
    ray: FakeRay, tmp_path: Path, output: Path
) -> None:
    told: list[str] = []
    log = tmp_path / "attempt-1.log"
    with following(client(ray.url, tmp_path), log, told.append, NEVER):
        job = driver(output, "print('one'); input(); print('two'); print('three', end='')")
        until(lambda: told == ["one"])
        assert log.read_text() == "one\n"
        job.communicate(b"go on\n")
        ray.status = "FAILED"
    assert log.read_text() == "one\ntwo\nthree"
    assert told == ["one", "two", "three"]


def test_the_log_of_a_job_that_was_over_before_it_was_followed_is_whole(
    ray: FakeRay, tmp_path: Path, output: Path
) -> None:
    ray.status = "FAILED"
    driver(output, "raise ValueError('no')").wait()
    told: list[str] = []
    client(ray.url, tmp_path).follow("one", tmp_path / "log", told.append, NEVER)
    assert told[-1] == "ValueError: no"
    assert (tmp_path / "log").read_text() == output.read_text()


def test_the_log_is_copied_while_ray_does_not_answer(tmp_path: Path, output: Path) -> None:
    """Its dashboard takes the question, and is silent."""
    told: list[str] = []
    lost = threading.Event()
    with listen(0) as silent:
        jobs = client(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        thread = threading.Thread(
            target=jobs.follow, args=("one", tmp_path / "log", told.append, lost), daemon=True
        )
        thread.start()
        driver(output, "print('one')").wait()
        until(lambda: told == ["one"])
        assert thread.is_alive()
        lost.set()


def test_what_a_lost_job_said_last_is_in_the_log(
    ray: FakeRay, tmp_path: Path, output: Path
) -> None:
    lost = threading.Event()
    lost.set()
    driver(output, "print('not a whole line', end='')").wait()
    client(ray.url, tmp_path).follow("one", tmp_path / "log", print, lost)
    assert (tmp_path / "log").read_text() == "not a whole line"


def test_a_job_that_went_away_with_its_ray_is_not_followed_for_ever(
    ray: FakeRay, tmp_path: Path
) -> None:
    lost = threading.Event()
    with following(client(ray.url, tmp_path), tmp_path / "log", print, lost):
        lost.set()


def test_what_is_secret_is_masked_wherever_the_writes_are_cut(tmp_path: Path, output: Path) -> None:
    text = f"key {SECRET}\r\nsent {TOKEN}\nhttp://me:pass@rewards --hf_token abc\n401: {SECRET}"
    told: list[str] = []
    copy = Copy(tmp_path / "log", told.append, frozenset({TOKEN, SECRET}))
    for letter in text:
        copy.take(letter.encode())
    copy.close()
    masked = f"key {MASK}\r\nsent {MASK}\nhttp://me:{MASK}@rewards --hf_token {MASK}\n401: {MASK}"
    assert (tmp_path / "log").read_bytes().decode() == masked
    output.write_text(text)
    (tmp_path / "log").unlink()
    assert copied(tmp_path, output)[0] == masked


def test_each_state_of_a_progress_bar_is_copied_and_told_as_it_comes(
    tmp_path: Path, output: Path
) -> None:
    """A job that shows nothing but a bar is not silent."""
    told: list[str] = []
    copy = Copy(tmp_path / "log", told.append)
    copy.take(b"one\n 10%|#    |\r 20%|##   |\r 30")
    assert (tmp_path / "log").read_bytes() == b"one\n 10%|#    |\r 20%|##   |\r"
    assert told == ["one", " 10%|#    |", " 20%|##   |"]


def test_bytes_that_are_no_text_end_neither_the_copy_nor_a_letter_that_is_cut(
    tmp_path: Path, output: Path
) -> None:
    copy = Copy(tmp_path / "log", print)
    for data in ("é".encode()[:1], "é".encode()[1:], b"\xff\xfe\x00\n", b"after\n"):
        copy.take(data)
    copy.close()
    assert (tmp_path / "log").read_text() == "é��\x00\nafter\n"


def test_a_line_of_many_megabytes_takes_time_in_proportion(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "log", lambda line: None)
    for _ in range(40_000):  # each searched with all before it: more than a minute
        copy.take(b"x" * 50)
    copy.close()
    assert (tmp_path / "log").stat().st_size == 2_000_000


@pytest.mark.parametrize("place", ["/dev/full", "/proc/no/such/log"])
def test_a_log_that_the_disk_does_not_take_is_followed_all_the_same(
    ray: FakeRay, tmp_path: Path, output: Path, place: str
) -> None:
    ray.status = "FAILED"
    output.write_text("OSError: No space left on device\n")
    told: list[str] = []
    client(ray.url, tmp_path).follow("one", Path(place), told.append, NEVER)
    assert told == ["OSError: No space left on device"]


def test_a_line_without_an_end_is_cut_and_no_secret_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "LONGEST_LINE", 1000)
    two_words = "the last secret"
    told: list[str] = []
    copy = Copy(tmp_path / "log", told.append, frozenset({SECRET, two_words}))
    for piece in ("." * 700, f"..{SECRET[:5]}", SECRET[5:], "." * 2000, "a " * 495 + two_words[:9]):
        copy.take(piece.encode())
        assert sum(map(len, copy._begun)) <= 1000
    copy.take(f"{two_words[9:]}\nnext\n".encode())
    copy.close()
    text = f"{'.' * 702}{MASK}{'.' * 2000}{'a ' * 495}{MASK}"
    assert "".join(told) == f"{text}next"
    assert told[-1] == "next"
    assert (tmp_path / "log").read_text() == f"{text}\nnext\n"
