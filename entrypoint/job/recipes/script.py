"""The one command of a trainer that a shell script runs, if the script does nothing else.

The script is read, not run (`Program.SCRIPT_COMMANDS`). Any doubt about a word, a variable or the
directory is a reason to run the script as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from contract.launch.command_lines import variables_before
from contract.launch.known_modules import MODULES
from contract.launch.programs import Program
from contract.launch.shell_wrapping import unwrapped
from contract.options import Fault
from entrypoint.job.recipes.named_files import SHELLS
from entrypoint.processes import process
from entrypoint.processes.programs import program

READ_SECONDS = 30.0
SET_BY_BASH = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
"""Exported variables that tell a program nothing which its own shell would not set anew."""
REPLACED = (
    *(("ray", "start"), ("ray", "stop"), ("ray", "status")),
    *(("uv", "sync"), ("uv", "venv"), ("uv", "lock")),
)
"""Commands of guides in place of which Rollcall starts Ray on all nodes, and uses its own Python
or the image's."""
IDLE = frozenset(
    {"tee", "mkdir", "sleep", "date", "cat", "hostname", "which", "ls", "nvidia-smi", "ulimit"}
)
"""Programs without which the trainer's command is the same: its log and directories are made."""


SLURM = frozenset({"sbatch", "srun", "salloc"})
OF_SLURM = "docs/platforms/slurm.md has the file for Slurm, whose job is a trainer's command alone"


class NotAloneError(Exception):
    """The script runs as it is; the message is a clause that says why."""


class UnboundError(NotAloneError):
    """The script would end at a line because a variable is not set."""

    def __init__(self, script: str, name: str, line: int) -> None:
        self.fault = Fault(
            f"{script}, line {line}",
            None,
            f"{variable(name)} is not set, and the script ends there",
            given(name),
        )
        super().__init__(str(self.fault))


@dataclass(frozen=True, slots=True)
class Script:
    argv: tuple[str, ...]
    """As the reader of scripts takes them: `-c TEXT`, or a file; and the arguments."""
    variables: Mapping[str, str]

    @property
    def shown(self) -> str:
        return self.argv[0] if self.argv[0] != "-c" else "the shell's line"


@dataclass(frozen=True, slots=True)
class Found:
    words: tuple[str, ...]
    directory: str
    """Where the command starts; "" if that is where the script starts."""
    left_out: tuple[str, ...] = ()
    """The other commands of the script."""
    unset: Mapping[str, int] = field(default_factory=dict)
    """Variables that are not set where the command's words need them → the line."""


def script_in(words: Sequence[str]) -> Script | None:
    """Return the script that the words run in a shell; None if they run another program."""
    found = unwrapped(words)
    command = found.command
    if not command:
        return None
    if command[0].endswith(".sh") and Path(command[0]).is_file():
        return Script(tuple(command), found.variables)
    if PurePath(command[0]).name not in SHELLS:
        return None
    rest = command[1:]
    while rest and rest[0][:1] == "-" and rest[0][:2] != "--":
        if rest[0].endswith("c"):
            return Script(("-c", *rest[1:]), found.variables) if rest[1:] else None
        rest = rest[2 if rest[0].endswith("o") else 1 :]
    is_file = bool(rest) and Path(rest[0]).is_file()
    return Script(tuple(rest), found.variables) if is_file else None


def only_command(script: Script, is_known: Callable[[Sequence[str]], bool]) -> Found:
    """Return the command of the script that `is_known` knows.

    Raises NotAloneError; an UnboundError if the script as it is would fail.
    """
    row = _read(script)
    commands = [(one["words"], one["directory"]) for one in row["commands"]]
    known = [one for one in commands if is_known(_recognisable(one[0]))]
    if not known and row["unbound"]:
        raise UnboundError(script.shown, row["unbound"], row["ended"])
    if not known and row["ended"]:
        raise NotAloneError(f"it ends at line {row['ended']}, before a command of a trainer")
    if not known and (steps := [words for words, _ in commands if is_of_slurm(words)]):
        text = " ".join(str(word) for words in steps for word in words)
        module = next((f" ({name})" for name in MODULES if f"{name} " in f"{text} "), "")
        raise NotAloneError(f"it starts its programs{module} by {steps[0][0]}, and {OF_SLURM}")
    if not known:
        raise NotAloneError("it has no command of a trainer that a recipe knows")
    if len(known) > 1:
        raise NotAloneError(f"it has {len(known)} commands of trainers")
    words, directory = known[0]
    unset = next(one["unset"] for one in row["commands"] if one["words"] is words)
    others = [one for one, _ in commands if one is not words and not _is_idle(one)]
    if others:
        shown = next(iter(others[0][:1]), None) or "an unknown program"
        raise NotAloneError(f"it runs {shown}, too")
    exported = {name: value for name, value in row["exported"].items() if name not in SET_BY_BASH}
    whole = [word for word in words if word is not None]
    if len(whole) < len(words) or directory is None or None in exported.values():
        what, why = next(iter(row["unknown"].items()), ("a part", "only a run tells it"))
        raise NotAloneError(f"not all of its command is known before it runs (${what}, {why})")
    variables, command = variables_before(whole)
    assigned = {**script.variables, **exported, **variables}
    if directory and not Path(directory).is_dir():
        raise NotAloneError(f"it goes to {directory}, which is not a directory here")
    return Found(
        words=(*(f"{name}={value}" for name, value in assigned.items()), *command),
        directory="" if Path(directory) == Path.cwd() else directory,
        left_out=tuple(
            " ".join(word or "…" for word in one) for one, _ in commands if one is not words
        ),
        unset=unset,
    )


def is_of_slurm(words: Sequence[str | None]) -> bool:
    """Whether Slurm starts the command on its own nodes."""
    return bool(words) and PurePath(words[0] or "").name in SLURM


def variable(name: str) -> str:
    """Return a variable, or an argument of the script, as people call it."""
    return f"argument {name} of the script" if name.isdecimal() else f"${name}"


def given(name: str) -> str:
    """Return how to set a variable, or an argument of the script, before it starts."""
    if name.isdecimal():
        return "Give it behind the script's name"
    default = f"${{{name}:-VALUE}}"
    return f"Set it first, as in export {name}=VALUE, or give it a default, as in {default}"


def _recognisable(words: Sequence[str | None]) -> list[str]:
    """Return the words, with an unknown launcher taken for a Python."""
    first = [word or "python3" for word in words[:1]]
    return [*first, *(word or "…" for word in words[1:])]


def _is_idle(words: Sequence[str | None]) -> bool:
    if not words or words[0] is None:
        return False
    return PurePath(words[0]).name in IDLE or tuple(words[:2]) in REPLACED


def _read(script: Script) -> dict[str, Any]:
    """Return what the reader of scripts prints. Raises NotAloneError."""
    assigned = [f"{name}={value}" for name, value in script.variables.items()]
    argv = ("env", *assigned, *program(Program.SCRIPT_COMMANDS, *script.argv))
    try:
        code, said = process.output(argv, timeout=READ_SECONDS)
        row: dict[str, Any] = json.loads(said.splitlines()[-1]) if code == 0 else {"error": said}
    except (process.StartError, ValueError, IndexError) as error:
        raise NotAloneError(f"it cannot be read ({error})") from None
    if "error" in row:
        reason = (str(row["error"]).splitlines() or ["no answer"])[-1]
        raise NotAloneError(f"it cannot be read ({reason})")
    return row
