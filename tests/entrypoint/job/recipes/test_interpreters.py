"""Which Python has a framework: asked of real interpreters."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from entrypoint.job.recipes import interpreters
from tests.support.interpreters import python_with


def test_the_version_of_a_package_is_that_of_the_interpreter() -> None:
    assert interpreters.version_in(sys.executable, "pytest") == version("pytest")
    assert interpreters.version_in(sys.executable, "no-such-package") is None
    assert interpreters.version_in("/none/python", "pytest") is None


def test_an_interpreter_that_was_too_slow_is_asked_again_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one on cold storage: the first start reads it, and the next finds it in memory."""
    python, calls = tmp_path / "python", tmp_path / "calls"
    slow = f"[ -e {calls} ] || {{ echo >> {calls}; exec sleep 60; }}; echo >> {calls}"
    python.write_text(f'#!/bin/sh\n{slow}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(interpreters, "PROBE_SECONDS", 1.0)
    assert interpreters.version_in(str(python), "pytest") is None
    assert interpreters.unanswered("Pytest", None, str(python)) == (
        f"{python} did not end within 1 s, asked whether it has Pytest: try again, or give another "
        "Python"
    )
    monkeypatch.setattr(interpreters, "PROBE_SECONDS", 60.0)
    for _ in range(2):
        assert interpreters.version_in(str(python), "pytest") == version("pytest")
    assert interpreters.version_in(str(python), "no-such-package") is None
    assert interpreters.unanswered("Pytest", str(python)) == "", "it has said that it has none"
    assert len(calls.read_text().splitlines()) == 3


def test_the_python_on_the_path_runs_what_only_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_with("framework_of_a_test", tmp_path / "python3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert interpreters.interpreter_for("python3", "framework_of_a_test") == str(python)
    assert interpreters.interpreter_for(None, "framework_of_a_test") == str(python)
    assert interpreters.interpreter_for("python3", "pytest") == sys.executable
    assert interpreters.interpreter_for("python3", "no_such_module") == sys.executable
    assert interpreters.interpreter_for("/opt/x/bin/python", "pytest") == "/opt/x/bin/python"


def test_pythons_at_the_usual_places_are_found(tmp_path: Path) -> None:
    for name in ("rl", "other"):
        (tmp_path / "opt" / name / "bin").mkdir(parents=True)
    python = python_with("framework_of_a_test", tmp_path / "opt/rl/bin/python")
    (tmp_path / "opt/other/bin/python").symlink_to(sys.executable)
    assert interpreters.others_with("framework_of_a_test", tmp_path) == [str(python)]
