"""What somebody sees who uses the commands for the first time, or in the middle of a failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from contract.journal import append_event
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.commands import arguments, bundle, cli, head_client, report
from entrypoint.processes.programs import program
from entrypoint.run import candidacy
from entrypoint.run.lease import Lease
from entrypoint.run.lost_head import Failover
from tests.support.control import TOKEN, Head, asking, head, node_info

__all__ = ["head"]


NOBODY = 65534


def rollcall(where: Mapping[str, str], *words: str) -> int:
    return entrypoint._ask(cli.parse(words), where)


@pytest.fixture
def of_another() -> Iterator[RunFiles]:
    """A run of another user: this process may read what its modes let others read."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    run = RunFiles(directory / "run")
    run.logs.mkdir(parents=True)
    (run.logs / "head.log").write_text("a line\n")
    append_event(run.journal, "start", "this is the head")
    run.token.write_text(TOKEN)
    run.token.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield run
    if is_root:
        os.seteuid(0)
    for path in (run.root, run.logs):
        path.chmod(0o755)
    shutil.rmtree(directory)


def close(path: Path) -> None:
    """As the owner does."""
    user = os.geteuid()
    os.seteuid(os.getuid())
    path.chmod(0)
    os.seteuid(user)


def test_an_address_needs_no_scheme(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
    assert rollcall(where, "status", "--address", f"127.0.0.1:{head.port}") == 0
    assert "0 of 2 workers" in capsys.readouterr().out


def test_an_address_with_a_path_is_told_apart_from_a_missing_job(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{head.port}/page"
    where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
    assert rollcall(where, "status", "--address", url) == 64
    said = f"{url} has no /v1/state: give the control port's address, with no path\n"
    assert capsys.readouterr().err == said


def test_status_says_of_each_worker_once_what_is_wrong(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, joined in (("gone", True), ("starts", False)):
        head.client().check_in(node_info(name), joined=joined)
    with asking(head, "gone"):
        pass
    where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_URL": f"http://127.0.0.1:{head.port}"}
    assert rollcall(where, "status") == 0
    lines = capsys.readouterr().out.splitlines()[1:-1]
    assert [re.sub(r"[\d.]+ s", "N s", line) for line in lines] == [
        "  gone at 127.0.0.3: silent for N s; start it again, or another node in its place",
        "  starts at 127.0.0.3: is starting Ray",
        f"run {head.run.root.name}",
    ]


def test_logs_follows_the_job_if_no_name_is_given(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head.run.logs.mkdir()
    for number in (1, 2):
        (head.run.logs / f"attempt-{number}.log").write_text(f"of attempt {number}\n")
    (head.run.logs / "head.log").write_text("of the head\n")
    head.control.announce("finished", 0)
    where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_URL": f"http://127.0.0.1:{head.port}"}
    assert rollcall(where, "logs", "-f") == 0
    assert capsys.readouterr().out == "of attempt 1\nof attempt 2\n"


def test_a_head_that_is_gone_is_named_with_when_it_was_heard(
    tmp_path: Path,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its lease has its machine; the lease of a head that lives says nothing of the kind."""
    where = {
        "ROLLCALL_TOKEN": TOKEN,
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "ROLLCALL_CONTROL_PORT": str(closed_port),
        "RAY_WORKER": "0",
    }
    monkeypatch.setattr(head_client, "SILENCE_SECONDS", 60.0)  # on a busy machine, too
    with Lease(RunFiles(tmp_path).leases, lambda why: None, "127.0.0.1") as lease:
        assert rollcall(where, "status") == 69
        host = os.uname().nodename
        said = capsys.readouterr().err
        assert f"The head of {tmp_path} is on this node ({host}), and was last there" in said
        assert re.search(r"if it was killed just now, ask again in (\d+ s|1 min 0 s)", said)
        beat = lease.path.read_text()
        lease.path.write_text(beat.replace(host, "far-away"))
        assert rollcall(where, "status") == 69
        assert "ask on the head's node (far-away), or set" in capsys.readouterr().err
    lease.path.write_text(beat)
    long_ago = time.time() - 200
    os.utime(lease.path, (long_ago, long_ago))
    assert rollcall(where, "status") == 69
    said = capsys.readouterr().err
    assert f"The head of {tmp_path} was on {os.uname().nodename}" in said
    assert re.search(r"was last there 3 min \d+ s ago: start it again", said)
    result = RunFiles(tmp_path).result
    result.write_text(json.dumps({"outcome": "finished", "steps": 20}))
    assert rollcall(where, "status") == 69
    assert "the run had finished with 20 steps, as" in capsys.readouterr().err
    result.unlink()
    journal = RunFiles(tmp_path).journal
    failover = Failover.of_head(300.0, "").as_dict()
    append_event(journal, "start", "this is the head", {"failover": failover})
    assert rollcall(where, "status") == 69
    assert "as no worker was there that knows the job: start it" in capsys.readouterr().err
    beat = lease.path.read_text()
    lease.path.write_text('{"over": true}')  # without an outcome: the storage was full
    os.utime(lease.path, (long_ago, long_ago))
    assert rollcall({name: where[name] for name in where if name != "RAY_WORKER"}, "status") == 69
    said = capsys.readouterr().err
    assert re.search(rf"the head of {tmp_path} ended 3 min \d+ s ago without a word: no wor", said)
    lease.path.write_text(beat)
    os.utime(lease.path, (long_ago, long_ago))
    append_event(journal, "check-in", "worker-1 checked in", {"node": "worker-1"})
    candidacy.tell(RunFiles(tmp_path).leases, "worker-1")
    assert rollcall(where, "status") == 69
    said = capsys.readouterr().err
    assert re.search(r"a worker takes its place in 1 min \d+ s \(ROLLCALL_HEAD_FAILOVER\)", said)
    assert "start it again" not in said
    append_event(journal, "outcome", "the job has finished", {"outcome": "finished"})
    assert rollcall(where, "open") == 69
    said = capsys.readouterr().err
    assert f"The run in {tmp_path} has ended (finished), and its head with it" in said
    assert "start it again" not in said


def test_without_shared_storage_a_lost_head_has_no_successor(
    tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {
        "ROLLCALL_HEAD_ADDRESS": "127.0.0.9",
        "ROLLCALL_CONTROL_PORT": str(closed_port),
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "ROLLCALL_STORAGE": "head",
        "ROLLCALL_TOKEN": TOKEN,
    }
    assert rollcall(where, "status") == 69
    said = capsys.readouterr().err
    assert "No worker takes its place, as with ROLLCALL_STORAGE=head the run directory is" in said
    assert "start it again with the same run directory" in said


def test_a_command_that_a_message_names_can_be_copied_to_a_shell(
    tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path / "my run")
    run.root.mkdir()
    append_event(run.journal, "outcome", "the job has finished", {"outcome": "finished"})
    where = {
        "ROLLCALL_TOKEN": TOKEN,
        "ROLLCALL_RUN_DIR": str(run.root),
        "ROLLCALL_CONTROL_PORT": str(closed_port),
        "RAY_WORKER": "0",
    }
    assert rollcall(where, "open") == 69
    assert f"rollcall report '{run.root}' tells of it" in capsys.readouterr().err


def test_no_token_names_the_directory_that_was_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent"
    no_run = f"no run is found: {absent} is not there. Set ROLLCALL_RUN_DIR to the run's directory"
    for directory, why in (
        (absent, no_run),
        (tmp_path, f"no token: no head has begun a run in {tmp_path} yet"),
    ):
        where = {"ROLLCALL_RUN_DIR": str(directory), "RAY_WORKER": "0"}
        for command in ("status", "events", "logs", "open", "list", "rotate-token"):
            assert rollcall(where, command) == 64, command
            assert capsys.readouterr().err.count(why) == 1
    assert rollcall({"ROLLCALL_RUN_DIR": str(tmp_path), "RAY_WORKER": "0"}, "stop") == 64
    nothing = f"nothing runs in {tmp_path}: no head has begun a run there. Set ROLLCALL_RUN_DIR"
    assert capsys.readouterr().err.startswith(nothing)
    elsewhere = {"ROLLCALL_RUN_DIR": str(absent), "ROLLCALL_HEAD_ADDRESS": "10.0.0.7"}
    assert rollcall(elsewhere, "status") == 77
    assert f"no token: {absent} is not there" in capsys.readouterr().err
    RunFiles(tmp_path).unfit.parent.mkdir(exist_ok=True)
    RunFiles(tmp_path).unfit.write_text("the head gn1 does not start: host.ports: 6379 is taken")
    assert rollcall({"ROLLCALL_RUN_DIR": str(tmp_path), "RAY_WORKER": "0"}, "status") == 64
    assert f"run in {tmp_path} yet: the head gn1 does not start" in capsys.readouterr().err
    append_event(RunFiles(tmp_path).journal, "start", "this is the head", {})
    assert rollcall({"ROLLCALL_RUN_DIR": str(tmp_path), "RAY_WORKER": "0"}, "status") == 77
    assert f"no token: there is none in {tmp_path}. Set ROLL" in capsys.readouterr().err


def test_a_run_directory_that_this_user_may_not_enter_is_named(
    of_another: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    close(of_another.root)
    assert report.main([str(of_another.root)]) == 73
    said = f"{of_another.journal}: Permission denied\n"
    assert capsys.readouterr().err == said
    assert bundle.main([str(of_another.root), "--out", "out.tar.gz"]) == 73
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("names", [[], ["head"]])
def test_logs_that_this_user_may_not_list_are_not_said_to_be_none(
    of_another: RunFiles, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    close(of_another.logs)
    where = {"ROLLCALL_RUN_DIR": str(of_another.root), "RAY_WORKER": "0"}
    assert rollcall(where, "logs", *names) == 73
    assert capsys.readouterr().err == f"{of_another.logs}: Permission denied\n"


@pytest.mark.parametrize("command", ["status", "open", "stop"])
def test_a_token_that_this_user_may_not_read_is_not_said_to_be_none(
    of_another: RunFiles, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    where = {"ROLLCALL_RUN_DIR": str(of_another.root), "RAY_WORKER": "0"}
    assert rollcall(where, command) == 77
    assert capsys.readouterr().err == (
        f"no token: {of_another.token}: Permission denied. Ask as the user of the run's nodes, or "
        "set ROLLCALL_TOKEN\n"
    )


@pytest.mark.parametrize("columns", ["40", "80"])
def test_no_help_breaks_a_flag_at_its_hyphens_or_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in set(cli.COMMANDS) & set(arguments.COMMANDS):
        text = arguments.parser(command).format_help()
        assert not re.search(r"--?\w[\w-]*-\n", text), command
        wide = [line for line in text.splitlines() if len(line) > int(columns)]
        assert wide == [] or columns == "40", (command, wide)


@pytest.mark.parametrize("module", [Program.REWARD_SERVER, Program.RETRIEVER])
def test_the_help_of_a_server_shows_no_default_that_is_none(module: Program) -> None:
    done = subprocess.run(program(module, "--help"), capture_output=True, text=True, check=True)
    assert "None" not in done.stdout
    assert "(default: " in done.stdout
    assert not re.search(r"--?\w[\w-]*-\n", done.stdout)


def test_the_report_of_a_cluster_whose_head_was_killed_has_the_command_that_starts_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = "cd /job && rollcall up --wait-for-jobs"
    run, job = RunFiles(tmp_path), RunFiles(tmp_path / "jobs" / "job-1")
    job.root.mkdir(parents=True)
    append_event(run.journal, "start", "this is the head", {"resume": again})
    ended = {"state": "finished", "sentence": "done", "ended": "2026-11-29T12:00:00+00:00"}
    (job.root / "job.json").write_text(json.dumps(ended))
    with Lease(run.leases, lambda why: None, "127.0.0.1") as lease:
        beat = lease.path.read_text()
    lease.path.write_text(beat)  # as if its head had been killed
    long_ago = time.time() - 2000
    os.utime(lease.path, (long_ago, long_ago))
    assert report.main([str(tmp_path)]) == 0
    first, command, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("head_lost: the head was lost 33 min")
    assert first.endswith("the run continues")
    assert command == f"to start it again: {again}"
    assert last == "  finished: done"


def test_stop_ends_what_a_lost_head_has_left_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    run.token.write_text(TOKEN)
    run.token.chmod(0o600)
    append_event(run.journal, "start", "this is the head", {})
    own = {"ROLLCALL_NODE_OWNER": f"a head of {tmp_path}"}
    where = {"ROLLCALL_RUN_DIR": str(tmp_path)}
    lease = Lease(run.leases, lambda why: None, "127.0.0.1")
    lease.about = {"mark": "ROLLCALL_NODE_OWNER=" + own["ROLLCALL_NODE_OWNER"]}
    with subprocess.Popen(["sleep", "600"], env=own) as left:
        with lease:
            assert rollcall(where, "stop") == 69
            beat = lease.path.read_text()
        lease.path.write_text(beat)  # as if it had been killed
        assert rollcall(where, "stop") == 69, "it may be beginning again"
        assert left.poll() is None
        long_ago = time.time() - 200
        os.utime(lease.path, (long_ago, long_ago))
        assert rollcall(where, "status") == 69
        assert "1 process of it still runs on this machine" in capsys.readouterr().err
        assert left.poll() is None
        assert rollcall(where, "stop") == 0
        assert (
            "left on this machine is ended (1 process), and its memory" in capsys.readouterr().out
        )
        assert left.wait(10) is not None
    assert rollcall(where, "stop") == 69
    assert f"The head of {tmp_path} was on" in capsys.readouterr().err
