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

from contract.files import log_copy
from contract.files.log_copy import Copy, lines_of
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
    thread = threading.Thread(target=follow, args=(jobs, log, tell, lost), daemon=True)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()


def follow(jobs: JobClient, log: Path, tell: Callable[[str], None], lost: threading.Event) -> None:
    """Follow the job until it ends, as an attempt does."""
    over = threading.Event()
    copying = threading.Thread(target=jobs.follow, args=("one", log, tell, over), daemon=True)
    copying.start()
    jobs.wait_for_end("one", lost)
    over.set()
    copying.join()


def told_to(told: list[str]) -> Callable[[str], None]:
    return lambda text: told.extend(lines_of(text))


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
    copy = Copy(root / "log", told_to(told), frozenset({TOKEN, SECRET}))
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
    follow(client(ray.url, tmp_path), tmp_path / "log", told.append, NEVER)
    assert told[-1] == "ValueError: no"
    assert (tmp_path / "log").read_text() == output.read_text()


def test_the_log_is_copied_while_ray_does_not_answer(tmp_path: Path, output: Path) -> None:
    """Its dashboard takes the question, and is silent."""
    told: list[str] = []
    lost = threading.Event()
    with listen(0) as silent:
        jobs = client(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        thread = threading.Thread(
            target=follow, args=(jobs, tmp_path / "log", told.append, lost), daemon=True
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
    follow(client(ray.url, tmp_path), tmp_path / "log", print, lost)
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
    copy = Copy(tmp_path / "log", told_to(told), frozenset({TOKEN, SECRET}))
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
    copy = Copy(tmp_path / "log", told_to(told))
    copy.take(b"one\n 10%|#    |\r 20%|##   |\r 30")
    assert (tmp_path / "log").read_bytes() == b"one\n 10%|#    |\r 20%|##   |\r"
    assert told == ["one", " 10%|#    |", " 20%|##   |"]


def test_bytes_that_are_no_text_end_neither_the_copy_nor_a_letter_that_is_cut(
    tmp_path: Path, output: Path
) -> None:
    copy = Copy(tmp_path / "log", lambda text: None)
    for data in ("é".encode()[:1], "é".encode()[1:], b"\xff\xfe\x00\n", b"after\n"):
        copy.take(data)
    copy.close()
    assert (tmp_path / "log").read_text() == "é��\x00\nafter\n"


def test_a_line_of_many_megabytes_takes_time_in_proportion(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "log", lambda text: None)
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
    follow(client(ray.url, tmp_path), Path(place), told.append, NEVER)
    assert told == ["OSError: No space left on device"]


def test_a_line_without_an_end_is_cut_and_no_secret_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "LONGEST_LINE", 1000)
    two_words = "the last secret"
    told: list[str] = []
    copy = Copy(tmp_path / "log", told_to(told), frozenset({SECRET, two_words}))
    for piece in ("." * 700, f"..{SECRET[:5]}", SECRET[5:], "." * 2000, "a " * 495 + two_words[:9]):
        copy.take(piece.encode())
        assert sum(map(len, copy._begun)) <= 1000
    copy.take(f"{two_words[9:]}\nnext\n".encode())
    copy.close()
    text = f"{'.' * 702}{MASK}{'.' * 2000}{'a ' * 495}{MASK}"
    assert "".join(told) == f"{text}next"
    assert told[-1] == "next"
    assert (tmp_path / "log").read_text() == f"{text}\nnext\n"


def test_the_end_is_known_while_a_reader_is_minutes_behind(
    ray: FakeRay, tmp_path: Path, output: Path
) -> None:
    """The reader takes a second for each line of 5,000, and gets the last ones all the same."""
    ray.status = "SUCCEEDED"
    output.write_text("".join(f"line {n} {'x' * 1000}\n" for n in range(5_000)) + "the end")
    told: list[str] = []
    gate = threading.Event()

    def slow(line: str) -> None:
        gate.wait()
        told.append(line)

    jobs, over = client(ray.url, tmp_path), threading.Event()
    copying = threading.Thread(target=jobs.follow, args=("one", tmp_path / "log", slow, over))
    copying.start()
    jobs.wait_for_end("one", NEVER)
    over.set()
    log, whole = tmp_path / "log", output.stat().st_size
    until(lambda: log.exists() and log.stat().st_size == whole)
    assert not told
    gate.set()
    copying.join(20)
    assert told[-1] == "the end"
    assert job_log.MOST_WAITING / 1200 < len(told) < 4_000


def test_of_what_cannot_be_copied_in_time_the_end_is(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "END_SECONDS", -1.0)
    monkeypatch.setattr(job_log, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(job_log, "LAST_BYTES", 500)
    lines = [f"line {n} {SECRET} {'x' * 40}\n" for n in range(100)]
    output.write_text("".join(lines) + "ValueError: no")
    text, told = copied(tmp_path, output)
    assert told[-1] == "ValueError: no"
    assert told[0].startswith("line 0")
    assert "rollcall: a part of the output is left out here" in told
    assert len(told) < 30
    assert not any(SECRET[at : at + 8] in text for at in range(len(SECRET) - 8))


@pytest.mark.parametrize("option", ["--token ", "token = ", "['--token', '", '"api_key": "'])
def test_a_line_without_an_end_is_cut_before_an_option_with_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(log_copy, "LONGEST_LINE", 1000)
    value, end = "a7d3f1b9c0e8", option[-1].strip()
    copy = Copy(tmp_path / "log", lambda text: None)
    for piece in ("word " * 199, f"w {option}", f"{value[:4]}", f"{value[4:]}{end} next\n"):
        copy.take(piece.encode())
    copy.close()
    assert (tmp_path / "log").read_text() == f"{'word ' * 199}w {option}{MASK}{end} next\n"


def test_a_job_that_writes_on_after_its_end_does_not_keep_the_copy_busy(
    tmp_path: Path, output: Path
) -> None:
    orphan = driver(output, "while True: print('x' * 1000)")
    try:
        until(lambda: output.stat().st_size > 10_000)
        assert copied(tmp_path, output)[1]
    finally:
        orphan.kill()
        orphan.wait()
