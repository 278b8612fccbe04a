"""What the verl of a job's Python has: the module that runs, and the keys of its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from entrypoint.config.settings import Settings
from entrypoint.job.recipes.builtin.verl_keys import known_keys
from entrypoint.job.recipes.interpreters import brings, interpreter_for, package_of, source_of
from entrypoint.job.recipes.verl import keys
from entrypoint.job.recipes.verl.command_line import OVERRIDE, VerlCommand

PACKAGE, RECIPES = "verl", "recipe"
"""`recipe` is a directory beside the package in verl's repository."""


def lacks(settings: Settings, command: VerlCommand, overrides: Sequence[str]) -> Iterator[str]:
    """Yield what the installed verl lacks of a command: its module, or keys of its configuration.

    `overrides`: those of the command as it will run.
    """
    module, top = command.program[-1], _top(command)
    python = interpreter_for(command.interpreter, PACKAGE)
    if not top:
        return
    if (own := package_of(settings, command.variables, python, top)) is None:
        if top != PACKAGE and not brings(settings, command.variables, top):
            yield f"{python} finds no {top}, and so no {module}: give a working_dir that has it"
        return
    verl = package_of(settings, command.variables, python, PACKAGE)
    if (program := source_of(own, module)) is None:
        yield f"{own} has no {module}: give a module that this release has"
        return
    elsewhere = "working_dir" in settings.runtime_env
    yield from keys.absent_files(program, overrides, None if elsewhere else Path.cwd())
    if verl is not None:
        yield from keys.strange(program, verl, overrides)


def _top(command: VerlCommand) -> str:
    """Return the package of the module that runs; "" if it is none of verl's."""
    top = command.program[-1].partition(".")[0] if command.program[-2:-1] == ("-m",) else ""
    return top if top in (PACKAGE, RECIPES) else ""


def not_checked(settings: Settings, command: VerlCommand) -> str:
    """Return why the keys are checked only when the program starts; "" if they are before."""
    top = _top(command)
    program, verl = _sources(settings, command)
    if not top:
        why = "it is not a module of verl"
    elif verl is None or program is None:
        if not brings(settings, command.variables, top):
            return ""  # a fault says that it is not there
        why = "the job may bring its own verl"
    elif not keys.is_checked(program, verl, command.overrides):
        why = "only Hydra puts this configuration together"
    else:
        return ""
    return f"{command.program[-1]}: its keys are not checked before it starts, because {why}"


def likely_mistakes(
    settings: Settings, command: VerlCommand, *, fork: bool = False
) -> Iterator[str]:
    """Yield a sentence for each key that no known release has, and that is like one of its keys.

    Nothing is said where the installed verl decides which keys there are. `fork`: Search-R1's.
    """
    program, verl = _sources(settings, command)
    if program and verl and keys.is_checked(program, verl, command.overrides):
        return
    for word in command.overrides:
        match = OVERRIDE.fullmatch(word)
        if match is None or match["sign"]:
            continue
        release, known = known_keys(match["key"], fork=fork)
        if near := keys.near(match["key"], known):
            yield f"{match['key']} is not a key of {release}: did you mean {near}?"


def _sources(settings: Settings, command: VerlCommand) -> tuple[Path | None, Path | None]:
    """Return the source of the module that runs, and verl's package; None for what is not here."""
    python, top = interpreter_for(command.interpreter, PACKAGE), _top(command)
    own = package_of(settings, command.variables, python, top) if top else None
    program = source_of(own, command.program[-1]) if own else None
    return program, package_of(settings, command.variables, python, PACKAGE)
