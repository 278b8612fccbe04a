"""The one command of a trainer that a shell script runs, if the script does nothing else.

The script is read, not run (`Program.SCRIPT_COMMANDS`). Any doubt about a word, a variable or the
directory is a reason to run the script as it is.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from contract.launch.command_lines import PYTHON, option_value, variables_before
from contract.launch.known_modules import MODULES
from contract.launch.programs import Program
from contract.launch.shell_wrapping import script_words, unwrapped
from contract.options import Fault
from contract.redaction import redact
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
    {
        *("tee", "mkdir", "sleep", "date", "cat", "hostname", "which", "ls", "ulimit", "tail"),
        *("nvidia-smi", "rocm-smi", "amd-smi", "npu-smi", "free", "df", "du", "uname", "whoami"),
        *("nproc", "lscpu", "env", "printenv", "clear", "touch", "head", "wc", "grep", "awk"),
        *("pkill", "killall", "kill", "fuser", "ps"),
    }
)
"""Programs without which the trainer's command is the same: its log and directories are made, and
what an earlier job has left is ended."""
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("activate", "deactivate")),
    **dict.fromkeys(("module", "ml"), ("load", "unload", "purge", "list", "use")),
    "pyenv": ("activate", "shell", "local"),
}
"""Programs that change the shell's own environment, by their first word."""
DOWNLOADS = (
    *(("huggingface-cli", "download"), ("hf", "download")),
    ("modelscope", "download"),
)
MOST_SHOWN = 80
"""Characters of a command in a sentence."""
NO_PROGRAM = re.compile(r"--.*|[+~]*[A-Za-z_]\w*(\.\w+)+=.*", re.DOTALL)
"""The first word of a line that its writer took for a part of the command above it."""

SLURM = frozenset({"sbatch", "srun", "salloc"})
OF_SLURM = "docs/platforms/slurm.md has the file for Slurm, whose job is a trainer's command alone"


INSTEAD_OF_IT = "Run this where that program is, or write what it says into the script"
"""What to do if this machine lacks a program that a script asks."""


class NotAloneError(Exception):
    """The script runs as it is; the message is a clause that says why."""


class EndsError(NotAloneError):
    """The script would end at a line, before a command of a trainer, with an error."""

    def __init__(self, script: str, row: Mapping[str, Any]) -> None:
        if name := row["unbound"]:
            problem, remedy = f"{variable(name)} is not set, and the script ends there", given(name)
        else:
            problem = f"the script ends there with an error{_last_words(row)}"
            remedy = "Give what it asks for: arguments behind its name, or variables before it"
            if found := _away(row["away"], row["ended"]):
                problem, remedy = f"{problem.rstrip('.')}. {no_program(*found)}", INSTEAD_OF_IT
        self.fault = Fault(f"{script}, line {row['ended']}", None, problem, remedy)
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
    absent: Mapping[str, int] = field(default_factory=dict)
    """Files that the script sources and that are not there → the line."""
    away: Mapping[str, int] = field(default_factory=dict)
    """Programs that this machine has not and whose output is in the command's words → the line."""
    environments: tuple[str, ...] = ()
    """Commands that change the environment of a shell, which the job does not have."""
    notes: tuple[str, ...] = ()
    """Sentences on lines that bash reads otherwise than their writer meant."""


def script_in(words: Sequence[str]) -> Script | None:
    """Return the script that the words run in a shell; None if they run another program."""
    found = unwrapped(words)
    script = script_words(found.command)
    is_there = bool(script) and (script[0] == "-c" or Path(script[0]).is_file())
    return Script(tuple(script), found.variables) if is_there else None


def only_command(
    script: Script, is_known: Callable[[Sequence[str]], bool], began: float | None = None
) -> Found:
    """Return the command of the script that `is_known` knows.

    `began`: what `date` says in it, in seconds of the epoch; None: the time now. Raises
    NotAloneError; an EndsError if the script as it is would fail.
    """
    row = _read(script, time.time() if began is None else began)
    known = [one for one in row["commands"] if is_known(_recognisable(one["words"]))]
    if not known:
        raise _without_a_trainer(script, row)
    if len(known) > 1:
        raise NotAloneError(f"it has {len(known)} commands of trainers, and a job has one")
    command, words, directory = known[0], known[0]["words"], known[0]["directory"]
    others = [one["words"] for one in row["commands"] if one is not command]
    for one in others:
        if why := _why_it_counts(one):
            raise NotAloneError(why)
    if needed := _written_for(words, row["written"]):
        raise NotAloneError(f"it writes {needed}, which its command names")
    exported = {
        name: value for name, value in command["exported"].items() if name not in SET_BY_BASH
    }
    whole = [word for word in words if word is not None]
    if len(whole) < len(words) or directory is None or None in exported.values():
        what, why = next(iter(row["unknown"].items()), ("a part", "only a run tells it"))
        open_ = f"not all of its command is known before it runs (${what}, {why})"
        lacking = [one for one in row["away"] if _names(f"{what} {why}", one[0])]
        open_ += f". {no_program(*lacking[0])}" if lacking else ""
        names = ", ".join(map(variable, command["unset"]))
        also = f". Not set here: {names}" if names else ""
        raise NotAloneError(f"{open_}. Put a fixed value there{also}")
    variables, rest = variables_before(whole)
    assigned = {**script.variables, **exported, **variables}
    if directory and not Path(directory).is_dir():
        raise NotAloneError(f"it goes to {directory}, which is not a directory here")
    return Found(
        words=(*(f"{name}={value}" for name, value in assigned.items()), *rest),
        directory="" if Path(directory) == Path.cwd() else directory,
        left_out=tuple(_shown(one) for one in others if not _is_no_program(one)),
        unset=command["unset"],
        absent=row["absent"],
        away=command["away"],
        environments=tuple(_shown(one) for one in others if _changes_environment(one)),
        notes=tuple(row["notes"]),
    )


