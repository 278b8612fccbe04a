"""A shell without the variables of the node beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint import __main__ as entry
from entrypoint.commands import cli, node_shell, plan, rotate_token
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.processes import process

WORKER = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123", "ROLLCALL_RUN_DIR": "/workspace/run"}
HEAD = {"EXPECTED_WORKERS": "2", "ROLLCALL_RUN_DIR": "/workspace/run"}
LOGIN = {"PATH": "/usr/bin", "HOME": "/root", "SSH_CONNECTION": "10.0.0.9 5 10.0.0.1 22"}


def machine(root: Path, monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, str]) -> Path:
    """/proc of a machine whose first process has the first environment, and nodes the others."""
    root.mkdir(exist_ok=True)
    for pid, environ in enumerate(nodes, start=1):
        words = [f"{name}={text}" for name, text in {"PATH": "/opt/bin", **environ}.items()]
        (root / str(pid)).mkdir()
        (root / str(pid) / "environ").write_text("\0".join([*words, ""]))
    monkeypatch.setattr(process, "entrypoints", lambda: set(range(2, len(nodes) + 1)))
    return root


def test_a_login_by_ssh_is_told_what_it_lacks_and_how_to_take_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = machine(tmp_path, monkeypatch, WORKER)
    said = node_shell.lacking(LOGIN, proc)
    assert "RAY_WORKER, HEAD_POD_ID, ROLLCALL_RUN_DIR" in said
    assert "/proc/1/environ" in said
    assert not node_shell.lacking(LOGIN | WORKER, proc)
    assert not node_shell.lacking(LOGIN, machine(tmp_path / "x", monkeypatch))


def test_a_command_that_takes_the_living_nodes_run_says_which_run_that_is() -> None:
    told = node_shell.about(HEAD | {"ROLLCALL_NODE_NAME": "head-1"})
    assert "this is the one in /workspace/run, whose head-1 runs on this machine" in told
    assert "/checkpoints" in node_shell.about({})


def test_bash_takes_the_variables_over_by_the_command_that_is_told() -> None:
    """Also values with spaces, quotes and line breaks."""
    value = "a 'b' \"c\"\n$d"
    with subprocess.Popen(["sleep", "60"], env={"ODD": value}) as first:
        take_over = node_shell.TAKE_OVER.replace("/proc/1/", f"/proc/{first.pid}/")
        script = f'{take_over}; printf %s "$ODD"'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        first.kill()
    assert done.stdout == value


def test_a_command_in_such_a_shell_asks_the_node_that_lives_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"ROLLCALL_CONTROL_PORT": "9267"}
    proc = machine(tmp_path, monkeypatch, HEAD, WORKER, HEAD | other)
    told = node_shell.with_node(LOGIN, proc)
    assert read_settings(told).control_port == 9267  # the head is asked, not the worker
    assert told["PATH"] == LOGIN["PATH"]
    own = {"ROLLCALL_RUN_DIR": "/elsewhere"}
    assert node_shell.with_node(own, proc) == own


def test_without_a_living_node_the_first_process_names_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node_shell.with_node(LOGIN, machine(tmp_path, monkeypatch, HEAD)) == {
        **LOGIN,
        **HEAD,
    }


def test_nodes_of_two_runs_are_named_and_neither_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = HEAD | {"ROLLCALL_RUN_DIR": "/other/run"}
    proc = machine(tmp_path, monkeypatch, {}, HEAD, second)
    with pytest.raises(node_shell.UnnamedRunError, match="=/other/run or ROLLCALL_RUN_DIR=/work"):
        node_shell.with_node(LOGIN, proc)


def test_of_two_runs_an_address_names_the_one_that_listens_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"ROLLCALL_RUN_DIR": "/w/other", "ROLLCALL_CONTROL_PORT": "9267"}
    proc = machine(tmp_path, monkeypatch, {}, HEAD, other)
    for address in ("127.0.0.2:9267", "http://127.0.0.2:9267/"):
        assert node_shell.with_node(LOGIN, proc, address).items() >= other.items()
    assert node_shell.with_node(LOGIN, proc, "127.0.0.2:5") == LOGIN


def test_a_node_without_a_run_directory_of_its_own_is_named_by_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = {name: value for name, value in HEAD.items() if name != "ROLLCALL_RUN_DIR"}
    proc = machine(tmp_path, monkeypatch, {}, HEAD, second)
    with pytest.raises(node_shell.UnnamedRunError, match=r"^nodes of 2 runs .*=/checkpoints or"):
        node_shell.with_node(LOGIN, proc)


@pytest.mark.parametrize("command", sorted(node_shell.CHANGES))
def test_a_command_that_changes_a_run_does_not_guess_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A command that reads may guess, and in a container the first process names the only run."""
    node = HEAD | {"ROLLCALL_NODE_NAME": "head-1"}
    proc = machine(tmp_path, monkeypatch, {}, node)
    with pytest.raises(
        node_shell.UnnamedRunError, match=r"head-1 .*set ROLLCALL_RUN_DIR=/workspace/run$"
    ):
        node_shell.refuse_guess(command, node_shell.with_node(LOGIN, proc), proc)
    node_shell.refuse_guess("status", node_shell.with_node(LOGIN, proc), proc)
    container = machine(tmp_path / "container", monkeypatch, node, node)
    node_shell.refuse_guess(command, node_shell.with_node(LOGIN, container), container)


def test_stop_without_a_named_run_is_an_error_of_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_shell, "with_node", lambda environ, **_: {**environ, **HEAD})
    monkeypatch.setattr(node_shell, "environ_of", lambda pid, proc=None: {})
    monkeypatch.setattr("sys.argv", ["rollcall", "stop"])
    assert entry.main() == 64
    assert "set ROLLCALL_RUN_DIR=/workspace/run" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("stop",), ("stop", "job-1"), ("status",)])
