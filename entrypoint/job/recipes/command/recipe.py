"""Recipe `command`: any program, on the head.

Its progress is in RUN/progress.json, or in its log (ROLLCALL_STEP_PATTERN).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from contract.files.child_variables import RESUME_FROM
from contract.launch import front_ends, shell_wrapping
from contract.launch.command_lines import PYTHON, variables_before
from contract.launch.known_modules import mistyped
from contract.launch.shell_wrapping import OPERATOR
from contract.options import did_you_mean
from contract.progress import Progress
from contract.resources import NodeResources
from contract.run_dir import RunFiles
from entrypoint.cluster.reported_differences import skipped_checks
from entrypoint.config.parsers import BY_A_SHELL
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.job.found_checkpoints import newest, resume_faults, resumed_words
from entrypoint.job.job_end import Lacking, of_given_steps
from entrypoint.job.recipes.base import (
    AbsentFile,
    ArgumentsError,
    FilesGoneError,
    JobCommand,
    MemoryAdvice,
    NotHere,
    PlacedJob,
    Recipe,
)
from entrypoint.job.recipes.interpreters import (
    brings,
    interpreter_for,
    package_of,
    source_of,
)
from entrypoint.job.recipes.named_files import absent_script
from entrypoint.job.recipes.script import OF_SLURM, is_of_slurm
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.processes.programs import unshadowed

log = logging.getLogger(__name__)
NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=command has nothing to run: "
    "give the command after `rollcall up --`, or in ROLLCALL_JOB. For a cluster that waits for "
    "jobs, start every node with `rollcall up --wait-for-jobs`."
)


FLAG_OF_FILE = {
    **dict.fromkeys((".yaml", ".yml"), "--config"),
    **dict.fromkeys((".jsonl", ".parquet", ".csv"), "--prompt_data"),
}
"""End of a file's name → the flag that takes such a file: nobody runs it as a program."""
STEPS_IN_LOG = (
    "Without them, steps are those of dicts in its log, if it has any, such as "
    "{'step': 7, 'loss': 2.5}"
)
LESS_MEMORY = MemoryAdvice(
    gpu="have the job take smaller batches on each GPU", node="have the job hold less on each node"
)


class AnyCommand(Recipe):
    runs_any_program = True

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.ANY

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        found = [_shell_syntax(settings), _missing(settings), no_directory(settings)]
        found.append(_mistyped_module(settings))
        return [*(sentence for sentence in found if sentence), *resume_faults(settings)]

    def warnings(self, settings: Settings) -> Sequence[str]:
        return _on_one_node(settings) if settings.expected_workers else ()

    def notes(self, settings: Settings) -> Sequence[str]:
        return untold(settings) if self.runs_any_program else ()

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        return PlacedJob(
            settings=settings, warnings=_on_one_node(settings) if len(nodes) > 1 else ()
        )

    def look_for_files(self, settings: Settings) -> None:
        if lacking := self.faults(settings):
            raise FilesGoneError("; ".join(lacking))

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        variables, words = variables_before(resumed_words(settings, resume_from))
        env = {**variables, "ROLLCALL_RUN_DIR": str(settings.run_dir)}
        if resume_from is not None:
            env[RESUME_FROM] = str(resume_from)
        return JobCommand(unshadowed(words), env, runtime_environment(settings))

    def latest(self, settings: Settings) -> int | None:
        if settings.checkpoints is not None:
            found = newest(settings)
            return found.step if found else None
        progress = Progress.read(RunFiles(settings.run_dir).progress)
        return progress.checkpoint if progress else None

    def step_pattern(self, settings: Settings) -> re.Pattern[str] | None:
        return settings.step_pattern

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return LESS_MEMORY

    def effect(self, changed: Collection[str]) -> str:
        return "The new one is run; what it keeps of the run so far is its own to say"

    def lacking_at_end(self, settings: Settings) -> Lacking:
        return of_given_steps


def untold(settings: Settings) -> list[str]:
    """Return a sentence on what nobody can know of such a program, and the variables that say it.

    Its steps may also be in RUN/progress.json, which the program alone knows.
    """
    said = {
        "steps": ("ROLLCALL_STEP_PATTERN", settings.step_pattern),
        "checkpoints": ("ROLLCALL_CHECKPOINTS", settings.checkpoints),
        "how it resumes": ("ROLLCALL_RESUME_ARGS", settings.resume_args),
    }
    missing = {what: name for what, (name, value) in said.items() if not value}
    if not missing:
        return []
    lists = (_and(names) for names in (list(missing), list(missing.values())))
    verb = "says" if len(missing) == 1 else "say"
    told = "not known of this program: {}. {} {} it (docs/recipes/command.md)"
    unless = f". {STEPS_IN_LOG}" if "steps" in missing else ""
    return [told.format(*lists, verb) + unless]


