"""What the demo tells one who looks at it from outside."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.commands import cli, demo
from entrypoint.commands.demo import Layout
from entrypoint.config.read import read_settings
from entrypoint.config.role import host_to_ask
from entrypoint.machine import address
from tests.support.repository import ROOT
from tests.support.stored import write_checkpoint


def test_another_shell_asks_the_demos_head_with_the_variables_that_are_printed() -> None:
    layout = Layout(Path("/my runs/demo"), 21000)
    given = dict(word.split("=", 1) for word in shlex.split(layout.asking))
    settings = read_settings(given)
    assert settings.run_dir == layout.run.root
    assert (host_to_ask(settings), settings.control_port) == ("127.0.0.2", 21002)


def test_each_node_of_the_demo_listens_at_its_own_loopback_address_alone() -> None:
    for number in range(3):
        settings = read_settings(Layout(Path("/my runs/demo"), 21000).node(number))
        assert address.bound(settings) == settings.node_address == f"127.0.0.{2 + number}"
        assert number or address.bind_fault(settings) is None


def test_how_long_it_takes_is_said_alike_everywhere() -> None:
    said = [demo.WHAT_COMES, cli.COMMANDS["demo"]]
    said += [(ROOT / name).read_text() for name in ("README.md", "Makefile")]
    assert [cli.DEMO_TAKES in text for text in said] == [True] * 4


def test_a_directory_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert demo.main(["--dir", str(tmp_path / "file")]) == ExitCode.RUN_DIR
    told = f"{tmp_path}/file/run: Not a directory: give --dir a directory that can be written"
    assert capsys.readouterr().out.endswith(f" demo ERROR: {told}\n")


def test_a_demo_that_has_steps_refuses_another_seed_before_it_starts_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Layout(tmp_path, 0).run
    write_checkpoint(run, 5)
    run.run.write_text(json.dumps({"flags": {"seed": "0"}}))
    assert demo.main(["--dir", str(tmp_path), "--seed", "5"]) == ExitCode.USAGE
    told = f"--seed 5: {run.root} has steps with --seed 0, and goes on with no other"
    assert f"{told}. Give that one, or another --dir" in capsys.readouterr().out
    assert not run.journal.exists()


TELLS = """
import sys
from pathlib import Path
from contract.files.os_errors import to_a_reader
from entrypoint.commands import demo
sys.exit(to_a_reader(lambda: demo.tell_end(demo.Layout(Path(sys.argv[1]), 0)) or 0))
"""


def test_a_finished_demo_exits_with_0_even_if_the_reader_of_its_output_has_left(
    tmp_path: Path,
) -> None:
    run = Layout(tmp_path, 0).run
    run.root.mkdir()
    rows = [{"step": step, "train/reward": 0.5, "eval/accuracy": 0.5} for step in (1, 2)]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = {"eval_before": 0.4, "eval_after": 0.9, "steps": 1, "attempts": 1}
    run.result.write_text(json.dumps(result))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", TELLS, tmp_path],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert (run.root / "learning_curve.png").is_file()


def test_a_demo_goes_on_with_its_own_name_and_steps() -> None:
    layout = Layout(Path("/my runs/demo"), 21000, "first try")
    given = ["--dir", str(layout.root), "--steps", "12", "--seed", "3", "--name", "first-try"]
    options = demo.parser().parse([*given, "--crash"])
    program, command, *words = shlex.split(demo.again(layout, options))
    assert (Path(program).name, command) == ("rollcall", "demo")
    assert vars(demo.parser().parse(words)) == vars(options)
