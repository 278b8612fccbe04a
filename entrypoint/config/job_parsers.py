"""Parsers of the settings that say how a job of any program is understood."""

from __future__ import annotations

import re

import regex

from contract.options import ParseError
from entrypoint.config.parsers import arguments

STEP, CHECKPOINT = "{step}", "{checkpoint}"
"""Placeholders: the number of a checkpoint's step, and the checkpoint's path."""

COUNTS = ("step", "total_steps", "samples")
MEASURES = ("reward", "kl", "loss", "eval", "tokens_per_second", "step_seconds", "eta_seconds")
"""Names of the groups of a step's pattern: the fields of progress that a log may have."""


def step_pattern(raw: str) -> re.Pattern[str]:
    """The regular expression of a line that tells a step, with at least the group `step`."""
    remedy = r"give a regular expression with named groups, such as step (?P<step>\d+)"
    try:
        pattern = re.compile(raw)
        regex.compile(raw)  # what searches the log: it has time limits
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ParseError(f"is not a regular expression ({error})", remedy) from None
    if "step" not in pattern.groupindex:
        raise ParseError("has no group named step", remedy)
    if unknown := sorted(pattern.groupindex.keys() - {*COUNTS, *MEASURES}):
        names = ", ".join((*COUNTS, *MEASURES))
        raise ParseError(f"has a group named {unknown[0]}", f"the names are {names}")
    return pattern


def checkpoint_pattern(raw: str) -> str:
    """The path of a checkpoint, with its step as a placeholder."""
    remedy = f"give a path such as out/checkpoint-{STEP}, absolute or below the run directory"
    if "\0" in raw or raw.count(STEP) != 1:
        raise ParseError(f"does not have {STEP} once", remedy)
    if ".." in raw.split("/"):
        raise ParseError("has ..", remedy)
    if any(part != "**" and "**" in part for part in raw.split("/")):
        raise ParseError("has ** in a name", f"give * in a name, or ** alone as one; {remedy}")
    return raw


def resume_arguments(raw: str) -> tuple[str, ...]:
    """The words with which a job resumes from a checkpoint."""
    words = arguments(raw)
    for name in re.findall(r"\{(\w+)\}", raw):
        if f"{{{name}}}" not in (STEP, CHECKPOINT):
            problem = f"has the placeholder {{{name}}}"
            raise ParseError(problem, f"the placeholders are {CHECKPOINT} and {STEP}")
    return words
