"""`logs`, `events`, `wait`, `open` and `status`, of a real control port, also in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.journal import EventSource, append_event
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.cluster.server import HeadPhase
from entrypoint.commands import ask_head, cli, events, logs, page, status_text
from entrypoint.commands.log_part import Part
from entrypoint.config.read import read_settings
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.run_context import RunContext
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head, head
from tests.support.job_head import FINISHED, JobHead, job_head, soon
from tests.support.printed import Printed

__all__ = ["head", "job_head"]

Environment = Mapping[str, str]


def rollcall(where: Environment, *words: str) -> int:
    return entrypoint._ask(cli.parse(words), where)


def of(head: Head) -> Environment:
    """The variables of one who asks from outside."""
    url = f"http://127.0.0.1:{head.port}"
    return {"ROLLCALL_URL": url, "ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}


def here(run: RunFiles) -> Environment:
    """The variables of one who has the run directory, and no head that answers."""
    return {"ROLLCALL_RUN_DIR": str(run.root), "ROLLCALL_TOKEN": TOKEN, "RAY_WORKER": "0"}


def stamped(minutes: int) -> str:
    """The beginning of a line that a node logged so long ago."""
    return (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M:%S%z")


@pytest.fixture(params=["here", "head"])
def asked(request: pytest.FixtureRequest, head: Head) -> Environment:
    """Both ways to the logs and the journal of a run of three events and a log of ages."""
    for number in (1, 2, 3):
        append_event(head.run.journal, "start", f"event {number}")
    head.run.logs.mkdir(exist_ok=True)
    lines = [f"{stamped(60 - 10 * n)} gn1 line {n}\n" for n in range(6)]
    (head.run.logs / "head.log").write_text("".join(lines))
    return here(head.run) if request.param == "here" else of(head)


def test_logs_shows_only_the_last_lines_or_those_since_a_time(
    asked: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, left in (
        (["-n", "2"], [4, 5]),
        (["--since", "25m"], [4, 5]),
        (["--since", "35m", "-n", "1"], [5]),
        (["--lines", "0"], []),
        ([], range(6)),
    ):
        assert rollcall(asked, "logs", "head", *words, "--json") == 0
        shown = json.loads(capsys.readouterr().out)["head"]
        assert [line.rpartition(" ")[2] for line in shown] == [str(n) for n in left]
    assert rollcall(asked, "logs", "-n", "1") == 0  # of every log
    assert capsys.readouterr().out.splitlines()[1].endswith("gn1 line 5")


def test_the_last_lines_of_a_long_log_are_read_from_its_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    content = "".join(f"line {n} {'→' * 40}\n" for n in range(20_000))
    (tmp_path / "logs" / "head.log").write_text(content)
    source = logs.LogsHere(read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)}))
    part, offsets = Part(lines=900), dict[str, int]()
    text = logs.read_part(source, "head", part, offsets)
    assert "".join(part.of(text)).splitlines() == content.splitlines()[-900:]
    assert len(text) < len(content) / 2
    assert offsets == {"head": len(content.encode())}


def test_lines_since_a_time_are_read_from_the_end_of_a_long_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    trace = "Traceback\n" * 2000  # lines without a time
    stamps = [stamped(minutes) for minutes in range(20_000, 0, -1)]
    lines = [f"{stamp} line {n} {'→' * 40}\n" for n, stamp in enumerate(stamps)]
    content = "".join([*lines[:-900], trace, *lines[-900:]])
    (tmp_path / "logs" / "head.log").write_text(content)
    source = logs.LogsHere(read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)}))
    for count in (900, 1, 0):
        since = datetime.now(UTC) - timedelta(minutes=count, seconds=30)
        part, offsets = Part(since=since), dict[str, int]()
        text = logs.read_part(source, "head", part, offsets)
        assert part.of(text) == lines[len(lines) - count :]
        assert len(text) < len(content) / 2
        assert offsets == {"head": len(content.encode())}
    part = Part(since=datetime(2000, 1, 1, tzinfo=UTC))
    assert "".join(part.of(logs.read_part(source, "head", part, {}))) == content


def test_events_shows_the_journal(asked: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollcall(asked, "events") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 3)[3] for line in said] == ["event 1", "event 2", "event 3"]
    assert said[0][:4] == str(datetime.now(UTC).year)
    assert rollcall(asked, "events", "-n", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sentence"] == "event 3"
    assert rollcall(asked, "events", "--since", "2100-01-01") == 0
    assert rollcall(asked, "events", "-n", "0") == 0
    assert capsys.readouterr().out == ""


def test_events_of_a_job_and_of_none(job_head: JobHead, capsys: pytest.CaptureFixture[str]) -> None:
    where = job_head.environment
    assert rollcall(where, "submit", "--", "true") == 0
    capsys.readouterr()
    run = RunFiles(job_head.run.jobs / "job-1")
    append_event(run.journal, "attempt", "attempt 1 starts")
    assert rollcall(where, "events", "job-1", "-f") == 0  # the job is over: it ends
    assert capsys.readouterr().out.splitlines()[-1].endswith(" attempt 1 starts")
    assert rollcall(where, "events", "job-7") == 64
    assert "there is no job job-7" in capsys.readouterr().err


def test_a_jobs_name_says_which_job_is_meant(
    job_head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    where = job_head.environment
    assert rollcall(where, "submit", "--name", "low-rate", "--", "true") == 0
    run = RunFiles(job_head.run.jobs / "job-1")
    append_event(run.journal, "attempt", "attempt 1 starts", source=EventSource(attempt=1))
    append_event(run.journal, "failure", "it", {"failure": "crash"}, source=EventSource(attempt=1))
    capsys.readouterr()
    assert rollcall(where, "logs", "low-rate") == 0
    assert "true was here" in capsys.readouterr().out
    assert rollcall(where, "status", "low-rate") == 0
    said = capsys.readouterr().out
    assert said.startswith("job-1 (finished")
    assert "attempt 1: 1 failure so far" in said
    assert rollcall(where, "status", "other") == 64
    assert "the jobs are job-1 (low-rate)" in capsys.readouterr().err


def test_a_job_that_waits_in_the_queue_has_no_events_yet(
    job_head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its journal begins with the job, and `events -f` waits for it."""
    job_head.queue.submit(["sleep", "9"], {})
    job_head.queue.submit(["true"], {})
    for where in (job_head.environment, here(job_head.run)):
        assert rollcall(where, "events", "job-2") == 0
        assert rollcall(where, "events", "job-2", "-n", "3") == 0
    assert capsys.readouterr().out == ""


