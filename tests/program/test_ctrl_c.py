"""Ctrl-C in the first moments of a command, at each import that takes a while."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_IMPORT = """
import runpy, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            raise KeyboardInterrupt

at = sys.argv[1]
del sys.argv[1]
sys.meta_path.insert(0, CtrlC())
runpy.run_module("entrypoint", run_name="__main__", alter_sys=True)
"""
WITHOUT_EXEC = f"""
import os, sys
os.execv = lambda program, argv: (_ for _ in ()).throw(SystemExit("executes " + argv[3]))
{INTERRUPTED_IMPORT}
"""


def ended(program: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("at", "command"),
    [
        ("contract.exit_codes", "status"),
        ("entrypoint.config.read", "status"),
        ("entrypoint.commands.jobs", "status"),
        ("entrypoint.commands.arguments", "version"),
        ("entrypoint.commands.plan", "plan"),
        ("entrypoint.node.head", "up"),
    ],
)
def test_a_command_that_is_interrupted_while_it_imports_says_nothing(at: str, command: str) -> None:
    assert ended(INTERRUPTED_IMPORT, at, command) == (130, "")


@pytest.mark.parametrize("command", ["prepare", "translate", "serve-retriever", "serve-reward"])
def test_a_program_that_a_command_becomes_says_nothing_either(command: str) -> None:
    code, said = ended(WITHOUT_EXEC, "none", command)
    assert (code, said) == (1, "executes entrypoint.processes.interruptible\n")


def test_such_a_program_ends_with_130_and_has_its_own_words_and_exit_code() -> None:
    run = INTERRUPTED_IMPORT.replace('"entrypoint"', '"entrypoint.processes.interruptible"')
    assert ended(run, "env.prepare.output", "env.prepare") == (130, "")
    assert ended(run, "env.prepare", "env.prepare") == (130, "")
    code, said = ended(run, "none", "env.prepare", "no-such-task")
    assert code == 64
    assert "no-such-task" in said
