"""Finds the complete checkpoints of Search-R1: weights, as Hugging Face models.

Search-R1 writes DIRECTORY/actor/global_step_N and then, with a critic, DIRECTORY/critic. It cannot
resume, and counts from 1 again. So each attempt that goes on after step S has a directory of its
own, DIRECTORY/after_S, and the step of a checkpoint there is S + N.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint.job.checkpoint_files import is_model
from entrypoint.job.found_checkpoints import named
from entrypoint.job.recipes.verl.checkpoints import NAME

AFTER = re.compile(r"after_(?P<step>[0-9]{1,15})")
ACTOR, CRITIC = "actor", "critic"


@dataclass(frozen=True, slots=True)
class SearchR1Checkpoint:
    step: int
    place: Path
    """The attempt's directory."""
    number: int
    """The step as the attempt counted it."""

    def of(self, role: str) -> Path:
        return self.place / role / f"global_step_{self.number}"


def newest(directory: Path, roles: Sequence[str]) -> SearchR1Checkpoint | None:
    """Return the checkpoint with the highest step that is complete for all roles; None if none."""
    found = sorted(_found(directory), key=lambda one: one.step, reverse=True)
    return next((one for one in found if all(is_model(one.of(role)) for role in roles)), None)


def directory_after(directory: Path, step: int) -> Path:
    """Return where an attempt that goes on after this step writes its checkpoints."""
    return directory / f"after_{step}" if step else directory


def _found(directory: Path) -> Iterator[SearchR1Checkpoint]:
    """Yield all checkpoints of the actor, complete or not."""
    attempts = [(0, directory), *((one.step, one.path) for one in named(directory, AFTER))]
    for before, place in attempts:
        for one in named(place / ACTOR, NAME):
            yield SearchR1Checkpoint(before + one.step, place, one.step)
