"""Which OpenRLHF a command runs with, and what that release lacks of the command."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from contract.redaction import redact
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import openrlhf_flags, openrlhf_words
from entrypoint.job.recipes.installed import brings, package_of, source_of
from entrypoint.job.recipes.interpreters import (
    asked,
    interpreter_for,
    is_own,
    others_with,
    unanswered,
    version_in,
)
from entrypoint.job.recipes.openrlhf_words import OpenRLHFCommand

PACKAGE = "openrlhf"
DOTTED_SINCE = (0, 11)


def is_dotted(settings: Settings, command: OpenRLHFCommand) -> bool:
    """Return whether the installed OpenRLHF has 0.11's flags; if none is found, as typed."""
    found = _version(settings, command)
    return command.dotted if found is None else _number_of(found) >= DOTTED_SINCE


def _version(settings: Settings, command: OpenRLHFCommand) -> str | None:
    """Return the version that will run; None if the runtime environment brings its own."""
    if brings(settings, command.variables, PACKAGE):
        return None
    return version_in(interpreter_for(command.python, PACKAGE), PACKAGE)


def _number_of(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def no_interpreter(settings: Settings, command: OpenRLHFCommand) -> str:
    """Return why no Python can run the command; "" if one can."""
    python = interpreter_for(command.python, PACKAGE)
    if not Path(python).is_file():
        return f"{python} is not there: give the path of a Python"
    if set(NEEDS_INSTALL) & set(settings.runtime_env):
        return ""
    module = openrlhf_words.MODULE.fullmatch(command.program[-1])
    if module and version_in(python, PACKAGE) is None:
        on_path = shutil.which(command.python or "python3")
        if slow := unanswered("OpenRLHF", python, on_path):
            return slow
        others = others_with(PACKAGE)
        has = f"{others[0]} has it" if others else "the image `cuda` has it"
        return (
            f"{python} has no OpenRLHF, and {has}: give the path of a Python that has it, as in "
            f"{others[0] if others else '/opt/openrlhf/bin/python'} -m {module[0]}"
        )
    return ""


def not_rollcalls_python(command: OpenRLHFCommand) -> str:
    """Return why the named Python cannot run the ranks; "" if it is Rollcall's own."""
    python = interpreter_for(command.python, PACKAGE)
    if is_own(python):
        return ""
    return (
        f"{command.program[-1]} runs on every node with Rollcall's Python, {sys.executable}, "
        f"and not with {python}: install Rollcall in that one (docs/platforms/jobs.md)"
    )


def refusals(
    settings: Settings, command: OpenRLHFCommand, completed: OpenRLHFCommand
) -> Iterator[str]:
    """Yield what the release lacks or refuses, by its files and its own parser.

    `completed`: the command as the release gets it.
    """
    python = interpreter_for(command.python, PACKAGE)
    package = package_of(settings, command.variables, python, PACKAGE)
    module = openrlhf_words.MODULE.fullmatch(command.program[-1])
    if package is None or module is None:
        return
    release = f"OpenRLHF {_version(settings, command) or ''}".rstrip()
    if (program := source_of(package, module[0])) is None:
        programs = sorted(file.stem for file in (package / "cli").glob("train_*.py"))
        yield f"{release} has no {module[0]}, only {', '.join(programs)}"
        return
    dotted = is_dotted(settings, command)
    verdict = asked(python, program, (completed if dotted else command).flag_words)
    if verdict is None:
        return
    unknown = {word.partition("=")[0] for word in verdict.unknown}
    for flag in command.flags:
        passed_on = replace(command, flags=(flag,)).spelt(dotted=True).flags if dotted else (flag,)
        if unknown & {f"--{one.name}" for one in passed_on}:
            hint = openrlhf_flags.instead(flag, command.flags, verdict.options, ppo=command.ppo)
            yield f"--{flag.name} is no flag of {release}: {hint}"
    for word in takewhile(lambda word: not word.startswith("--"), verdict.unknown):
        yield f"{redact(word)} belongs to no flag of {release}: leave it out"
    if verdict.error:
        yield f"{release} refuses the flags: {redact(verdict.error)}"
