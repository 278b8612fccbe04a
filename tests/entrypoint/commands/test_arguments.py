"""Every command helps, says its version, and names what a wrong word may mean, in JSON if asked."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contract.launch.command_lines import variables_before
from entrypoint import __main__ as entrypoint
from entrypoint.commands import arguments, bundle, cli, completion, demo, init, report
from entrypoint.commands.cli import COMMANDS, Invocation
from entrypoint.commands.examples import EXAMPLES

OTHER_PROGRAMS = ("prepare", "serve-retriever", "serve-reward", "translate", "sft", "rm", "dpo")
"""Their modules parse their arguments: tests/env and tests/trainer."""
OWN = [name for name in COMMANDS if name not in OTHER_PROGRAMS]


def rollcall(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """What the program exits with, whatever its terminal."""
    monkeypatch.setattr(sys, "argv", ["rollcall", *words])
    monkeypatch.setenv("COLUMNS", "80")
    try:
        return entrypoint._run()
    except SystemExit as ended:
        return int(str(ended.code or 0))


@pytest.mark.parametrize("form", ["{} --help", "{} -h", "help {}"])
def test_every_command_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    monkeypatch.setenv("RAY_WORKER", "maybe")  # help needs no settings
    for command in OWN:
        assert rollcall(monkeypatch, *form.format(command).split()) == 0, command
        said = capsys.readouterr().out
        assert said.startswith(f"usage: rollcall {command} ")
        assert "--version" in said, command
        assert [line for line in said.splitlines() if len(line) > 80] == [], command


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_each_help_are_commands_that_it_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = {"init": init, "demo": demo, "report": report, "bundle": bundle}
    made = modules[command].parser() if command in modules else arguments.parser(command)
    with pytest.raises(SystemExit):
        made.parse(["--help"])
    helped = capsys.readouterr().out
    for line in EXAMPLES[command]:
        assert f"  {line}\n" in helped
        typed = line.replace("\\\n", "").removeprefix('eval "$(').removesuffix(')"')
        _, words = variables_before(shlex.split(typed))
        assert words[:2] == ["rollcall", command]
        assert cli.parse(words[1:], is_job=lambda _: True).command == command
        if command in modules:
            made.parse(words[2:])
        elif command in cli.REMOTE:
            arguments.parse(command, words[2:])


def test_the_help_of_another_program_is_that_programs() -> None:
    for command in OTHER_PROGRAMS:
        assert cli.parse(["help", command]) == Invocation(command, ("--help",))


def test_the_flags_of_a_job_are_the_jobs() -> None:
    assert cli.parse(["up", "--", "--help"]) == Invocation("up", ("--help",))
    assert cli.parse(["up", "python", "--version"]) == Invocation("up", ("python", "--version"))


def test_every_command_says_the_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("", *COMMANDS):
        assert rollcall(monkeypatch, *command.split(), "--version") == 0, command
        assert capsys.readouterr().out == "rollcall 0.1.0\n", command


def test_the_overview_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    described = cli.help_text().partition("With no command")[0]
    assert [line for line in described.splitlines() if len(line) > 60] == []
    assert shutil.get_terminal_size().columns == 60


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("up --wait-for-job", "--wait-for-jobs"),
        ("--hlep", "--help"),
        ("-v", "-V"),
        ("plan --node=3", "--nodes"),
    ],
)
def test_a_flag_of_the_node_that_becomes_the_jobs_names_the_nearest_of_the_node(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, flag: str
) -> None:
    monkeypatch.setenv("RAY_WORKER", "0")
    assert rollcall(monkeypatch, *words.split()) == 64
    output = capfd.readouterr()
    assert f"unknown flag. Did you mean {flag}?" in output.err + output.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("statsu", "did you mean status?"),
        ("log", "did you mean logs?"),
        ("help statsu", "statsu is not a command: did you mean status?"),
        ("event", "did you mean events?"),
        ("status --wacth", "unknown argument --wacth: did you mean --watch?"),
        ("logs --folow head", "unknown argument --folow: did you mean --follow?"),
        ("logs -F", "unknown argument -F: did you mean -f?"),
        ("logs head --line=3", "unknown argument --line=3: did you mean --lines?"),
        ("logs head -n many", "'many' is not a number of lines, such as 100"),
        ("events --since tomorrow", "'tomorrow' is not a time: give 90s, 10m or 2h ago, or"),
        ("wait --timeout long", "'long' is not a duration: give seconds, or"),
        ("open --kye", "did you mean --key?"),
        ("stop job-1 job-2", "unknown argument job-2"),
        ("report --hmtl x run", "did you mean --html?"),
        ("demo --stpes 3", "did you mean --steps?"),
        ("doctor --jsno", "doctor does not take --jsno; it takes --json"),
        ("plan --nodes none", "--nodes none is not a number, as in --nodes 8"),
        ("status --address 10.0.0.2", "'10.0.0.2' is not an address of a head, such as"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_words_exit_with_64_and_say_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    said: str,
    as_json: bool,
) -> None:
    assert rollcall(monkeypatch, *words.split(), *["--json"] * as_json) == 64
    output = capsys.readouterr()
    first = output.err.splitlines()[0]
    assert said in first, "the fault itself, and no lines of usage before it"
    assert "usage:" not in output.err
    if as_json:
        row = json.loads(output.out)
        assert said in row["error"]
        assert row["exit_code"] == 64
    else:
        assert output.out == ""


@pytest.mark.parametrize("command", ["status", "wait", "events", "stop", "list", "logs"])
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("/no/such", "/no/such does not exist: give the run's directory"),
        ("./empty", "./empty is not a run: it has no journal.jsonl; give the run's directory"),
        (".", ". is not a run: it has no journal.jsonl"),
        ("./file", "./file is not a directory"),
        ("./" + 300 * "x", "cannot be looked at by this user"),
    ],
)
def test_a_path_without_a_run_is_a_wrong_word_whatever_run_the_settings_name(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    word: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").touch()
    monkeypatch.setenv("ROLLCALL_RUN_DIR", str(tmp_path / "run"))
    assert rollcall(monkeypatch, command, word) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("status", 64),
        ("logs", 64),
        ("events", 64),
        ("wait --timeout 1s", 64),
        ("open", 64),
        ("list", 64),
        ("stop", 64),
        ("rotate-token", 64),
        ("report RUN", 64),
        ("doctor", 64),
    ],
)
def test_json_tells_of_a_failure_too(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: str,
    code: int,
) -> None:
    monkeypatch.setenv("ROLLCALL_RUN_DIR", str(tmp_path))
    if words == "doctor":
        monkeypatch.setenv("RAY_WORKER", "maybe")
    given = words.replace("RUN", str(tmp_path)).split()
    assert rollcall(monkeypatch, *given, "--json") == code
    output = capsys.readouterr()
    row = json.loads(output.out)
    assert row["exit_code"] == code
    assert row["error"] in output.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("rollcall sta", "status"),
        ("rollcall ev", "events"),
        ("rollcall status --wa", "--watch"),
        ("rollcall logs gn1 --f", "--follow"),
        ("rollcall report RUN --h", "--help --html"),
        ("rollcall bundle RUN --o", "--out"),
        ("rollcall demo --cr", "--crash"),
        ("rollcall help plan", "plan"),
        ("rollcall prepare arith", "arithmetic"),
        ("rollcall prepare i", "index"),
        ("rollcall prepare gsm8k --mo", ""),
        ("rollcall prepare gsm8k --max", "--max-length --max-samples"),
        ("rollcall serve-retriever --top", "--topk"),
        ("rollcall serve-reward --protocol openrlhf --val", "--value-head-prefix"),
        ("rollcall translate --nu", "--number"),
        ("rollcall sft --pretr", "--pretrain --pretrain_mode"),
        ("rollcall dpo --bet", "--beta"),
    ],
)
def test_bash_completes_commands_and_flags(words: str, completed: str) -> None:
    assert complete(words) == completed


def test_bash_asks_another_program_once_for_its_flags(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    program = tmp_path / "rollcall"
    program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\necho "usage: --number N, --json"\n')
    program.chmod(0o755)
    assert complete(f"{program} translate --js", f"{program} translate --n") == "--number"
    assert calls.read_text() == "translate --help\n"


def complete(*lines: str) -> str:
    """What bash completes the last of these lines to, each asked for in turn in one shell."""
    beside_python = f'PATH="{Path(sys.executable).parent}:$PATH"'
    asks = [f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; _rollcall" for line in lines]
    script = "\n".join([beside_python, completion.script(), *asks, "echo ${COMPREPLY[@]}"])
    return subprocess.check_output(["bash", "-c", script], text=True).strip()


def test_the_words_of_a_job_ask_for_no_json() -> None:
    assert not cli.wants_json(["submit", "--", "train", "--json"])
    assert not cli.wants_json(["up", "--json"])
    assert cli.wants_json(["status", "--json"])


def test_each_command_with_arguments_of_its_own_is_known() -> None:
    assert set(arguments.COMMANDS) <= set(COMMANDS)
    assert set(cli.REMOTE) <= set(arguments.COMMANDS)


@pytest.mark.parametrize("command", ["stop", "status", "wait", "events"])
@pytest.mark.parametrize("word", ["", " ", "stop!"])
def test_an_empty_job_is_not_the_whole_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, word: str
) -> None:
    """As of `rollcall stop "$JOB"` in a shell that has no JOB."""
    assert rollcall(monkeypatch, command, word) == 64
    assert f"{word!r} is not a job's id, such as job-1" in capsys.readouterr().err
