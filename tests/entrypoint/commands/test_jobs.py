"""`submit`, `list`, `status JOB`, `stop JOB` and `logs` against a head that waits for jobs."""

from __future__ import annotations

import json
import re
import threading
import time
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from entrypoint import __main__ as entrypoint
from entrypoint.commands import cli, jobs
from entrypoint.commands.head_client import AwayError, ask
from entrypoint.config.settings import Settings
from entrypoint.console import DATE_FORMAT
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.run_context import RunContext
from tests.support.control import TOKEN, Head, head
from tests.support.job_head import FINISHED, JobHead, fails, job_head, soon
from tests.support.printed import Printed

__all__ = ["head", "job_head"]

STOPPED = "job-1 (stopped, exit code 143): step 7 is saved"


def rollcall(where: JobHead, *words: str, **env: str) -> int:
    """What the command exits with, outside of the cluster."""
    return entrypoint._ask(cli.parse(words), where.environment | env)


def prints(run: RunContext) -> Outcome:
    """A job of two attempts, which print while they run."""
    for attempt in (1, 2):
        with (run.files.logs / f"attempt-{attempt}.log").open("a") as log:
            for line in range(3):
                print(f"attempt {attempt} line {line}", file=log, flush=True)
                time.sleep(0.05)
    return FINISHED


def test_submit_shows_the_output_of_all_attempts_and_ends_with_the_jobs_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with JobHead(tmp_path, true=prints, false=fails) as head:
        assert rollcall(head, "submit", "--", "true") == 0
        said = capsys.readouterr()
        lines = [f"attempt {attempt} line {line}" for attempt in (1, 2) for line in range(3)]
        assert said.out.splitlines() == lines
        assert said.err.splitlines()[-1] == "job-1 (finished, exit code 0): the job has finished"
        assert rollcall(head, "submit", "--", "false") == 70
        assert rollcall(head, "submit", "--json", "--", "false") == 70
        assert json.loads(capsys.readouterr().out)["exit_code"] == 70


