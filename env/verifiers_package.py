"""Whether the package `verifiers` and a package with an environment of it are installed.

Neither is imported: `trainer.rollout.try_code` runs it, in a process of its own.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

PREFIX = "verifiers:"
VERSIONS = "verifiers>=0.2.1,<0.4"
OLDEST, TOO_NEW = (0, 2, 1), (0, 4, 0)


def fault_and_remedy(spec: str) -> tuple[str, str]:
    """Return what is wrong with `verifiers:NAME` here and its remedy; empty if right."""
    name = spec.removeprefix(PREFIX)
    module = name.replace("-", "_").rpartition("/")[2]  # as verifiers.load_environment has it
    if not module.isidentifier():
        return "names no environment", f"Give {PREFIX}NAME, such as {PREFIX}gsm8k"
    install = f"`pip install '{VERSIONS}'`"
    try:
        installed = version("verifiers")
    except PackageNotFoundError:
        return "the package verifiers is not installed here", f"Install it: {install}"
    if not OLDEST <= _numbers(installed) < TOO_NEW:
        return (
            f"verifiers {installed} is installed here, and its environments have another interface",
            f"Install another version: {install}",
        )
    if find_spec(module) is None:
        return (
            f"no package with the module {module} is installed here",
            "Install the environment's package",
        )
    return "", ""


def _numbers(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    parts = text.split(".")[:3]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