def _without_a_trainer(script: Script, row: Mapping[str, Any]) -> NotAloneError:
    """Return why a script has no command of a trainer."""
    if row["fails"] or (row["unbound"] and not row["sets_up"]):
        return EndsError(script.shown, row)
    if row["unbound"]:
        name = variable(row["unbound"])
        return NotAloneError(f"it ends at line {row['ended']}, unless what it sources sets {name}")
    if row["ended"]:
        before = f"it ends at line {row['ended']}, before a command of a trainer"
        return NotAloneError(f"{before}{_last_words(row)}")
    commands = [one["words"] for one in row["commands"]]
    if steps := [words for words in commands if is_of_slurm(words)]:
        text = " ".join(str(word) for words in steps for word in words)
        module = next((f" ({name})" for name in MODULES if f"{name} " in f"{text} "), "")
        return NotAloneError(f"it starts its programs{module} by {steps[0][0]}, and {OF_SLURM}")
    none = "it has no command of a trainer that a recipe knows"
    for words in commands:
        rest = _of_program(words)
        if PYTHON.fullmatch(next(iter(rest), "")) and any(one.endswith(".py") for one in rest[:4]):
            none += f". ROLLCALL_RECIPE=torchrun with `{_short(rest)}` alone runs that on every GPU"
            break
    return NotAloneError(none)


def no_program(name: str, line: int) -> str:
    """Return a sentence on a program that a script runs and that is not on this machine."""
    return f"This machine has no program {name}, which line {line} runs"


def _away(programs: Sequence[Sequence[Any]], ended: int) -> tuple[str, int] | None:
    """Return the program for which a script has ended at a line, if one is absent before."""
    before = [(name, line) for name, line in programs if line <= ended]
    return before[-1] if before else None


def _names(text: str, program: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(program)}(?![\w-])", text) is not None


def _last_words(row: Mapping[str, Any]) -> str:
    words = " ".join(str(row["last_words"]).split())
    return f". It says: {words}" if words else ""


def _why_it_counts(words: Sequence[str | None]) -> str:
    """Return why a script cannot do without a command; "" if it can."""
    command = _of_program(words)
    if tuple(command[:2]) in DOWNLOADS:
        into = option_value(command, "local_dir")
        if into is None or _has_files(into):
            return ""
        return (
            f"it runs {_shown(words)}, too. Run that first, so that all nodes have {into}: then it "
            "is left out"
        )
    if _is_idle(words) or _is_no_program(words) or _changes_environment(words):
        return ""
    return f"it runs {_short(words)}, too. Run that first, and take it out of the script"


def _written_for(words: Sequence[str | None], written: Sequence[str | None]) -> str:
    """Return a file that the script writes and a command's words name; "" if there is none."""
    named = {(word or "").rpartition("=")[2].strip("'\"[]") for word in words}
    return next((file for file in written if file and file in named), "")


def _has_files(directory: str) -> bool:
    try:
        return any(Path(directory).expanduser().iterdir())
    except OSError:
        return False


def _shown(words: Sequence[str | None]) -> str:
    return redact(" ".join(word or "…" for word in words))


def _short(words: Sequence[str | None]) -> str:
    return textwrap.shorten(_shown(words), MOST_SHOWN, placeholder=" …")


def _is_no_program(words: Sequence[str | None]) -> bool:
    """Whether a line is a part of the command above it, to its writer alone."""
    return bool(words) and bool(NO_PROGRAM.fullmatch(words[0] or ""))


def _changes_environment(words: Sequence[str | None]) -> bool:
    command = _of_program(words)
    return len(command) > 1 and command[1] in ENVIRONMENTS.get(command[0], ())


def _of_program(words: Sequence[str | None]) -> list[str]:
    """Return a command from its program on, with what only a run tells as `…`."""
    return unwrapped([word or "…" for word in words]).command


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
    command = _of_program(words)
    if not command:
        return not any(word is None for word in words)
    return PurePath(command[0]).name in IDLE or tuple(command[:2]) in REPLACED


def _read(script: Script, began: float) -> dict[str, Any]:
    """Return what the reader of scripts prints. Raises NotAloneError."""
    assigned = [f"{name}={value}" for name, value in script.variables.items()]
    argv = ("env", *assigned, *program(Program.SCRIPT_COMMANDS, repr(began), *script.argv))
    try:
        code, said = process.output(argv, timeout=READ_SECONDS)
        row: dict[str, Any] = json.loads(said.splitlines()[-1]) if code == 0 else {"error": said}
    except (process.StartError, ValueError, IndexError) as error:
        raise NotAloneError(f"it cannot be read ({error})") from None
    if "error" in row:
        reason = (str(row["error"]).splitlines() or ["no answer"])[-1]
        raise NotAloneError(f"it cannot be read ({reason})")
    return row
