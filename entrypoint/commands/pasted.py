"""A whole `rollcall up …` as the job of `up` or `plan`, as `translate` prints it → its job."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from contract.launch.command_lines import PYTHON, variables_before
from contract.launch.shell_wrapping import script_words, unwrapped
from contract.options import ParseError
from entrypoint.config import parsers

NAMES = ("rollcall", "entrypoint")
"""The program, and the modules that are it."""
HEAD = re.compile(r"\brollcall\s+(?:up\b|--)")
PROGRAMS = ("prepare", "serve-retriever", "serve-reward")
"""Commands that a job may be: they start no head, and ask none."""
REMEDY = "leave out `rollcall up --`, and give the job alone"
NESTED = f"`rollcall up` as the job of another would be a head inside a head: {REMEDY}"

OTHER = "`rollcall {}` is no job: give the job alone, without `rollcall`"
OF_TRANSLATE = (
    "`rollcall translate` is no job: run it by itself, and give the flags that it prints without "
    "`rollcall up --`"
)


class NoJobError(Exception):
    """The words are a command of Rollcall that is no job; the sentence says what would do."""


@dataclass(frozen=True, slots=True)
class Pasted:
    variables: Mapping[str, str]
    """Those before `rollcall`, which count as the environment."""
    job: tuple[str, ...]


def pasted(words: Sequence[str], commands: Container[str]) -> Pasted | None:
    """Return the job behind `[NAME=value …] rollcall up [--]`; None if the words are another job.

    `commands`: those of Rollcall. Raises NoJobError for a command that is no job.
    """
    if is_quoted := len(words) == 1 and is_line(words[0]):
        words = _of_line(words[0])
    variables, rest = variables_before(words[1:] if words[:1] in (["env"], ("env",)) else words)
    behind = _behind_name(rest)
    is_named = len(behind) < len(rest)
    if not is_named and (is_quoted or rest[:1] != ["up"]):
        _refuse_wrapped(words)
        return None
    first = behind[0] if behind else "up"
    if first in PROGRAMS:
        return None
    if first in commands and first not in ("up", *parsers.STAGES):
        raise NoJobError(OF_TRANSLATE if first == "translate" else OTHER.format(first))
    job = behind[1:] if first == "up" else behind
    return Pasted(variables, tuple(job[1:] if job[:1] == ["--"] else job))


def of_cluster(words: Sequence[str], commands: Container[str]) -> str:
    """Return why words are no job for a cluster that waits for jobs, and what would be; "" if none.

    `commands`: those of Rollcall.
    """
    try:
        found = pasted(words, commands)
    except NoJobError as error:
        return str(error)
    if found is None:
        return ""
    alone = f": {shlex.join(found.job)}" if found.job else ""
    return f"`rollcall up` starts a node, and is no job: give what comes after it alone{alone}"


def is_line(word: str) -> bool:
    """Return whether a word is a whole command in quotes."""
    return len(word.split()) > 1 and not os.path.lexists(word)


def _of_line(line: str) -> Sequence[str]:
    """Return the words of a line; the line alone if only a shell reads it. Raises NoJobError."""
    try:
        return parsers.arguments(line.replace("\\\n", " "))
    except ParseError:
        if HEAD.search(line):
            raise NoJobError(NESTED) from None
        return (line,)


def _behind_name(words: list[str]) -> list[str]:
    """Return the words behind `rollcall` or `python -m rollcall`; all if they run another."""
    if words and PurePath(words[0]).name == NAMES[0]:
        return words[1:]
    is_module = words[1:2] == ["-m"] and bool(PYTHON.fullmatch(words[0]))
    return words[3:] if is_module and words[2:3] and words[2] in NAMES else words


def _refuse_wrapped(words: Sequence[str]) -> None:
    """Raise NoJobError if a program or a shell around it starts `rollcall up`."""
    command = unwrapped(words).command
    line = script_words(command)
    text = line[1] if line[:1] == ["-c"] else ""
    starts_head = command[:1] != ["up"] and _behind_name(command)[:1] == ["up"]
    if starts_head or HEAD.search(text):
        raise NoJobError(NESTED)
