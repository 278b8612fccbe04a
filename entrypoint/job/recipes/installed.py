"""Where the framework of a job lies: in its Python, or in what its environment brings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.job.recipes.interpreters import package_in


def brings(settings: Settings, variables: Mapping[str, str], package: str) -> bool:
    """Return whether the job may run another package than that of its Python.

    `variables`: those before the command.
    """
    environment = settings.runtime_env
    brought = set(NEEDS_INSTALL) & set(environment)
    if working_dir.is_local(environment):
        place = working_dir.place(environment)
        if place.is_dir() and not (place / package).is_dir():
            brought.discard("working_dir")
    return bool(brought) or "PYTHONPATH" in {**variables, **environment.get("env_vars", {})}


def package_of(
    settings: Settings, variables: Mapping[str, str], python: str, package: str
) -> Path | None:
    """Return the directory of the package that will run; None if only the nodes know it."""
    environment = settings.runtime_env
    if working_dir.is_local(environment):
        own = working_dir.place(environment) / package
        if own.is_dir():
            return own
    return None if brings(settings, variables, package) else package_in(python, package)


def source_of(package: Path, module: str) -> Path | None:
    """Return the file of a module `package.x.y`; None if the package has none."""
    path = package.joinpath(*module.split(".")[1:])
    files = (path.with_suffix(".py"), path / "__main__.py")
    return next((file for file in files if file.is_file()), None)
