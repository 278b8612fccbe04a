"""Every example in the docs runs, and what the docs quote from the code is what the code says.

A block fenced as ```sh run=LEVEL is executed line by line: `default` at once, `cluster` where Ray
nodes may start, `server` in the background, `after` against the server before it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.run_dir import ExitCode
from entrypoint.config.settings import markdown

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(level: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for language, options, body in FENCE.findall(page.read_text()):
            if language == "sh" and f"run={level}" in options.split():
                found.append((page.name, body.replace("\\\n", " ")))
    return found


def run(body: str, directory: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line in filter(None, body.splitlines()):
        done = subprocess.run(
            shlex.split(line),
            cwd=directory,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("page", "body"), blocks("default"))
def test_an_example_runs(page: str, body: str, tmp_path: Path) -> None:
    run(body, tmp_path)


@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("page", "body"), blocks("cluster"))
def test_an_example_that_trains_runs(page: str, body: str, tmp_path: Path) -> None:
    run(body, tmp_path)


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_the_server_example_answers_the_client_example(tmp_path: Path, free_port: int) -> None:
    ((_, serve),), ((_, ask),) = blocks("server"), blocks("after")
    serve, ask = (text.replace("5000", str(free_port)) for text in (serve, ask))
    argv = [sys.executable, *shlex.split(serve)[1:]]
    server = subprocess.Popen(argv, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while True:
            done = subprocess.run(shlex.split(ask), capture_output=True, text=True)
            if done.returncode == 0:
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert '"rewards":[1.0]' in done.stdout.replace(" ", "")
    finally:
        server.terminate()
        server.wait(30)


def test_there_are_examples_to_run() -> None:
    assert blocks("default")
    assert blocks("cluster")


def test_the_readme_has_every_exit_code() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [code for code in ExitCode if f"| {int(code)} |" not in readme] == []


def test_the_readme_has_the_table_of_settings() -> None:
    assert markdown().strip() in (ROOT / "README.md").read_text()


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
