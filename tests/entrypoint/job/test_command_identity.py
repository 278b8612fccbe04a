"""A command is another one if its words are others, or the flags in its file of --config."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from contract.run_dir import RunFiles
from entrypoint.cluster.server import ControlServer
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.command_identity import fingerprint, is_same
from entrypoint.job.failures import resume_check
from entrypoint.job.recipes.builtin.recipe import RECIPE
from entrypoint.job.run_context import RunContext
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal


def settings(*job: str, recipe: str = "builtin") -> Settings:
    return read_settings({"ROLLCALL_RECIPE": recipe}, job)


def of_earlier_versions(config: Settings) -> str:
    """As they made it, of the recipe and the words alone."""
    command = [config.recipe, *config.job]
    return hashlib.sha256(json.dumps(command).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "before", "same", "other"),
    [
        ("f.yaml", "a: 1\nload_step: 3", "load_step: 3 # why\na: 1", "a: 1\nload_step: 4"),
        ("f.toml", "a = 1\nload_step = 3", "load_step = 3 # why\na = 1", "a = 1\nload_step = 4"),
        ("f.yaml", "a: [", "a: [", "a: [["),  # it cannot be parsed
    ],
)
@pytest.mark.parametrize("joined", [True, False])
def test_a_changed_file_of_flags_makes_another_command(
    tmp_path: Path, name: str, before: str, same: str, other: str, *, joined: bool
) -> None:
    file = tmp_path / name
    config = settings(f"--config={file}") if joined else settings("--config", str(file))

    def written(content: str) -> str:
        file.write_text(content)
        return fingerprint(config)

    first = written(before)
    assert is_same(first, written(same))
    assert not is_same(first, written(other))


def test_a_run_that_an_earlier_version_began_goes_on_as_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("max_steps: 3")
    config = settings("--config", str(tmp_path / "f.yaml"))
    events = [
        {"kind": "attempt", "attempt": 1, "details": {"command": of_earlier_versions(config)}},
        {"kind": "resume", "attempt": 1, "details": {}},
    ]
    assert resume_check.has_begun(events, fingerprint(config))
    assert fingerprint(plain := settings("--max_steps", "3")) == of_earlier_versions(plain)
    assert fingerprint(settings()) == of_earlier_versions(settings())
    assert not is_same(None, fingerprint(config))


def test_a_file_that_is_edited_during_the_run_makes_no_other_command_of_the_next_attempt(
    tmp_path: Path,
) -> None:
    """Otherwise --load_step would count again after a crash."""
    file = tmp_path / "f.yaml"
    file.write_text("load_step: 3")
    config = replace(settings("--config", str(file)), run_dir=tmp_path)
    journal = Journal(RunFiles(tmp_path).journal, "head")
    run = RunContext(config, RECIPE, journal, cast(ControlServer, None), Inbox())
    before = run.fingerprint
    file.write_text("load_step: 3\nmax_steps: 9")
    assert run.fingerprint == before
    assert fingerprint(config) != before  # but of the next head


def test_a_file_that_is_away_for_a_moment_makes_no_other_command(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("max_steps: 3")
    config = settings("--config", str(file))
    before = fingerprint(config)
    file.unlink()
    assert is_same(before, fingerprint(config))
    assert not is_same(before, fingerprint(settings("--config", str(file), "--seed", "1")))


def test_the_config_of_another_program_counts_too(tmp_path: Path) -> None:
    """Otherwise a finished run would not begin again with another file."""
    file = tmp_path / "f.py"
    config = settings("train", "--config", str(file), recipe="command")
    file.write_bytes(b"lr = 1\xff")
    before = fingerprint(config)
    file.write_bytes(b"lr = 2\xff")
    assert not is_same(before, fingerprint(config))
    directory = settings("train", "--config", str(tmp_path), recipe="command")
    assert fingerprint(directory) == of_earlier_versions(directory)
