"""Has a job that ended with exit code 0 done what a finished one does?

A library or a reward function may call `os._exit(0)` in the middle of a training. So each recipe
asks for something that only the end of its training leaves: an event, a line, a model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SIGHT_SECONDS = 10.0
"""How long a file system may take to show what another node has written.

Each look opens the directory and its files, so NFS asks its server (close-to-open consistency).
With `nocto` it may take 60 s: the run then resumes, and its framework writes the model again.
"""
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What an attempt's log and journal tell when its driver has ended with exit code 0."""

    step: int = 0
    """The newest finished step of the run."""
    total_steps: int = 0
    """0: unknown."""
    before: int = 0
    """Steps of the run before those that the attempt's log counts."""
    epoch_steps: int = 0
    """Steps of one pass over the data; 0: unknown."""
    told: bool = False
    """This attempt has told a step."""
    reached: bool = False
    """One of the steps that it has told may have been its last: no other was due after it."""
    lost: int = 0
    """Steps whose lines Ray may have lost at the end."""
    ended: bool = False
    """The framework's own last line is the newest sign of the training."""
    events: frozenset[str] = frozenset()
    """Kinds of the attempt's events in the journal."""


Lacking = Callable[[JobEnd], str]
"""Returns what a finished job leaves and this one has not, such as `has not written its model`.

Returns "" if the job has finished, or if nobody can know.
"""


def of_script(end: JobEnd) -> str:
    """A script that `launch.with_steps` of this version runs: its mark is the last line."""
    return "" if end.ended else "its script has not run to its end"


def of_steps(end: JobEnd) -> str:
    """A script of which only the steps are known."""
    return "steps are left" if end.told and not end.ended and end.step < end.total_steps else ""


def of_given_steps(end: JobEnd) -> str:
    """A program of which only its own numbers are known: the step, and of how many.

    It may tell every tenth step, count from 0, and have bars of something else besides.
    """
    missing = end.total_steps - end.step
    if not end.told or not end.total_steps or end.reached or missing <= end.lost:
        return ""
    return (
        f"{missing} steps are left by its own numbers (if it may end early, it must not tell "
        "`total_steps`)"
    )


def written_to(directory: Path) -> Lacking:
    """Return what looks for a model that was written to `directory` after this call."""
    before = _configs(directory)

    def lacking(end: JobEnd) -> str:
        deadline = time.monotonic() + SIGHT_SECONDS
        while _configs(directory) == before:
            if end.ended:
                return ""
            if time.monotonic() > deadline:
                return f"it has not written its model to {directory}"
            time.sleep(LOOK_SECONDS)
        return ""

    return lacking


def _configs(directory: Path) -> frozenset[tuple[str, int, int]]:
    """Return name, time and inode of the settings of a model or an adapter: one writes it last."""
    found = set()
    with suppress(OSError):
        next(directory.iterdir(), None)  # opens it
    for name in ("config.json", "adapter_config.json"):
        with suppress(OSError), (directory / name).open("rb") as file:
            status = os.fstat(file.fileno())
            found.add((name, status.st_mtime_ns, status.st_ino))
    return frozenset(found)


def sentence(end: JobEnd, lacking: str) -> str:
    """Return why exit code 0 is not an end of the run. `lacking`: of the recipe."""
    of = f" of {end.total_steps}" if end.total_steps else ""
    return (
        f"the job ended with exit code 0 after step {end.step}{of}, and {lacking}: something in it "
        "has ended the process, as os._exit(0) and sys.exit(0) in a reward function or library do"
    )
