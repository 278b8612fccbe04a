"""A user's directory with folders `trainer`, `env` and `entrypoint` shadows nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROLLCALL = str(Path(sys.executable).with_name("rollcall"))
BROKEN = "raise RuntimeError('the user\\'s own package was imported')\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user's; it is the working directory."""
    for name in ("contract", "trainer", "env"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(BROKEN)
    (tmp_path / "entrypoint").mkdir()  # a package too, though it has no such file
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
    return subprocess.run(words, env=kept, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("directory")
def test_a_node_says_its_plan() -> None:
    done = run(ROLLCALL, "plan", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["role"] == "head"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("prepare --help", "prompts with a tiny model"),
        ("python -m env.server --help", "a reward function over HTTP"),
        ("python -u -m trainer --help", "--pretrain"),
    ],
)
def test_our_programs_run(words: str, said: str) -> None:
    done = run(ROLLCALL, *words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


def test_a_users_own_module_runs_whatever_its_name(directory: Path) -> None:
    (directory / "env" / "__init__.py").write_text("NAME = 'mine'\n")
    tells = "from env import NAME; import sys; print(NAME, sys.argv[1:])\n"
    for module in ("server", "game"):
        (directory / "env" / f"{module}.py").write_text(tells)
        done = run(ROLLCALL, "python", "-m", f"env.{module}", "x")
        assert done.stdout == "mine ['x']\n", done.stderr
