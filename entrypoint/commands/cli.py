"""The command line: one of the image's commands, or another program."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

COMMANDS: Mapping[str, str] = {
    "up": "run this node: the head, or a worker if RAY_WORKER=1 (the default command);"
    " up --wait-for-jobs",
    "plan": "say what this node would do, and do nothing",
    "doctor": "check this node",
    "submit": "bring a job to a cluster that waits for jobs: submit [--no-wait] -- python train.py",
    "list": "the jobs of a cluster, oldest first",
    "status": "what the head knows: nodes, progress, outcome; status JOB; --watch",
    "logs": "the end of every log of the run; logs [--follow] NODE or JOB",
    "report": "the flight record of a run: report RUN [--json] [--html FILE]",
    "stop": "ask the head to save and to stop; stop JOB ends one job",
    "prepare": "make the data and the model of a task: prepare arithmetic --out DIR",
    "demo": "a head, two workers and a reward server on this machine, training for a few minutes",
}

WAIT = "--wait-for-jobs"
"""Flag of `up` and `plan`: the cluster has no job of its own."""
REMOTE = ("submit", "list", "status", "logs", "stop")
"""Commands that ask a head, and take arguments of their own (commands/arguments.py)."""


@dataclass(frozen=True, slots=True)
class Invocation:
    command: str
    """One of COMMANDS, `help`, or `exec`: another program, run as it is."""
    arguments: tuple[str, ...] = ()
    as_json: bool = False
    waits_for_jobs: bool = False


class UsageError(Exception):
    """The words are no command; the sentence names the commands."""


def parse(words: Sequence[str], *, recipe_takes_command: bool = False) -> Invocation:
    """Parse `words`, all that follows the image's name.

    Flags go to the job of `up`. Another program is executed, unless the recipe runs any command
    (`recipe_takes_command`): then the program is the job. A word that is no program and resembles a
    command is reported as a misspelt command.
    """
    if not words:
        return _start("up", ())
    first, rest = words[0], tuple(words[1:])
    if first in ("-h", "--help", "help"):
        return Invocation("help")
    if first == "up":
        return _start("up", rest[1:] if rest[:1] == ("--",) else rest)
    if first in ("prepare", "demo", "report", *REMOTE):
        own = rest[1:] if rest[:1] == ("--",) and first != "submit" else rest
        return Invocation(first, own)
    if first in COMMANDS:
        return _reader(first, rest)
    if first == "--":
        return _start("up", rest)
    if first.startswith("-"):
        return _start("up", tuple(words))
    if shutil.which(first):
        return Invocation("up" if recipe_takes_command else "exec", tuple(words))
    near = difflib.get_close_matches(first.lower(), COMMANDS, n=1)
    if recipe_takes_command and ("/" in first or not near):
        return Invocation("up", tuple(words))  # a worker's image may lack what the head runs
    hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
    raise UsageError(f"{first} is neither a command nor a program in this image: {hint}")


def _reader(command: str, rest: tuple[str, ...]) -> Invocation:
    """Parse a command that takes --json. Only `plan` takes other words: they are its job."""
    as_json = "--json" in rest
    others = tuple(word for word in rest if word not in ("--json", "--"))
    if others and command != "plan":
        raise UsageError(f"{command} does not take {' '.join(others)}; it takes --json")
    return replace(_start(command, others), as_json=as_json)


def _start(command: str, job: tuple[str, ...]) -> Invocation:
    """Return `up` or `plan` of a job, or of a cluster that waits for jobs. Raises UsageError."""
    if not job or not job[0].startswith("-") or WAIT not in job:
        return Invocation(command, job)
    if others := [word for word in job if word != WAIT]:
        problem = f"{command} {WAIT} does not take {' '.join(others)}"
        raise UsageError(f"{problem}: `rollcall submit` brings the jobs of such a cluster")
    return Invocation(command, waits_for_jobs=True)


def help_text() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rollcall [COMMAND] [ARGUMENTS]",
            "",
            *lines,
            "",
            "With no command, or with flags alone, the node comes up and the flags go to the job.",
            "With --wait-for-jobs, it comes up without a job, and `submit` brings jobs.",
            "Any other program is executed as it is. Settings come from the environment: see plan.",
        ]
    )