def _and(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _on_one_node(settings: Settings) -> tuple[str, ...]:
    """Return a sentence if the job starts processes on the head's node alone."""
    typed = shell_wrapping.unwrapped(settings.job)
    instead = front_ends.alone(typed.variables, typed.command)
    if not instead:
        return ()
    name = PurePath(typed.command[0]).name
    return (f"{name} starts processes on the head, and nothing on the other nodes: {instead}",)


def _missing(settings: Settings) -> str:
    variables, words = variables_before(settings.job)
    if not words:
        return f"{settings.job[-1]} has no program behind it: give the command that runs with it"
    program, brings = words[0], set(NEEDS_INSTALL) & set(settings.runtime_env)
    if shutil.which(program, path=variables.get("PATH")) or brings:
        return absent_script(settings)
    if flag := FLAG_OF_FILE.get(PurePath(program).suffix):
        return f"{program} is not a program on this node: did you mean {flag} {program}?"
    known = {*shell_wrapping.LAUNCHERS, *_programs()} - {program}
    otherwise = OF_SLURM if is_of_slurm(words) else front_ends.alone(variables, words)
    instead = "" if otherwise else did_you_mean(program, sorted(known), cutoff=0.8)
    if "/" in program and Path(program).is_file():
        start = "python3" if program.endswith(".py") else "bash"
        return f"{program} lacks the right to be executed: chmod +x it, or give {start} {program}"
    if program.endswith(".py"):
        instead = f"give python3 {program}"
    otherwise = otherwise or "give a command that is there"
    fault = f"{program} is not a program on this node: {instead or otherwise}"
    if "/" in program:
        return AbsentFile(fault, Path(program))
    return fault if instead else NotHere(fault)


def _mistyped_module(settings: Settings) -> str:
    """Return a fault for a module that is not there, and is like one of another trainer."""
    variables, words = variables_before(settings.job)
    typed = TypedCommand(settings.job, settings.runtime_env)
    near = mistyped(typed.program[-1]) if typed.program[0] == "-m" else ""
    if not near or not PYTHON.fullmatch(words[0]):
        return ""
    module = typed.program[-1]
    top = module.partition(".")[0]
    python = interpreter_for(words[0], top)
    package = package_of(settings, variables, python, top)
    if source_of(package, module) if package else brings(settings, variables, top):
        return ""
    return NotHere(f"{python} finds no module {module}: did you mean {near}?")


def _programs() -> list[str]:
    """Return the names of the programs on PATH."""
    places = [path for path in map(Path, os.get_exec_path()) if path.is_dir()]
    return sorted({one.name for path in places for one in path.iterdir()})


def no_directory(settings: Settings) -> str:
    if not working_dir.is_local(settings.runtime_env):
        return ""
    path = working_dir.place(settings.runtime_env)
    fault = f"working_dir {path} of the runtime environment is not there"
    return "" if path.exists() else AbsentFile(fault, Path(path))


def needless_variables(settings: Settings) -> list[str]:
    """Return a sentence for each variable that is set, and that the recipe answers by itself.

    On a head that waits for jobs, the variables are of its other jobs.
    """
    if settings.waits_for_jobs:
        return []
    given = {
        "ROLLCALL_CHECKPOINTS": settings.checkpoints,
        "ROLLCALL_RESUME_ARGS": settings.resume_args,
    }
    return [
        f"{name} is set, and the recipe {settings.recipe} knows it: leave it out"
        for name, value in given.items()
        if value
    ]


def runtime_environment(settings: Settings) -> Mapping[str, Any]:
    """Return the runtime environment, with a local working directory as an archive."""
    row = dict(settings.runtime_env)
    if settings.waits_for_jobs:  # the variable of Ray's own processes names the cluster's directory
        row["env_vars"] = {**row.get("env_vars", {}), "ROLLCALL_RUN_DIR": str(settings.run_dir)}
    if working_dir.is_local(row):
        packages = RunFiles(settings.run_dir).packages
        packages.mkdir(mode=0o700, exist_ok=True)
        try:
            package = working_dir.pack(row, packages)
            row["working_dir"] = working_dir.on_nodes(package.path, shared=_share_files(settings))
        except working_dir.PackError as error:
            raise ArgumentsError(str(error)) from None
        if package.note:
            log.warning("%s", package.note)
        row.pop("excludes", None)
    return row


def _share_files(settings: Settings) -> bool:
    """Return whether each worker had to prove at the roll call that it sees the run directory."""
    return "nodes.storage" not in skipped_checks(settings)


def _shell_syntax(settings: Settings) -> str:
    """Return a fault for shell syntax on the command line.

    In ROLLCALL_JOB, quotes distinguish text from syntax, so that it is not checked.
    """
    if settings.variable("job"):
        return ""
    found = next((word for word in settings.job if OPERATOR.fullmatch(word)), None)
    if found is None:
        return ""
    return f"the command has the shell syntax {found}, and no shell reads it: {BY_A_SHELL}"


RECIPE = AnyCommand()
