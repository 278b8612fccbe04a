"""Which OpenRLHF a command runs with, and what that release lacks of the command."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from contract.files.os_errors import why_absent
from contract.launch.known_modules import mistyped
from contract.redaction import redact
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.job.recipes.base import AbsentPython, NotHere
from entrypoint.job.recipes.interpreters import (
    Verdict,
    asked,
    brings,
    interpreter_for,
    is_own,
    others_with,
    package_of,
    source_of,
    unanswered,
    version_in,
)
from entrypoint.job.recipes.openrlhf import flags as openrlhf_flags
from entrypoint.job.recipes.openrlhf.command_line import PPO, OpenRLHFCommand

PACKAGE = "openrlhf"
DOTTED_SINCE = (0, 11)
LOCAL = (
    *(f"{role}.model_name_or_path" for role in ("actor", "critic", "reward", "ref", "model")),
    *("data.prompt_dataset", "data.dataset", "eval.dataset"),
)
"""Flags of 0.11 whose values name a model or data sets."""


def is_dotted(settings: Settings, command: OpenRLHFCommand) -> bool:
    """Return whether the OpenRLHF that runs has 0.11's flags; if none is found, as typed."""
    if command.file:
        verdict = _verdict(settings, command, ())
        return command.dotted if verdict is None else any("." in one for one in verdict.options)
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
        return AbsentPython(f"{python} is not there: give the path of a Python", Path(python))
    if set(NEEDS_INSTALL) & set(settings.runtime_env):
        return ""
    is_installed = not brings(settings, command.variables, PACKAGE)
    if command.module and is_installed and version_in(python, PACKAGE) is None:
        on_path = shutil.which(command.python or "python3")
        if slow := unanswered("OpenRLHF", python, on_path):
            return slow
        others = others_with(PACKAGE)
        has = f"{others[0]} has it" if others else "the image `cuda` has it"
        if near := mistyped(command.module):
            return NotHere(f"{command.module}: did you mean {near}? {python} has no OpenRLHF")
        return NotHere(
            f"{python} has no OpenRLHF, and {has}: give the path of a Python that has it, as in "
            f"{others[0] if others else '/opt/openrlhf/bin/python'} -m {command.module}"
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
    if command.module:
        release = command.file or f"OpenRLHF {_version(settings, command) or ''}".rstrip()
        yield from _absent(settings, command, release)
    dotted = is_dotted(settings, command)
    flags = (completed if dotted else command).flag_words
    if (verdict := _verdict(settings, command, flags)) is None:
        return
    unknown = {word.partition("=")[0] for word in verdict.unknown}
    for flag in command.flags:
        passed_on = replace(command, flags=(flag,)).spelt(dotted=True).flags if dotted else (flag,)
        if unknown & {f"--{one.name}" for one in passed_on}:
            hint = openrlhf_flags.instead(flag, command.flags, verdict.options, ppo=command.ppo)
            yield f"--{flag.name} is not a flag of {release}: {hint}"
    for word in takewhile(lambda word: not word.startswith("--"), verdict.unknown):
        yield f"{redact(word)} belongs to no flag of {release}: leave it out"
    if verdict.error:
        yield f"{release} refuses the flags: {redact(verdict.error)}"


def not_checked(settings: Settings, command: OpenRLHFCommand) -> str:
    """Return why the flags are checked only when the program starts; "" if they are before."""
    if not command.module:
        why = "it is none of OpenRLHF's own programs, openrlhf/cli/train_….py"
    elif _source(settings, command) is None:
        if not brings(settings, command.variables, PACKAGE):
            return ""  # a fault says that it is not there
        why = "the job may bring its own OpenRLHF"
    elif _verdict(settings, command, ()) is None:
        why = "its parser gives no answer"
    else:
        return ""
    return f"{command.program[-1]}: its flags are not checked before it starts, because {why}"


def strange(settings: Settings, command: OpenRLHFCommand) -> Iterator[str]:
    """Yield a sentence for each flag that is probably wrong, if no release here can be asked."""
    if command.module == PPO and _verdict(settings, command, ()) is None:
        yield from openrlhf_flags.strange(command.flags)


def absent_paths(settings: Settings, command: OpenRLHFCommand) -> Iterator[str]:
    """Yield a sentence for each model and data set whose path is not on this machine."""
    for key in LOCAL:
        for flag in command.given(key):
            for value in ",".join(flag.values).split(","):
                path = Path(value)
                is_seen = path.is_absolute() or "working_dir" not in settings.runtime_env
                if value.startswith(("/", "./")) and is_seen and why_absent(path):
                    yield (
                        f"--{flag.name} {value} is not on this machine: every node that trains "
                        "must have it"
                    )


def _verdict(settings: Settings, command: OpenRLHFCommand, flags: Sequence[str]) -> Verdict | None:
    """Return what the parser of the program makes of flags; None if nobody can ask it."""
    if not command.module or (program := _source(settings, command)) is None:
        return None
    return asked(interpreter_for(command.python, PACKAGE), program, flags)


def _source(settings: Settings, command: OpenRLHFCommand) -> Path | None:
    """Return the program's file; None if there is none, or if only the nodes know it."""
    if command.file:
        return _here(settings, command.file)
    package = _package(settings, command)
    return source_of(package, command.module) if package else None


def _package(settings: Settings, command: OpenRLHFCommand) -> Path | None:
    python = interpreter_for(command.python, PACKAGE)
    return package_of(settings, command.variables, python, PACKAGE)


def _here(settings: Settings, path: str) -> Path | None:
    """Return a file as the job finds it; None if it is not there, or if only the nodes know it."""
    environment = settings.runtime_env
    is_copy = "working_dir" in environment
    if is_copy and not working_dir.is_local(environment) and not path.startswith("/"):
        return None
    file = (working_dir.place(environment) if is_copy else Path.cwd()) / path
    return file if file.is_file() else None


def _absent(settings: Settings, command: OpenRLHFCommand, release: str) -> Iterator[str]:
    """Yield a sentence if the program is not there."""
    if _source(settings, command) is not None:
        return
    if command.file:
        if "working_dir" not in settings.runtime_env:
            where = f"{command.file} is not a file in {Path.cwd()}"
            yield f"{where}: give its path as the nodes have it"
    elif package := _package(settings, command):
        programs = sorted(file.stem for file in (package / "cli").glob("train_*.py"))
        yield f"{release} has no {command.module}, only {', '.join(programs)}"