@pytest.mark.parametrize("other", ["ROLLCALL_BIND", "ROLLCALL_HEAD_ADDRESS", "EXPECTED_WORKERS"])
def test_a_shell_whose_settings_name_no_run_is_told_which_lives_here(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    other: str,
) -> None:
    taken = node_shell.with_node
    monkeypatch.setattr(node_shell, "with_node", lambda env, *_, **__: taken(env) if env else HEAD)
    given = LOGIN | {other: "0" if other == "EXPECTED_WORKERS" else "127.0.30.2"}
    assert entry._ask(cli.parse(words), given) == 64
    said = capsys.readouterr().err
    assert said.startswith("no setting names a run: a node of the run in /workspace/run lives on")
    assert "set ROLLCALL_RUN_DIR=/workspace/run" in said


@pytest.mark.parametrize("command", ["logs", "events", "status", "stop", "wait"])
def test_a_directory_without_a_run_is_no_word_for_the_run_beside_the_shell(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """Unless that run has a log of this name."""
    run = RunFiles(tmp_path / "run")
    run.logs.mkdir(parents=True)
    run.journal.touch()
    (run.logs / "reward.log").write_text("a line")
    beside = {"ROLLCALL_RUN_DIR": str(run.root), "RAY_WORKER": "0"}
    monkeypatch.setattr(node_shell, "with_node", lambda environ, **_: {**environ, **beside})
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "reward"):
        (tmp_path / name).mkdir()
    assert entry._ask(cli.parse([command, "empty"]), LOGIN) == 64
    said = capsys.readouterr().err
    assert "empty is not a run: it has no journal.jsonl; give the run's directory" in said
    assert "For a job, a node or a log of this name, set ROLLCALL_RUN_DIR" in said
    assert "No setting names a run" not in said
    assert entry._ask(cli.parse(["logs", "reward"]), LOGIN) == 0


def test_rotate_token_that_names_a_run_guesses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_shell, "with_node", lambda environ, **_: {**environ, **HEAD})
    monkeypatch.setattr(node_shell, "environ_of", lambda pid, proc=None: {})
    RunFiles(tmp_path).journal.touch()
    for word in (str(tmp_path), "/no/such"):
        assert entry._ask(cli.parse(["rotate-token", word]), LOGIN) != 0
        said = capsys.readouterr().err
        assert "No setting names a run" not in said
        assert word in said


def test_rotate_token_of_an_address_follows_no_lease_of_the_run_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_shell, "with_node", lambda environ, **_: {**environ, **HEAD})
    monkeypatch.setattr(node_shell, "environ_of", lambda pid, proc=None: {})
    asked: list[Settings] = []

    def taken(settings: Settings, options: object) -> int:
        asked.append(settings)
        return 0

    monkeypatch.setattr(rotate_token, "rotate_token", taken)
    assert entry._ask(cli.parse(["rotate-token", "http://10.0.0.9:8267"]), LOGIN) == 0
    assert not asked[0].variable("run_dir")


def test_plan_says_that_the_shell_lacks_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_shell, "environ_of", lambda pid, proc=None: WORKER)
    warnings = plan.plan(read_settings(LOGIN))["warnings"]
    assert "as a login by SSH does" in str(warnings)
    assert "SSH" not in str(plan.plan(read_settings(WORKER))["warnings"])


def test_entrypoints_are_the_living_processes_that_started_others() -> None:
    before = process.entrypoints()
    code = (
        "import subprocess, sys; from entrypoint.processes import process; "
        "child = subprocess.Popen(['sleep', '60'], env=process.marks('a node')); "
        "print(child.pid, flush=True); sys.stdin.read(); child.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout
        assert node.stdout.readline()
        assert node.pid in process.entrypoints() - before
        node.communicate()
    assert node.pid not in process.entrypoints()


def test_a_runs_directory_names_its_own_node_among_several_and_no_head_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"ROLLCALL_RUN_DIR": "/w/own", "ROLLCALL_CONTROL_PORT": "9267"}
    worker = own | {"RAY_WORKER": "1", "ROLLCALL_CONTROL_PORT": "9268"}
    proc = machine(tmp_path, monkeypatch, {}, worker, own, {"ROLLCALL_RUN_DIR": "/w/other"})
    shell = LOGIN | {"ROLLCALL_URL": "http://other:8267", "ROLLCALL_RUN_DIR": "/w/other"}
    told = node_shell.of_run(shell, Path("/w/own"), proc)
    assert told.items() >= own.items()
    assert "ROLLCALL_URL" not in told
    assert node_shell.of_run(LOGIN, Path("/w/ended"), proc) == LOGIN | {
        "ROLLCALL_RUN_DIR": "/w/ended"
    }


def test_a_shell_that_names_the_run_alone_asks_where_its_node_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"ROLLCALL_RUN_DIR": "/w/own", "ROLLCALL_CONTROL_PORT": "9267"}
    worker = own | {"RAY_WORKER": "1", "ROLLCALL_CONTROL_PORT": "9268"}
    proc = machine(tmp_path, monkeypatch, {}, worker, own, {"ROLLCALL_RUN_DIR": "/w/other"})
    named = LOGIN | {"ROLLCALL_RUN_DIR": "/w/own"}
    assert node_shell.of_named_run(named, proc) == named | {"ROLLCALL_CONTROL_PORT": "9267"}
    for given in (
        {"ROLLCALL_CONTROL_PORT": "5"},
        {"ROLLCALL_URL": "http://far:8267"},
        {"ROLLCALL_RUN_DIR": "/w/ended"},
    ):
        assert node_shell.of_named_run(named | given, proc) == named | given
    assert node_shell.of_named_run(LOGIN, proc) == LOGIN
