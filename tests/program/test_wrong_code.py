"""A wrong reward file costs seconds: `plan` and `up` end with 64 before anything is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from tests.support.model_files import write_files

REWARD = """
def right(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def wrong(completions, answer, **kwargs):
    return [c + 1 for c in completions]
"""


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(REWARD)
    write_files(tmp_path / "model")
    return [
        *("--pretrain", "model", "--prompt_data", "rows.jsonl", "--input_key", "prompt"),
        *("--max_steps", "1", "--remote_rm_url"),
    ]


def run(directory: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    own = {"ROLLCALL_RUN_DIR": str(directory / "run"), "ROLLCALL_NUM_GPUS": "0"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "entrypoint", *words],
        env=kept | own | environ,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nosuch", "mine.py:nosuch: defines no function nosuch"),
        ("wrong", 'TypeError: can only concatenate str (not "int") to str (mine.py:6)'),
    ],
)
def test_a_wrong_reward_ends_plan_and_up_with_64_and_the_line(
    tmp_path: Path, flags: list[str], name: str, said: str
) -> None:
    for command in ("plan", "up"):
        done = run(tmp_path, command, *flags, f"mine.py:{name}")
        assert done.returncode == 64, done.stderr
        (fault,) = (line for line in done.stderr.splitlines() if said in line)
        assert "--no-code" not in fault
    assert not RunFiles(tmp_path / "run").journal.exists()


def test_a_missing_package_is_to_be_installed_or_the_check_left_out(
    tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "imports.py").write_text("import nosuch\n")
    done = run(tmp_path, "plan", *flags, "imports.py")
    assert done.returncode == 64
    assert "Install nosuch, or correct imports.py:1. If the nodes have what" in done.stderr
    assert "--no-code" in done.stderr


def test_a_right_reward_is_shown_and_no_code_runs_none(tmp_path: Path, flags: list[str]) -> None:
    done = run(tmp_path, "plan", *flags, "mine.py:right", "--json")
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["code"]
    assert lines[0].startswith("mine.py:right, row 1: '1' → 1, ")
    assert len(lines) == 4
    for words, environ in (
        (["--no-code"], {}),
        ([], {"ROLLCALL_CHECK_CODE": "0"}),
    ):
        done = run(tmp_path, "plan", *flags, "mine.py:wrong", "--json", *words, **environ)
        assert (done.returncode, json.loads(done.stdout)["code"]) == (0, None), done.stderr
