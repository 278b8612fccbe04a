"""Which Python has a framework: asked of real interpreters."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from entrypoint.job.recipes import interpreters


def python_with(module: str, path: Path) -> Path:
    """Make a Python that finds one module more."""
    modules = path.parent / f"{path.name}-modules"
    modules.mkdir(parents=True)
    (modules / f"{module}.py").touch()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={modules} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_the_version_of_a_package_is_that_of_the_interpreter() -> None:
    assert interpreters.version_in(sys.executable, "pytest") == version("pytest")
    assert interpreters.version_in(sys.executable, "no-such-package") is None
    assert interpreters.version_in("/none/python", "pytest") is None


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
