"""Pure: a command as a guide has it → the command, without what a shell or a client reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from contract.launch import front_ends
from contract.launch.command_lines import PYTHON, variables_before
from contract.redaction import redact

OPERATOR = re.compile(r"\|\|?|&&?|<|>>?(?!=)\S*|[0-9&]>\S*")
"""A word that a shell would have consumed as syntax, unless it was quoted."""
LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "trl", *front_ends.NAMES)
RAYS_CLIENT = ["ray", "job", "submit"]
RUNTIME_ENV = ("--runtime-env", "--working-dir")
"""What flags of `ray job submit` begin with that say the job's runtime environment."""

MANAGERS: Mapping[str, tuple[str, ...]] = {
    "uv": ("-p", "--python", "--with", "--extra", "--group", "--directory", "--project"),
    "conda": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "mamba": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "micromamba": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "pixi": ("-e", "--environment"),
    **dict.fromkeys(("poetry", "pipenv", "pdm", "rye", "hatch"), ()),
}
"""Programs whose `run` starts a command in an environment, and their flags with a value that may
look like a program."""
STARTERS: Mapping[str, tuple[str, ...]] = {
    "time": ("-f", "-o"),
    "nice": ("-n",),
    "stdbuf": ("-i", "-o", "-e"),
    **dict.fromkeys(("nohup", "exec", "command", "env", "setsid", "unbuffer"), ()),
}
"""Programs and builtins that start the command behind them, and their flags with a value. What they
change has no effect on a job."""
AS_MEANT = ("env", "exec", "command")
"""Those whose whole effect a job has: their variables, or none."""
SHELLS = ("bash", "sh", "dash", "zsh")
CONTINUED = re.compile(r"\\?\s*\n\s*|\\")
"""A word that is the end of a line, as in a manifest that no shell reads."""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    variables: Mapping[str, str]
    """Those that are assigned before the program."""
    command: list[str]
    dropped: tuple[str, ...] = field(default=())
    """Words that have no effect here."""

    @property
    def words(self) -> list[str]:
        return [*(f"{name}={value}" for name, value in self.variables.items()), *self.command]


def unwrapped(words: Sequence[str]) -> Unwrapped:
    """Return the command with its variables, without what is around it.

    That is `ray job submit … --`, `uv run …` and the like, `nohup` and the like, and a redirection
    or a pipe behind it.
    """
    variables, rest = variables_before([one for one in words if not CONTINUED.fullmatch(one)])
    dropped: list[str] = []
    if operators := [n for n, word in enumerate(rest) if OPERATOR.fullmatch(word)]:
        dropped = rest[operators[0] :]
        rest = rest[: operators[0]]
    before: list[str] = []
    while rest:
        wrapper, behind = _wrapper(rest)
        if not wrapper:
            break
        name = PurePath(wrapper[0]).name
        if name == RAYS_CLIENT[0]:  # its variables are not the job's
            before += [f"{name}={value}" for name, value in variables.items()]
            variables = {}
        before += [] if name in AS_MEANT and len(wrapper) == 1 else wrapper
        more, rest = variables_before(behind)
        variables |= more
    return Unwrapped(variables, rest, (*before, *dropped))


def script_words(command: Sequence[str]) -> list[str]:
    """Return the script that a shell runs, and its arguments; `-c` and the text of a line.

    [] if the command runs another program.
    """
    if not command:
        return []
    if command[0].endswith(".sh"):
        return list(command)
    if PurePath(command[0]).name not in SHELLS:
        return []
    rest = list(command[1:])
    while rest and rest[0][:1] == "-" and rest[0][:2] != "--":
        if rest[0].endswith("c"):
            return ["-c", *rest[1:]] if rest[1:] else []
        rest = rest[2 if rest[0].endswith("o") else 1 :]
    return rest


