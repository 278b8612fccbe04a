"""Pure: the words of a submitted job → the recipe that runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from entrypoint.config.job_parsers import OPENRLHF, variables_before
from entrypoint.config.parsers import BUILTIN, OURS, STAGES, SUPERVISED
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import verl_words
from entrypoint.job.recipes.torchrun import script_place, starts_all_nodes
from entrypoint.job.recipes.trl_words import OTHERS
from entrypoint.job.recipes.typed_words import PYTHON, unwrapped
from trainer.cluster.launch.words import LaunchError, parse

OF_SEARCH_R1 = re.compile(
    r"\+{0,2}(?:retriever\.\w+|max_turns|do_search|data\.max_(?:start|obs)_length"
    r"|actor_rollout_ref\.actor\.state_masking)=.*",
    re.DOTALL,
)
"""Overrides that Search-R1's copy of verl has, and verl itself has not."""

OF_NO_PROGRAM: Mapping[str, Any] = {"step_pattern": None, "checkpoints": None, "resume_args": ()}
OF_ANY_PROGRAM = ("command", "torchrun")
"""Recipes whose jobs the head's variables of steps, checkpoints and resume are for."""


def settings_for(head: Settings, words: Sequence[str]) -> Settings:
    """Return the head's settings with a submitted job and its recipe.

    What says how any program is read, such as ROLLCALL_STEP_PATTERN, is left out for a recipe that
    knows its program, unless the head's ROLLCALL_RECIPE names that recipe.
    """
    recipe = recipe_of(words, head.recipe)
    settings = replace(head, job=tuple(words), recipe=recipe)
    is_meant = recipe in OF_ANY_PROGRAM or (recipe == head.recipe and recipe not in OURS)
    return settings if is_meant else replace(settings, **OF_NO_PROGRAM)


def recipe_of(words: Sequence[str], given: str = BUILTIN) -> str:
    """Return the recipe: flags are the builtin trainer's, anything else is a program.

    The stages sft, rm and dpo, and the launchers torchrun, deepspeed, `accelerate launch` and
    `trl` start ranks on all nodes. The commands of the guides of OpenRLHF, verl and Search-R1 are
    known. `given`: ROLLCALL_RECIPE of the head, which counts if that recipe knows the words.
    """
    if words[0].startswith("-"):
        return BUILTIN
    if words[0] in STAGES:
        return SUPERVISED
    found = (*_knowing(words), "command")
    return given if given in found else found[0]


def _knowing(words: Sequence[str]) -> tuple[str, ...]:
    """Return the recipes that know the program, the likeliest first."""
    first = variables_before(words)[1]
    if PurePath(next(iter(first), "")).name == "trl":
        return () if OTHERS.intersection(first[1:2]) else ("trl",)
    typed = variables_before(unwrapped(words)[0])[1]
    program = _program(typed)
    if program[:1] == ["-m"] and verl_words.MODULES.fullmatch(program[-1]):
        is_search_r1 = any(OF_SEARCH_R1.fullmatch(word) for word in typed)
        if program[-1] != verl_words.MODULE:
            return ("verl",)
        return ("search-r1", "verl") if is_search_r1 else ("verl", "search-r1")
    launchers = ("torchrun", "trl") if starts_all_nodes(words) else ()
    return ("openrlhf", *launchers) if OPENRLHF.fullmatch(program[-1]) else launchers


def _program(words: Sequence[str]) -> list[str]:
    """Return the module or the script that is started, with `-m` if a Python has that before it."""
    if starts_all_nodes(words):
        once = words[1:] if words[:1] == words[1:2] else words  # a guide has `torchrun torchrun`
        try:
            return [parse(once).program[-1]]
        except LaunchError:
            return [""]
    rest = list(words)
    if rest and PYTHON.fullmatch(rest[0]):
        first = 1 + script_place(rest[1:])
        if "-c" in rest[1:first]:
            return [""]
        rest = rest[first:]
    return (rest[:2] if rest[:1] == ["-m"] else rest[:1]) or [""]
