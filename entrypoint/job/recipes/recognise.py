"""Pure: the words of a submitted job → the recipe that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from entrypoint.config.recipes import BUILTIN, RECIPES
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.base import load
from entrypoint.job.recipes.typed_command import Match, TypedCommand

OF_NO_PROGRAM: Mapping[str, Any] = {"step_pattern": None, "checkpoints": None, "resume_args": ()}


def settings_for(head: Settings, words: Sequence[str]) -> Settings:
    """Return the head's settings with a submitted job and its recipe.

    What says how any program is read, such as ROLLCALL_STEP_PATTERN, is left out for a recipe that
    knows its program, unless the head's ROLLCALL_RECIPE names that recipe.
    """
    name = recipe_of(words, head.recipe)
    settings = replace(head, job=tuple(words), recipe=name)
    is_meant = name == head.recipe and not RECIPES[name].own_trainer
    if is_meant or load(name).runs_any_program:
        return settings
    return replace(settings, **OF_NO_PROGRAM)


def recipe_of(words: Sequence[str], given: str = BUILTIN) -> str:
    """Return the recipe that knows the words best.

    `given`: ROLLCALL_RECIPE of the head, which counts if that recipe knows the words, too.
    """
    typed = TypedCommand(tuple(words))
    matches = {name: load(name).recognises(typed) for name in RECIPES}
    best = max(matches, key=matches.__getitem__)
    return given if matches[given] and matches[best] is not Match.SURE else best