def test_storage_that_fails_is_not_a_head_that_does_not_answer(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head.run.progress.mkdir()  # it cannot be read
    url = {"ROLLCALL_HEAD_ADDRESS": "localhost", "ROLLCALL_CONTROL_PORT": str(head.port)}
    assert rollcall({**here(head.run), **url}, "status") == 69
    said = capsys.readouterr().err
    assert said.startswith("the head cannot answer now: http://localhost:")
    assert said.endswith(f"answers 503: {head.run.progress}: Is a directory\n")


def test_the_watched_state_as_json_is_a_line_for_each_change(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_head, "WATCH_SECONDS", 0.05)
    watching = threading.Thread(target=rollcall, args=(of(head), "status", "--watch", "--json"))
    watching.start()
    printed = Printed(capsys)
    soon(lambda: printed.has('"phase": "starting"'))
    time.sleep(1.5)  # several looks, at which the head gives other times and nothing new
    head.control.phase = HeadPhase.TRAINING
    soon(lambda: printed.has('"phase": "training"'))
    head.control.announce("finished", 0)
    watching.join(60)
    assert printed.has("finished")
    rows = [json.loads(line) for line in printed.text.splitlines()]
    seen = [(row["phase"], row["outcome"] is not None) for row in rows]
    assert seen == [("starting", False), ("training", False), ("training", True)]


def test_events_follows_until_the_end_and_prints_each_event_once(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.05)
    append_event(head.run.journal, "start", "old")
    append_event(head.run.journal, "start", "one")
    line = head.run.journal.read_bytes().splitlines()[0].replace(b'"old"', b'"two"')
    line = line.partition(b', "crc"')[0] + b"}\n"  # as an earlier version wrote it
    codes: list[int] = []

    def follow() -> None:
        codes.append(rollcall(of(head), "events", "-f", "-n", "1"))

    with head.run.journal.open("ab") as file:
        file.write(line[:20])  # half an event
        file.flush()
        following = threading.Thread(target=follow)
        following.start()
        printed = Printed(capsys)
        soon(lambda: printed.has("one"))
        file.write(line[20:])
        file.flush()
        soon(lambda: printed.has("two"))
    details = {"outcome": "finished", "exit_code": 0}
    append_event(head.run.journal, "outcome", "the job has finished", details)
    head.control.announce("finished", 0)
    following.join(60)
    assert printed.has("the job has finished")
    sentences = [line.split(" ", 3)[3] for line in printed.text.splitlines()]
    assert (codes, sentences) == ([0], ["one", "two", "the job has finished"])


@pytest.mark.parametrize("margin", ["", "(EngineCore pid=7) ERROR 11-28 10:22:11 [core.py:708] "])
def test_logs_begins_with_the_newest_attempts_traceback_and_ends_with_rays_own(
    head: Head, capsys: pytest.CaptureFixture[str], margin: str
) -> None:
    head.run.logs.mkdir(exist_ok=True)
    for name in ("attempt-9", "head", "ray-head", "reward", "worker-1"):
        (head.run.logs / f"{name}.log").write_text(f"a line of {name}\n")
    frames = [f'  File "model.py", line {number}, in call\n' for number in range(40)]
    trace = ["before\n", "Traceback (most recent call last):\n", *frames, "ValueError: 7\n"]
    (head.run.logs / "attempt-10.log").write_text("".join(f"{margin}{line}" for line in trace))
    assert rollcall(of(head), "logs") == 0
    said = capsys.readouterr().out
    named = re.findall("^==> (.*)", said, re.MULTILINE)
    first = ["attempt-10.log", "attempt-9.log", "head.log", "worker-1.log"]
    assert named == [*first, "reward.log"]
    assert said.splitlines()[-1] == "Ray's own logs: ray-head.log (rollcall logs ray-head)"
    assert "a line of ray-head" not in said
    assert said.startswith(f"==> attempt-10.log\n{margin}Traceback (most recent call last):\n")
    assert said.count("model.py") == 40
    assert rollcall(of(head), "logs", "-n", "5") == 0
    assert capsys.readouterr().out.count("model.py") == 4


def test_logs_follows_from_its_last_lines_on(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.05)
    head.run.logs.mkdir()
    log = head.run.logs / "worker-1.log"
    log.write_text("zero\none\n")
    following = threading.Thread(target=rollcall, args=(of(head), "logs", "1", "-f", "-n1"))
    following.start()
    printed = Printed(capsys)
    soon(lambda: printed.has("one\n"))
    with log.open("a") as file:
        file.write("two\n")
    soon(lambda: printed.has("two\n"))
    log.replace(head.run.logs / "worker-1.log.1")  # as the copy of Ray's logs is begun anew
    log.write_text("three\n")
    soon(lambda: printed.has("three\n"))
    head.control.announce("finished", 0)
    following.join(60)
    assert printed.has("three\n")
    assert printed.text == "one\ntwo\nthree\n"


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("failed", 70)])
def test_wait_ends_with_the_runs_exit_code_though_its_head_ends_at_once(
    head: Head, capsys: pytest.CaptureFixture[str], outcome: str, code: int
) -> None:
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(rollcall(of(head), "wait")))
    waiting.start()
    time.sleep(1.0)  # it asks, and the head holds its answer
    head.control.announce(outcome, code)
    head.control.__exit__()
    waiting.join(60)
    assert codes == [code]
    assert f"outcome: {outcome}" in capsys.readouterr().out