def test_no_wait_prints_the_id_for_the_commands_that_follow(
    job_head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rollcall(job_head, "submit", "--no-wait", "sleep", "9") == 0
    assert capsys.readouterr().out == "job-1\n"
    rollcall(job_head, "submit", "--no-wait", "--", "true", "--flag")
    soon(lambda: job_head.ran == ["job-1"])
    capsys.readouterr()
    assert rollcall(job_head, "list") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["job-1", "running"]
    at = datetime.strptime(" ".join(first.split()[2:4]), DATE_FORMAT)  # with its zone
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    assert second.split()[:2] == ["job-2", "queued"]
    assert second.endswith("true --flag")
    assert rollcall(job_head, "status", "job-2") == 0
    assert capsys.readouterr().out == "job-2 (queued)\n"
    assert rollcall(job_head, "status") == 0
    assert "job-1 runs" in capsys.readouterr().out
    assert rollcall(job_head, "stop", "job-1") == 0
    said = capsys.readouterr().out.strip()
    assert said in ("job-1 will save and stop; the cluster stays up", STOPPED)  # already, if quick
    soon(lambda: job_head.state("job-2") == "finished")
    assert rollcall(job_head, "logs", "job-2") == 0
    assert "true --flag was here" in capsys.readouterr().out
    assert rollcall(job_head, "logs", "--follow", "job-2") == 0
    assert capsys.readouterr().out == "true --flag was here\n"


def test_ctrl_c_leaves_the_job_running_and_says_so(
    job_head: JobHead, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "shown_to_its_end", interrupted)
    assert rollcall(job_head, "submit", "sleep", "9") == 130
    assert "job-1 goes on: see `rollcall logs --follow job-1`" in capsys.readouterr().err
    soon(lambda: job_head.ran == ["job-1"])
    for job, said in (("job-2", "waits for job-1; its"), ("job-3", "waits for job-1, job-2; its")):
        assert rollcall(job_head, "submit", "true") == 130
        assert f"{job} is submitted and {said}" in capsys.readouterr().err
    assert job_head.state("job-1") == "queued"  # on disk: it is the first of the next head, too


def test_a_submit_that_waits_tells_its_place_in_the_queue(
    job_head: JobHead, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "QUEUE_SECONDS", 0.05)
    monkeypatch.setattr(jobs, "QUEUE_SAID_SECONDS", 0.2)
    for words in (("sleep", "9"), ("true",)):
        assert rollcall(job_head, "submit", "--no-wait", *words) == 0
    soon(lambda: job_head.ran == ["job-1"])
    ends = threading.Timer(1.5, rollcall, (job_head, "stop", "job-1"))
    ends.start()
    assert rollcall(job_head, "submit", "true") == 0
    ends.join()
    said = capsys.readouterr().err
    assert "Ctrl-C leaves job-3 in the queue" in said
    assert re.search(r"job-3 has waited for \S+ s; 2 before it: job-1, job-2", said)


def test_list_has_one_line_a_job_which_a_shell_can_read(
    job_head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rollcall(job_head, "submit", "--no-wait", "true", "print('a b')\nprint(2)") == 0
    capsys.readouterr()
    assert rollcall(job_head, "list") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(r"""true 'print('"'"'a b'"'"')\nprint(2)'""")


def test_a_head_that_is_away_for_a_while_does_not_end_a_submit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    go_on = threading.Event()

    def waits(context: RunContext) -> Outcome:
        while not (go_on.is_set() or context.inbox.stop.is_set()):
            time.sleep(0.02)
        name = "finished" if go_on.is_set() else "stopped"
        return Outcome(name, ExitCode(0 if name == "finished" else 143), "it ended")

    codes: list[int] = []
    with JobHead(run, sleep=waits) as first:
        asking = threading.Thread(target=lambda: codes.append(rollcall(first, "submit", "sleep")))
        asking.start()
        soon(lambda: first.ran == ["job-1"])
        port = first.head.port
    said = ""

    def notices() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "asking again" in said

    soon(notices)
    go_on.set()
    with JobHead(run, port, sleep=waits):
        asking.join(60)
    assert codes == [0]


def test_a_local_directory_is_packed_as_ray_does_and_brought_to_the_head(
    job_head: JobHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    (code / ".git").mkdir()
    (code / ".venv").mkdir()
    for name in (
        *("train.py", "data/large", "secret.env", ".gitignore"),
        *(".git/config", ".venv/python"),
    ):
        (code / name).write_text("*.env\n")
    environment = '{"excludes": ["/data/"], "env_vars": {"LEVEL": "2"}}'
    words = ("--working-dir", str(code), "--runtime-env-json", environment, "--", "true")
    assert rollcall(job_head, "submit", "--json", *words) == 0
    assert json.loads(capsys.readouterr().out)["runtime_env"] == ["env_vars", "working_dir"]
    (package,) = job_head.run.packages.iterdir()
    assert sorted(zipfile.ZipFile(package).namelist()) == [".gitignore", ".rollcall", "train.py"]
    row = json.loads((job_head.run.jobs / "job-1" / "job.json").read_text())
    assert row["runtime_env"] == {"env_vars": {"LEVEL": "2"}, "working_dir": str(package)}


def test_what_nobody_has_told_of_a_submitted_program_is_said(
    job_head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rollcall(job_head, "submit", "--no-wait", "--", "true") == 0
    printed = capsys.readouterr()
    assert printed.out == "job-1\n"
    assert printed.err.startswith("note: not known of this program: steps, checkpoints and how")
    assert "ROLLCALL_STEP_PATTERN, ROLLCALL_CHECKPOINTS and ROLLCALL_RESUME_ARGS" in printed.err


def test_a_submission_whose_answer_is_lost_is_repeated_and_is_one_job(
    job_head: JobHead, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[object] = []

    def loses_the_first(settings: Settings, method: str, path: str, **options: Any) -> object:
        answer = ask(settings, method, path, **options)
        if method == "POST" and not lost:
            lost.append(answer)
            raise AwayError("no head answers: it timed out")
        return answer

    monkeypatch.setattr(jobs, "ask", loses_the_first)
    assert rollcall(job_head, "submit", "--no-wait", "--", "true") == 0
    said = capsys.readouterr()
    assert said.out == "job-1\n"
    assert "it timed out; asking again" in said.err
    assert [row["id"] for row in job_head.queue.rows()] == ["job-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit"], "no job is given: rollcall submit -- python train.py"),
        (["submit", "--nowait", "--", "true"], "--nowait: did you mean --no-wait?"),
        (["submit", "--pretrain", "m"], "--pretrain; the job's words come after --"),
        (["submit", "--runtime-env", "/none", "--", "true"], "--runtime-env /none: No such file"),
        (["submit", "--runtime-env-json", "{", "--", "true"], "--runtime-env-json is not YAML"),
        (["submit", "--working-dir", "/none", "--", "true"], "/none is neither a directory nor"),
        (
            ["submit", "--", "no-such-program"],
            "no-such-program is not a program on this node",
        ),
        (
            ["submit", "--", "rollcall", "up", "--", "python", "my job.py"],
            "`rollcall up` starts a node, and is no job: give what comes after it alone: "
            "python 'my job.py'",
        ),
        (["submit", "rollcall status"], "`rollcall status` is no job: give the job alone"),
        (["status", "job-7"], "there is no job job-7: there are no jobs yet"),
        (["stop", "now"], "there is no job now"),
        (["logs", "--follow"], "logs --follow takes a NAME, a job, or one of head"),
        (["logs", "--follow", "head", "driver"], "logs --follow takes one NAME"),
        (["logs", "haed"], "there is no log of haed: did you mean head?"),
        (["list", "--address", "10.0.0.2:x"], "'10.0.0.2:x' is not an address of a head"),
    ],
)
def test_bad_input_exits_with_64_and_says_what_would_be_right(
    job_head: JobHead, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    job_head.run.logs.mkdir()
    (job_head.run.logs / "head.log").touch()
    try:
        code = rollcall(job_head, *words)
    except SystemExit as ended:
        code = int(str(ended.code))
    except ConfigError as error:
        code = 64
        print(error)
    output = capsys.readouterr()
    assert said in output.out + output.err
    assert code == 64
    assert job_head.queue.rows() == []


def test_a_head_that_runs_its_own_job_takes_no_other(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"ROLLCALL_URL": f"http://127.0.0.1:{head.port}", "ROLLCALL_TOKEN": TOKEN}
    assert entrypoint._ask(cli.parse(["submit", "--", "true"]), environ) == 64
    assert "start the nodes with `rollcall up --wait-for-jobs`" in capsys.readouterr().err


def test_nothing_of_jobs_and_logs_is_answered_without_the_token(job_head: JobHead) -> None:
    job_head.queue.submit(["sleep", "9"], {})
    url = job_head.environment["ROLLCALL_URL"]
    for method, path in (
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/pipelines"),
        ("GET", "/v1/jobs/job-1"),
        ("POST", "/v1/jobs/job-1/stop"),
        ("PUT", "/v1/packages/x"),
        ("GET", "/v1/logs"),
        ("GET", "/v1/logs/head"),
    ):
        assert httpx.request(method, url + path).status_code == 401
    soon(lambda: job_head.ran == ["job-1"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/jobs", b"{", 400),
        ("POST", "/v1/jobs", b'{"job": []}', 400),
        ("POST", "/v1/jobs", b'{"job": "true"}', 400),
        ("POST", "/v1/jobs", b'{"job": ["true"], "more": 1}', 400),
        ("POST", "/v1/jobs", b'{"job": ["a\\u0000b"]}', 400),
        ("POST", "/v1/pipelines", b"{", 400),
        ("POST", "/v1/pipelines", b'{"stages": []}', 400),
        ("POST", "/v1/pipelines", b'{"stages": [{"name": "a b", "job": ["true"]}]}', 400),
        ("POST", "/v1/pipelines", b'{"stages": [{"name": "a", "job": []}]}', 400),
        ("PUT", "/v1/packages/..%2Fx.zip", b"", 404),
        ("PUT", "/v1/packages/code.zip", b"", 400),
        ("GET", "/v1/logs/..%2Fjournal", b"", 404),
        ("GET", f"/v1/logs/{'x' * 300}", b"", 404),
        ("GET", "/v1/logs/a%00b", b"", 404),
        ("GET", "/v1/logs/head?offset=x", b"", 400),
        ("GET", "/v1/logs?job=..", b"", 404),
        ("GET", "/v1/events?job=job-9", b"", 404),
        ("DELETE", "/v1/jobs", b"", 405),
    ],
)
def test_a_request_that_is_wrong_is_answered_with_a_reason(
    job_head: JobHead, method: str, path: str, body: bytes, status: int
) -> None:
    url = job_head.environment["ROLLCALL_URL"]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.request(method, url + path, content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_a_watched_status_shows_every_change_until_the_job_is_over(
    job_head: JobHead, capsys: pytest.CaptureFixture[str]
) -> None:
    job_head.queue.submit(["sleep", "9"], {})
    soon(lambda: job_head.ran == ["job-1"])
    codes: list[int] = []
    watching = threading.Thread(
        target=lambda: codes.append(rollcall(job_head, "status", "job-1", "--watch"))
    )
    watching.start()
    printed = Printed(capsys)
    soon(lambda: printed.has("running"))
    job_head.queue.stop("job-1")
    watching.join(60)
    assert codes == [0]
    assert printed.has(STOPPED)
    assert printed.text.splitlines() == [
        "job-1 (running)",
        STOPPED,
    ]
