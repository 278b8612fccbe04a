"""Commands that take a job take its name, too: from its head, and in the run directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.commands import cli, page
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.run_context import RunContext
from entrypoint.run import token as run_token
from tests.support import reported_runs
from tests.support.control import TOKEN
from tests.support.job_head import FINISHED, JobHead, soon

READ_KEY = run_token.read_only(TOKEN)
NAME = "low rate 1e-6"


def tells(run: RunContext) -> Outcome:
    run.journal.record("attempt", "attempt 1 starts")
    (run.files.logs / "attempt-1.log").write_text("its log\n")
    return FINISHED


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[JobHead]:
    """A cluster whose newest job of two is over, and has the name."""
    with JobHead(tmp_path, true=tells) as head:
        for _ in range(2):
            assert rollcall(head, "submit", "--no-wait", "--name", NAME, "--", "true") == 0
        soon(lambda: head.state("job-2") == "finished")
        capsys.readouterr()
        yield head


def rollcall(where: JobHead, *words: str, **env: str) -> int:
    return entrypoint._ask(cli.parse(words), {**where.environment, **env})


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("events", "attempt 1 starts"),
        ("logs", f"==> {NAME}/attempt-1\nits log"),
    ],
)
def test_the_newest_job_of_a_name_is_shown(
    asked: JobHead, capsys: pytest.CaptureFixture[str], command: str, said: str, is_here: bool
) -> None:
    env = {"ROLLCALL_RUN_DIR": str(asked.root), "ROLLCALL_URL": ""} if is_here else {}
    assert rollcall(asked, command, NAME, **env) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "wait", "stop"])
def test_a_name_with_spaces_is_asked_for_whole(
    asked: JobHead, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert rollcall(asked, command, NAME, "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "job-2"


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize("command", ["events", "open"])
def test_a_name_that_no_job_has_is_a_wrong_word(
    asked: JobHead, capsys: pytest.CaptureFixture[str], command: str, is_here: bool
) -> None:
    env = {"ROLLCALL_RUN_DIR": str(asked.root), "ROLLCALL_URL": ""} if is_here else {}
    assert rollcall(asked, command, "high-rate", **env) == 64
    assert "high-rate" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "begin"), [("--json", "?read="), ("--control", "?run=job-2#")])
def test_open_has_the_heads_page_show_the_job_first(
    asked: JobHead, capsys: pytest.CaptureFixture[str], flag: str, begin: str
) -> None:
    assert rollcall(asked, "open", NAME, "--json", flag) == 0
    link = json.loads(capsys.readouterr().out)["url"]
    assert begin in link
    assert "run=job-2" in link


def test_open_serves_a_job_from_the_run_directory_if_no_head_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    row = {"name": NAME, "submitted": "2026-01-01T00:00:00+00:00", "state": "finished"}
    job = reported_runs.entered(tmp_path, "job-1", **row, ended="2026-01-01T01:00:00+00:00")
    reported_runs.tells_loss(job)
    RunFiles(tmp_path).journal.write_text("")
    served: list[Path] = []

    def kept(settings: object, options: object, path: Path) -> int:
        served.append(path)
        return 0

    monkeypatch.setattr(page, "_open_kept", kept)
    env = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_CONTROL_PORT": str(closed_port)}
    assert entrypoint._ask(cli.parse(["open", NAME]), env) == 0
    assert served == [job]


def test_a_path_comes_before_a_job_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job-1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert entrypoint._ask(cli.parse(["open", "job-1"]), {}) == 64
    assert "job-1 is not a run: it has no journal.jsonl" in capsys.readouterr().err