def test_wait_has_a_limit_which_is_worth_a_retry(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rollcall(of(head), "wait", "--timeout", "0.2s", "--json") == 75
    assert json.loads(capsys.readouterr().out)["error"] == "the run has not ended within 0.2 s"


def test_wait_has_its_limit_also_while_no_head_answers(
    closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"ROLLCALL_URL": f"http://127.0.0.1:{closed_port}", "ROLLCALL_TOKEN": TOKEN}
    assert rollcall(where, "wait", "--timeout", "0.3s") == 69
    said = capsys.readouterr().err
    assert said.count("no head answers") == 1
    assert said.endswith("; --timeout sets this limit\n")
    shorter = {**where, "ROLLCALL_HEAD_TIMEOUT": "1s"}
    assert rollcall(shorter, "wait", "--timeout", "1h") == 69
    said = capsys.readouterr().err
    assert said.endswith("; ROLLCALL_HEAD_TIMEOUT sets this limit\n")
    assert said.count("If its machine is gone") == 1


def test_wait_for_a_job_ends_with_the_jobs_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = threading.Event()

    def waits(run: RunContext) -> Outcome:
        go_on.wait(30)
        return Outcome("failed", ExitCode.JOB_FAILED, "ValueError: broken")

    with JobHead(tmp_path, sleep=waits, true=lambda _: FINISHED) as cluster:
        where = cluster.environment
        assert rollcall(where, "submit", "--no-wait", "--", "sleep") == 0
        assert rollcall(where, "wait", "job-1", "--timeout", "0.2") == 75
        threading.Timer(0.5, go_on.set).start()
        assert rollcall(where, "wait", "job-1") == 70
        assert "job-1 (failed, exit code 70): ValueError" in capsys.readouterr().out


def test_the_status_of_a_failed_job_has_its_cause_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gives_up(run: RunContext) -> Outcome:
        told = {"failure": "unknown", "evidence": "exit code 3, and printed nothing"}
        run.journal.record("failure", "unknown: exit code 3", **told)
        return Outcome("failed", ExitCode.JOB_FAILED, "giving up")

    with JobHead(tmp_path, false=gives_up) as cluster:
        where = cluster.environment
        assert rollcall(where, "submit", "--no-wait", "--", "false") == 0
        assert rollcall(where, "wait", "job-1") == 70
        capsys.readouterr()
        assert rollcall(where, "status", "job-1") == 0
        first, cause, to_do, *_ = capsys.readouterr().out.splitlines()
        assert first == "job-1 (failed, exit code 70): giving up"
        assert cause == "cause: exit code 3, and printed nothing"
        assert to_do.startswith("what to do: Read the log")


def test_open_prints_the_link_to_read_only_and_the_token_only_if_asked(
    tmp_path: Path, head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    key, url = run_token.read_only(TOKEN), of(head)["ROLLCALL_URL"]
    for words, said in (
        ([], f"{url}/?read={key}"),
        (["--key"], key),
        (["--control"], f"{url}/#token={run_token.for_page(TOKEN)}"),
        (["--json"], json.dumps({"url": f"{url}/?read={key}", "read_only": True})),
    ):
        assert rollcall(of(head), "open", *words) == 0
        assert capsys.readouterr().out == f"{said}\n"
    with_key = {**of(head), "ROLLCALL_TOKEN": key}
    assert rollcall(with_key, "open", "--key") == 0
    assert capsys.readouterr().out == f"{key}\n"
    assert rollcall(with_key, "open", "--control") == 77
    assert "--control needs the operator key, or a stronger one" in capsys.readouterr().err
    wrong = {**of(head), "ROLLCALL_TOKEN": "another-run's-token"}
    assert rollcall(wrong, "open") == 77
    said = capsys.readouterr().err
    assert "token: set ROLLCALL_TOKEN to the run's token, or ROLLCALL_RUN_DIR to the run's" in said
    del wrong["ROLLCALL_URL"]
    wrong |= {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_CONTROL_PORT": str(head.port)}
    RunFiles(tmp_path).token.write_text(TOKEN)
    assert rollcall({**wrong, "ROLLCALL_HEAD_ADDRESS": "127.0.0.1"}, "open") == 77
    wins = f"ROLLCALL_TOKEN is set, and wins: unset it, and the token in {tmp_path} is used"
    assert wins in capsys.readouterr().err
    assert rollcall(with_key, "stop") == 77
    assert "set ROLLCALL_TOKEN to" not in capsys.readouterr().err


def test_open_opens_a_browser_only_for_a_person_at_a_screen(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(page, "has_browser", lambda: True)
    assert rollcall(of(head), "open", "--no-browser") == 0
    assert opened == []
    assert rollcall(of(head), "open") == 0
    assert opened == [f"http://127.0.0.1:{head.port}/?read={run_token.read_only(TOKEN)}"]
    monkeypatch.undo()
    monkeypatch.setenv("DISPLAY", ":0")
    assert not page.has_browser()  # pytest's output is not a terminal


def test_an_event_is_shown_with_date_and_zone() -> None:
    event = {"at": "2026-11-23T18:00:00.123+00:00", "node": "gn1", "sentence": "attempt 1 starts"}
    at, node = events.sentence(event).split(" gn1 ")
    assert datetime.strptime(at, "%Y-%m-%d %H:%M:%S%z") == datetime(2026, 11, 23, 18, tzinfo=UTC)
    assert node == "attempt 1 starts"


def test_a_terminal_shows_every_state_on_an_empty_page_until_the_end(head: Head) -> None:
    """`status --watch` in a real terminal: each change redraws it, the last one stays."""
    Progress(step=3, total_steps=9).write(head.run.progress)
    said, ended = in_terminal(of(head), "status", "--watch")
    soon(lambda: "step 3/9" in said())
    Progress(step=4, total_steps=9).write(head.run.progress)
    soon(lambda: "step 4/9" in said())
    head.control.announce("finished", 0)
    assert ended() == 0
    pages = said().split("\x1b[H\x1b[2J")[1:]
    assert "step 3/9" in pages[0]
    assert "step 3/9" not in pages[-1]
    assert "outcome: finished" in pages[-1]


def in_terminal(where: Environment, *words: str) -> tuple[Callable[[], str], Callable[[], int]]:
    """Start a command in a terminal of its own; return what shows its text, and what waits."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "entrypoint", *words],
        env={"PATH": os.environ["PATH"], "TERM": "xterm", **where},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                text.append(data)
        except OSError:  # the terminal ends with its program
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def wait() -> int:
        try:
            code = command.wait(60)
        finally:
            command.kill()
        reader.join(5)
        os.close(ours)
        return code

    return lambda: b"".join(text).decode(errors="replace"), wait


def test_progress_that_a_head_of_another_version_tells_is_shown_as_far_as_it_is_known() -> None:
    job = {"id": "job-1", "state": "running", "exit_code": None, "sentence": ""}
    told = {"step": 4, "total_steps": 9, "eta_seconds": 259_260.0, "of_a_later_version": 1}
    lines = list(status_text.job_sentences(job | {"progress": told}))
    assert lines == ["job-1 (running)", "step 4/9 · 3 d 0 h left"]
    assert len(list(status_text.job_sentences(job | {"progress": None}))) == 1
