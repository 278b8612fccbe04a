"""A new user's walk in a real shell: to the demo's page, and from a failed run to its cause.

`make setup` has nothing to do here: these tests run in what it has made.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from entrypoint.commands.demo import inherited
from entrypoint.run.failure_classes import REMEDIES
from tests.support.node_cluster import HEAD, Cluster
from tests.support.repository import ROOT
from tests.support.terminal import in_terminal

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.browser,
    pytest.mark.faults,
    pytest.mark.timeout(900),
]

PROMPT = "rollcall-test-prompt"
START_SECONDS = 400.0
LINK = re.compile(r"the run's page, to read only: (http://\S+)")


class Shell:
    """A bash of its own in a terminal of its own."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = ""
        self.until(PROMPT, 60)

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, words: str, seconds: float) -> str:
        """Return what the shell shows up to the first match of a pattern."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(words, self._unread)):
            assert time.monotonic() < deadline, f"no {words} in time:\n{self._unread[-4000:]}"
            self._unread += os.read(self._terminal, 65536).decode(errors="replace")
        shown, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return shown

    def runs(self, command: str, seconds: float = 120) -> tuple[str, int]:
        """Return what a command shows, without the line that was typed, and its exit code."""
        self.types(f"{command}\n")
        said = self.until(PROMPT, seconds).partition("\n")[2].removesuffix(PROMPT)
        self.types("echo code $?\n")
        code = re.search(r"code (\d+)\r", self.until(rf"code \d+\r\n{PROMPT}", 60))
        assert code
        return said.replace("\r\n", "\n"), int(code[1])


@pytest.fixture
def shell() -> Iterator[Shell]:
    """In the repository's root, with the programs of its environment."""
    bin_of_venv = str(Path(sys.executable).parent)
    env = inherited() | {"PATH": f"{bin_of_venv}:{os.environ['PATH']}", "PS1": PROMPT}
    env |= {"TERM": "dumb", "COLUMNS": "200"}
    bash = ["bash", "--noprofile", "--norc", "--noediting"]
    with in_terminal(["env", "-C", str(ROOT), *bash], env) as (_, terminal):
        yield Shell(terminal)


def test_two_commands_show_a_new_user_the_page_of_the_demo(shell: Shell) -> None:
    runs = ROOT / "runs"
    before = set(runs.iterdir()) if runs.is_dir() else set()
    said, code = shell.runs("make setup", START_SECONDS)
    assert code == 0, said
    shell.types("make demo\n")
    try:
        link = LINK.search(shell.until(LINK.pattern + r"\s", START_SECONDS))
        assert link
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            tab = browser.new_page()
            tab.goto(link[1])
            expect(tab.locator("#state")).to_contain_text("Training", timeout=1000 * START_SECONDS)
            expect(tab.locator("#facts")).to_contain_text("of 120", timeout=1000 * START_SECONDS)
            browser.close()
        shell.types("\x03")
        shell.until(PROMPT, 120)
    finally:
        made = set(runs.iterdir()) - before if runs.is_dir() else set()
        for directory in made:
            shutil.rmtree(directory)
    assert len(made) == 1


def test_one_command_tells_the_cause_of_a_failed_run(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('loading')\nraise ValueError('no such column: prompt')\n")
    cluster = Cluster(tmp_path / "one", workers=0, ROLLCALL_MAX_RESTARTS="0")
    try:
        own = cluster.environment(HEAD).items() - dict(os.environ).items()
        for name, value in own:
            shell.runs(f"export {name}='{value}'")
        said, code = shell.runs(f"rollcall up -- python {script}", START_SECONDS)
        assert code == 70, said
        assert f"the cause, and what to do: rollcall report {cluster.run.root}" in said
        said, code = shell.runs(f"rollcall report {cluster.run.root}")
        assert code == 0
        outcome, cause, place, to_do, again, log, *_ = said.splitlines()
        assert outcome.startswith("failed: the user's code failed, and the attempt brought no")
        assert cause == "cause: ValueError: no such column: prompt"
        assert place == f"place: {script}:2"
        assert to_do == f"what to do: {REMEDIES['code']}"
        assert again.startswith("to start its head again: ")
        assert "no such column: prompt" in Path(log.removeprefix("log: ")).read_text()
        said, code = shell.runs("rollcall status")
        assert said.splitlines()[1:6] == [cause, place, to_do, again, log]
    finally:
        cluster.close()
