"""What was typed as the job of `up` and `plan` → its recipe, its words and its directory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from contract.options import ConfigError, ParseError
from entrypoint.config import parsers
from entrypoint.config.recipes import BUILTIN, RECIPES

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
    as_given = TypedJob(environ, tuple(arguments))
    raw = environ.get(JOB, "").strip()
    words = tuple(arguments) or _words(raw)
    given = environ.get(RECIPE, "").strip().lower() or None
    if not words or words[0].startswith("-") or words[0] in parsers.STAGES:
        return as_given
    if (given or BUILTIN) not in RECIPES or (given and RECIPES[given].own_trainer):
        return as_given
    from entrypoint.job.recipes.recognise import recognised  # a plan without a job starts faster

    found = recognised(words, given, _began(environ))
    if not found.is_known and not arguments and words == (*BY_A_SHELL, raw):
        return as_given  # what is wrong with the line is said where it is read
    if found.fault:
        raise ConfigError([found.fault])
    if found.directory:
        os.chdir(found.directory)
    job = {} if arguments else {JOB: shlex.join(found.words)}
    return TypedJob(
        environ={**environ, **job},
        arguments=found.words if arguments else (),
        recipe=found.recipe,
        said="" if given and found.words == words else found.said,
        warnings=found.warnings,
    )


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