def without_client(words: Sequence[str]) -> Unwrapped:
    """Return the command without `ray job submit … --` alone, which would be a job in a job."""
    variables, rest = variables_before(words)
    if [PurePath(word).name for word in rest[:1]] + list(rest[1:3]) == RAYS_CLIENT:
        client, behind = _wrapper(rest)
        own, command = variables_before(behind)
        if command:
            outer = (f"{name}={value}" for name, value in variables.items())
            return Unwrapped(own, command, (*outer, *client))
    return Unwrapped(variables, rest)


def _wrapper(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the first wrapper, and the command behind it; no words without one."""
    names = [PurePath(words[0]).name, *words[1:3]]
    if names == RAYS_CLIENT:
        if "--" in words:
            end = list(words).index("--") + 1
        else:
            end = _program_place(words, 3, RUNTIME_ENV)
        return list(words[:end]), list(words[end:])
    if names[0] in MANAGERS and names[1:2] == ["run"]:
        return _managed(words, MANAGERS[names[0]], 2)
    if names[0] == "uv" and names[2:] == ["run"] and words[1][:1] == "-":  # as in `uv -v run`
        return _managed(words, MANAGERS["uv"], 3)
    if names[0] in STARTERS:
        place = 1
        while place < len(words) and words[place][:1] == "-":
            if names[0] == "env":  # it may take variables away
                return [], list(words)
            place += 2 if words[place] in STARTERS[names[0]] else 1
        return list(words[:place]), list(words[place:])
    return [], list(words)


def _managed(
    words: Sequence[str], with_value: Sequence[str], begin: int
) -> tuple[list[str], list[str]]:
    """Split `conda run -n env python …` before its program; not if that is none that is known.

    The program of `-p PREFIX` is the one there. `uv run -m module` is Python with a module.
    """
    end = _program_place(words, begin, with_value)
    flags, behind = list(words[begin:end]), list(words[end:])
    if not behind:
        return [], list(words)
    if behind[0] in ("-m", "--module"):
        behind = ["python3", "-m", *behind[1:]]
    is_conda = PurePath(words[0]).name.endswith(("conda", "mamba"))
    prefix = next((value for flag, value in _pairs(flags) if flag in ("-p", "--prefix")), "")
    if is_conda and prefix and "/" not in behind[0]:
        behind = [f"{prefix}/bin/{behind[0]}", *behind[1:]]
    return list(words[:end]), behind


def _program_place(words: Sequence[str], begin: int, with_value: Sequence[str]) -> int:
    """Return the place of a Python, a launcher or `-m`; the number of words if there is none."""
    place = begin
    while place < len(words):
        word = words[place]
        if word in with_value:
            place += 2
            continue
        if _is_program(word) or word in ("-m", "--module"):
            return place
        place += 1
    return len(words)


def _is_program(word: str) -> bool:
    return bool(PYTHON.fullmatch(word)) or PurePath(word).name in LAUNCHERS


def _pairs(flags: Sequence[str]) -> list[tuple[str, str]]:
    """Return flags with their values, given as two words or with a sign between."""
    found = []
    for place, word in enumerate(flags):
        flag, equals, value = word.partition("=")
        found.append((flag, value if equals else next(iter(flags[place + 1 : place + 2]), "")))
    return found


def no_effect(dropped: Sequence[str], *, submitted: bool) -> list[str]:
    """Return a sentence that names the dropped words, and what replaces them.

    `submitted`: the job is one of a head that waits for jobs.
    """
    if not dropped:
        return []
    instead = "the log is in RUN/logs"
    if any(word.startswith(RUNTIME_ENV) for word in dropped):
        where = "with `rollcall submit --runtime-env`" if submitted else "in ROLLCALL_RUNTIME_ENV"
        instead += f", and a runtime environment is given {where}"
    if MANAGERS.keys() & {PurePath(word).name for word in dropped}:
        instead += (
            ", and the Python is Rollcall's own, that of PATH if only that one has the program, or "
            "one that is given by its path"
        )
    return [f"{redact(' '.join(dropped))}: no effect here; {instead}"]
