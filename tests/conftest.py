"""What a machine cannot run is skipped with its reason, never silently."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import settings

# The same examples in every run, and no limit that a busy machine could break.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for level, missing in MISSING.items():
            if item.get_closest_marker(level) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))


def no_gpu() -> str | None:
    return None if shutil.which("nvidia-smi") or shutil.which("amd-smi") else "no GPU here"


def no_slurm() -> str | None:
    return None if shutil.which("slurmctld") else "no Slurm here"


def no_browser() -> str | None:
    return None if shutil.which("chromium") else "no browser here"


MISSING = {"gpu": no_gpu, "slurm": no_slurm, "browser": no_browser}
