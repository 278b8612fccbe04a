"""Pythons that find more modules than that of the tests."""

from __future__ import annotations

import sys
from pathlib import Path


def python_with(module: str, path: Path) -> Path:
    """Make a Python that finds one module more."""
    modules = path.parent / f"{path.name}-modules"
    modules.mkdir(parents=True)
    (modules / f"{module}.py").touch()
    return python_beside(modules, path)


def python_beside(modules: Path, path: Path) -> Path:
    """Make a Python that finds what is installed in a directory."""
    path.write_text(f'#!/bin/sh\nPYTHONPATH={modules} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path
