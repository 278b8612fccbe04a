"""The words of a job as somebody typed them → the recipe that runs it."""

from __future__ import annotations

import os.path
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from contract.launch.command_lines import PYTHON
from contract.options import Fault
from entrypoint.config.recipe_registry import ANY, BUILTIN, RECIPES, command_of
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.base import load
from entrypoint.job.recipes.script import (
    INSTEAD_OF_IT,
    OF_SLURM,
    EndsError,
    Found,
    NotAloneError,
    Script,
    is_of_slurm,
    no_program,
    only_command,
    script_in,
    variable,
)
from entrypoint.job.recipes.script import (
    given as how_to_give,
)
from entrypoint.job.recipes.typed_command import Match, TypedCommand

NONE: Mapping[str, Any] = {}
OF_NO_PROGRAM: Mapping[str, Any] = {"step_pattern": None, "checkpoints": None, "resume_args": ()}


def settings_for(
    head: Settings, words: Sequence[str], runtime_env: Mapping[str, Any] = NONE
) -> Settings:
    """Return the head's settings with a submitted job and its recipe.

    What says how any program is read, such as ROLLCALL_STEP_PATTERN, is left out for a recipe that
    knows its program, unless the head's ROLLCALL_RECIPE names that recipe.
    """
    name = recipe_of(words, head.recipe, runtime_env)
    job, around = command_of(name, words)
    settings = replace(head, job=job, around_job=around, recipe=name)
    is_meant = name == head.recipe and not RECIPES[name].own_trainer
    if is_meant or load(name).runs_any_program:
        return settings
    return replace(settings, **OF_NO_PROGRAM)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A job that was typed in front of a node, and what is made of it."""

    words: tuple[str, ...]
    recipe: str
    said: str
    """What it is and which recipe runs it, for people."""
    directory: str = ""
    """Where the command starts; "" if it starts where this process is."""
    is_known: bool = True
    """Whether the recipe knows the program, so that nobody can mean that it is run as it is."""
    warnings: tuple[str, ...] = ()
    fault: Fault | None = None
    """Why the script would fail as it is; None if nothing says so."""


def recognised(words: Sequence[str], given: str | None, began: float | None = None) -> Recognised:
    """Return the recipe of typed words, and the words of the trainer's command.

    A script of a shell that has one command of a trainer, and nothing else that counts, is that
    command. `given`: what ROLLCALL_RECIPE names, if it is set; `began`: as in `only_command`.
    """
    words = _split(words)
    script, why, fault = script_in(words), "", None
    name = given or recipe_of(words)
    if given is None or RECIPES[given].reads_command:
        try:
            found = only_command(script, partial(_is_of, given), began) if script else None
        except NotAloneError as error:
            found, why = None, str(error)
            fault = error.fault if isinstance(error, EndsError) else None
        if script and found:
            name = given or recipe_of(found.words)
            said = f"{script.shown} has {_shown(name, found.words, script)}"
            if found.left_out:
                said += f". Left out: {', '.join(found.left_out)}"
            warnings = tuple(_warnings(script, found))
            return Recognised(found.words, name, said, found.directory, warnings=warnings)
    if script and why and name == ANY:
        said = (
            f"{script.shown} runs as it is on the head, by recipe {ANY}: {why}. A trainer's "
            "command alone has its own recipe, which knows its steps and resumes it"
        )
        return Recognised(tuple(words), name, said, is_known=False, fault=fault)
    is_known = not load(name).runs_any_program or recipe_of(words) == name != ANY
    return Recognised(tuple(words), name, _shown(name, words, None), is_known=is_known)


def _warnings(script: Script, found: Found) -> Iterator[str]:
    """Yield a sentence on what the command lacks, or has otherwise than the script may mean it."""
    for name, line in found.unset.items():
        yield (
            f"{script.shown}, line {line}: {variable(name)} is not set, and its place in the "
            f"command is empty. {how_to_give(name)}"
        )
    for file, line in found.absent.items():
        yield f"{script.shown}, line {line}: {file} is not a file here, and sets nothing"
    for program, line in found.away.items():
        yield (
            f"{script.shown}: {no_program(program, line)}. What the command takes from it may be "
            f"otherwise on the nodes. {INSTEAD_OF_IT}"
        )
    yield from (f"{script.shown}, {note}" for note in found.notes)
    for command in found.environments:
        yield f"{command}: no effect here; run it before Rollcall starts"


def _is_of(given: str | None, words: Sequence[str]) -> bool:
    """Return whether a command is one of the given recipe, or of any that knows its program."""
    typed = TypedCommand(tuple(words))
    if given is not None:
        return load(given).recognises(typed) is not Match.NONE
    return bool(words) and words[0][:1] != "-" and recipe_of(words) != ANY


def _shown(name: str, words: Sequence[str], script: Script | None) -> str:
    """Return what the words are, which recipe runs them, and what else could."""
    recipe, typed = load(name), TypedCommand(tuple(words))
    if not recipe.framework:
        program = next(iter(typed.unwrapped), "")
        if not shutil.which(program):
            return ""  # a fault says what would do
        if is_of_slurm(typed.unwrapped):
            return f"{program} starts programs on Slurm's nodes, and {OF_SLURM}"
        said = (
            f"{typed.name} is a program that no other recipe knows: recipe {name} runs it once, on "
        )
        is_script = bool(PYTHON.fullmatch(program)) and typed.program != ("",)
        every = "ROLLCALL_RECIPE=torchrun runs a script on every GPU of all nodes"
        return f"{said}the head" + (f". {every}" if is_script else "")
    said = f"{recipe.shown(typed)}: recipe {name}; ROLLCALL_RECIPE decides otherwise"
    if recipe.is_translated(typed):
        behind = script.argv[0] if script and script.argv[0] != "-c" else "-- …"
        said += f", and `rollcall translate {behind}` makes it one of the builtin trainer"
    return said


def _split(words: Sequence[str]) -> Sequence[str]:
    """Return a whole command in one word as a line of a shell, as some manifests give it."""
    if len(words) == 1 and len(words[0].split()) > 1 and not os.path.lexists(words[0]):
        return ("bash", "-c", words[0])
    return words


def words_to_run(
    words: Sequence[str], runtime_env: Mapping[str, Any], given: str
) -> tuple[str, ...]:
    """Return the words of a submitted job; of a script with a trainer's command, that command.

    A script that starts elsewhere than on the head's own files runs as it is. `given`:
    ROLLCALL_RECIPE of the head.
    """
    if given == ANY or "working_dir" in runtime_env or not words:
        return tuple(words)
    found = recognised(words, None)
    return tuple(words) if found.directory or not found.is_known else found.words


def recipe_of(
    words: Sequence[str], given: str = BUILTIN, runtime_env: Mapping[str, Any] = NONE
) -> str:
    """Return the recipe that knows the words best.

    `given`: ROLLCALL_RECIPE of the head, which counts if that recipe knows the words, too;
    `runtime_env`: the job's, whose `working_dir` may have the script.
    """
    if not words:
        return given
    typed = TypedCommand(tuple(words), runtime_env)
    matches = {name: load(name).recognises(typed) for name in RECIPES}
    best = max(matches, key=matches.__getitem__)
    return given if matches[given] and matches[best] is not Match.SURE else best
