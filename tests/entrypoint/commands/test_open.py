"""`rollcall open RUN`: what it serves, and what it says if there is nothing to serve."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.commands import cli, node_shell
from entrypoint.net.http import tls
from entrypoint.processes.programs import program
from tests.support import reported_runs
from tests.support.control import TOKEN, Head, head
from tests.support.other_user import as_nobody
from tests.support.repository import ROOT

__all__ = ["head"]


def opened(*words: str, **env: str) -> int:
    return entrypoint._ask(cli.parse(["open", *words]), env)


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("nosuch", 64, "nosuch does not exist: give the run's directory"),
        ("file", 64, "file is not a directory"),
        ("empty", 64, "is not a run: it has no journal.jsonl; give the run's directory"),
    ],
)
def test_a_path_without_runs_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, why: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert opened(str(tmp_path / name), "--json") == code
    said = json.loads(capsys.readouterr().out)
    assert why in said["error"]
    assert said["exit_code"] == code


def test_nodes_of_other_runs_that_live_here_are_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def several(environ: object) -> None:
        raise node_shell.UnnamedRunError

    monkeypatch.setattr(node_shell, "with_node", several)
    assert opened(str(tmp_path)) == 64
    assert f"{tmp_path} is not a run: " in capsys.readouterr().err


def test_a_directory_of_another_user_is_an_error(tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    run.root.chmod(0o700)
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    assert "PermissionError" in as_nobody(lambda: os.scandir(run.root).close())
    assert as_nobody(lambda: _is(73, opened(str(run.root)))) == ""


def _is(wanted: int, code: int) -> None:
    assert code == wanted, code


@pytest.mark.parametrize("flag", ["--control", "--key"])
def test_what_is_read_from_a_directory_has_no_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    assert opened(str(run.root), flag) == 64
    assert "are of a head's page" in capsys.readouterr().err


def test_a_taken_port_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert opened(str(run.root), "--port", str(port)) == 64
    assert f"--port {port}: 127.0.0.1 does not give it" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["variable", "other port", "localhost"])
def test_a_run_with_a_head_that_lives_has_the_page_of_its_head(
    head: Head, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    head.run.run.write_text('{"run_id": "a1"}')
    head.run.journal.write_text("")
    head.run.leases.mkdir()
    url = f"http://127.0.0.1:{head.port}"
    told = {} if where == "variable" else {"url": url}
    (head.run.leases / "1").write_text(json.dumps(told))
    named = {"ROLLCALL_URL": url} if where == "variable" else {}
    if where == "localhost":
        named = {"ROLLCALL_CONTROL_PORT": str(head.port)}
    assert opened(str(head.run.root), ROLLCALL_TOKEN=TOKEN, **named) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{url}/?read=")
    assert "has a head that lives" in said.err


def test_the_page_is_there_until_the_command_is_interrupted(tmp_path: Path) -> None:
    run: RunFiles = reported_runs.with_faults(tmp_path / "a")
    command = program(Program.ROLLCALL, "open", str(run.root), "--no-browser")
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout
        link = process.stdout.readline().strip()
        page = httpx.get(link, headers={"Accept": "text/html"}, verify=tls())
        assert page.is_success
        process.send_signal(2)
        assert process.wait(30) == 130
