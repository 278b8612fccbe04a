"""What was typed as the job of `up` and `plan` → its recipe, its words and its directory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from contract.options import ConfigError, Fault, ParseError
from contract.redaction import redact_here
from entrypoint.commands.cli import COMMANDS
from entrypoint.commands.pasted import REMEDY, NoJobError, pasted
from entrypoint.config import parsers
from entrypoint.config.recipe_registry import BUILTIN, RECIPES

if TYPE_CHECKING:
    from entrypoint.job.recipes.recognise import Recognised

RECIPE, JOB = "ROLLCALL_RECIPE", "ROLLCALL_JOB"
BY_A_SHELL = ("bash", "-c")


@dataclass(frozen=True, slots=True)
class TypedJob:
    environ: Mapping[str, str]
    """With the job in ROLLCALL_JOB as its recipe takes it."""
    arguments: tuple[str, ...]
    recipe: str | None = None
    """The recipe that was recognised; None if the settings alone say it."""
    said: str = ""
    """What the job is and which recipe runs it; "" if nobody need be told."""
    warnings: tuple[str, ...] = ()


def read(environ: Mapping[str, str], arguments: Sequence[str]) -> TypedJob:
    """Return the job, and go to the directory to which its script goes.

    A job that is flags of the builtin trainer, or one of its stages, is left as it is. Raises
    ConfigError if the job is a script that would fail at once.
    """
    words = _words_of(environ, arguments)
    given = _given(environ)
    if not arguments:
        _refuse_head(environ.get(JOB, ""), words)
    if (found := _found(environ, words)) is None:
        return TypedJob(environ, tuple(arguments))
    raw = environ.get(JOB, "").strip()
    if not found.is_known and not arguments and words == (*BY_A_SHELL, raw):
        # what is wrong with the line is said where it is read
        return TypedJob(environ, tuple(arguments))
    if found.fault:
        raise ConfigError([found.fault])
    if found.directory:
        os.chdir(found.directory)
    job = {} if arguments else {JOB: shlex.join(found.words)}
    return TypedJob(
        environ={**environ, **job},
        arguments=found.words if arguments else (),
        recipe=found.recipe,
        said="" if given and found.words == words else redact_here(found.said, found.words),
        warnings=tuple(redact_here(one, found.words) for one in found.warnings),
    )


def _refuse_head(raw: str, words: Sequence[str]) -> None:
    """Raise ConfigError if ROLLCALL_JOB is a head of its own, or another command of Rollcall."""
    try:
        problem = "has `rollcall up` before the job" if pasted(words, COMMANDS) else ""
        remedy = REMEDY
    except NoJobError as error:
        problem, remedy = "has a command of Rollcall's before the job", str(error)
    if problem:
        raise ConfigError([Fault(JOB, raw, problem, remedy)])


def recipe_of_variables(environ: Mapping[str, str]) -> str | None:
    """Return the recipe of the job in ROLLCALL_JOB; None if the settings alone say it."""
    found = _found(environ, _words_of(environ, ()))
    return found.recipe if found else None


def _words_of(environ: Mapping[str, str], arguments: Sequence[str]) -> tuple[str, ...]:
    return tuple(arguments) or _words(environ.get(JOB, "").strip())


def _given(environ: Mapping[str, str]) -> str | None:
    return environ.get(RECIPE, "").strip().lower() or None


def _found(environ: Mapping[str, str], words: Sequence[str]) -> Recognised | None:
    """Return what the words of a job are; None if the settings alone say its recipe."""
    given = _given(environ)
    if not words or words[0].startswith("-") or words[0] in parsers.STAGES:
        return None
    if (given or BUILTIN) not in RECIPES or (given and RECIPES[given].own_trainer):
        return None
    from entrypoint.job.recipes.recognise import recognised  # a plan without a job starts faster

    return recognised(words, given, _began(environ))


def _began(environ: Mapping[str, str]) -> float | None:
    """Return when the run began, in seconds of the epoch; None if its directory is a wrong one."""
    from entrypoint.config.settings import Settings
    from entrypoint.run import run_began

    raw = environ.get("ROLLCALL_RUN_DIR", "").strip()
    try:
        default = next(one.default for one in fields(Settings) if one.name == "run_dir")
        return run_began.seconds(parsers.run_dir(raw or str(default)))
    except ParseError:
        return None  # the settings say it


def _words(raw: str) -> tuple[str, ...]:
    """Return the words of ROLLCALL_JOB; a line that only a shell reads is one for a shell."""
    try:
        return parsers.arguments(raw)
    except ParseError:
        return (*BY_A_SHELL, raw)
