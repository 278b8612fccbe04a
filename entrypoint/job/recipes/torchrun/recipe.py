"""Recipe `torchrun`: a script as one process for each GPU of all nodes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from contract.files import yaml_text
from contract.files.child_variables import RESUME_FROM
from contract.launch import front_ends, ranks
from contract.launch.command_lines import option_value
from contract.launch.launcher_flags import (
    PYTHON,
    Launch,
    LaunchError,
    parse,
)
from contract.launch.programs import Program
from contract.resources import NodeResources
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job.found_checkpoints import resume_faults, resumed_words
from entrypoint.job.recipes.base import AbsentPython, ArgumentsError, JobCommand, PlacedJob
from entrypoint.job.recipes.command.recipe import AnyCommand, no_directory, runtime_environment
from entrypoint.job.recipes.named_files import absent, faults_of_configurations
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.processes.programs import program

NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=torchrun has no script to run: give it after "
    "`rollcall up --`, or in ROLLCALL_JOB, such as `train.py --lr 1e-5`"
)
THREADS = "OMP_NUM_THREADS"
DEFAULT_FILE = Path("accelerate/default_config.yaml")
"""What `accelerate config` writes, below Hugging Face's directory."""
COUNTS = ("num_machines", "num_processes")
"""Of a file of `accelerate config`."""


class TorchRun(AnyCommand):
    framework = "torchrun, accelerate or deepspeed"
    tells_steps = False
    """The script runs under `Program.WITH_STEPS`, which prints its steps."""

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.LIKELY if typed.on_ranks else Match.NONE

    def shown(self, typed: TypedCommand) -> str:
        if typed.name not in front_ends.NAMES:
            return super().shown(typed)
        return f"a command of {typed.name}, whose processes run on every GPU of all nodes"

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        try:
            launch = parse(settings.job)
        except LaunchError as error:
            return error.faults
        found = (no_directory(settings), _no_python(settings, launch), _no_script(settings, launch))
        files = faults_of_configurations(settings, launch.accelerate or (), launch.arguments)
        return [*(sentence for sentence in found if sentence), *files, *resume_faults(settings)]

    def warnings(self, settings: Settings) -> Sequence[str]:
        launch = parse(settings.job)
        of_default = _warnings_of_default_file(settings, launch)
        return [*launch.warnings, *_warnings_of_named_file(launch), *of_default]

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        try:
            launch = parse(settings.job)
        except LaunchError as error:
            raise ArgumentsError(str(error)) from None
        lacking = tuple(ranks.lacking(launch, nodes))
        return PlacedJob(settings=settings, lacking=lacking, layout=ranks.layout(launch, nodes))

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        env = {"ROLLCALL_RUN_DIR": str(settings.run_dir)}
        if resume_from is not None:
            env[RESUME_FROM] = str(resume_from)
        variables = {**settings.environ, **settings.runtime_env.get("env_vars", {})}
        threads = ("--threads", variables[THREADS]) if variables.get(THREADS) else ()
        words = resumed_words(settings, resume_from)
        steps = ("--steps",) if self.tells_steps else ()
        argv = program(Program.LAUNCH, *steps, *threads, "--", *words)
        return JobCommand(argv, env, runtime_environment(settings))


def _no_python(settings: Settings, launch: Launch) -> str:
    """Return a fault if the Python of the launch is not there, unless the job may bring it."""
    brings = set(NEEDS_INSTALL) & set(settings.runtime_env)
    if brings == {"working_dir"} and Path(launch.python).is_absolute():
        brings = set()
    if launch.python == PYTHON or brings or shutil.which(launch.python):
        return ""
    return AbsentPython(
        f"{launch.python} is not there: give the path of a Python or of a launcher beside one, or "
        f"a launcher without its path, which runs with {sys.executable}",
        Path(launch.python),
    )


def _warnings_of_named_file(launch: Launch) -> Iterator[str]:
    """Yield a warning if accelerate's file says how many processes run, which the roll says."""
    file = option_value(launch.accelerate or (), "config_file")
    try:
        row = yaml_text.parsed(Path(file).read_text()) if file else None
    except (OSError, ValueError):
        return
    named = {one: row[one] for one in COUNTS if one in row} if isinstance(row, dict) else {}
    if named:
        said = " and ".join(f"{name}: {count}" for name, count in named.items())
        count = "one process for each GPU" if launch.per_node is None else "--num_processes"
        yield (
            f"accelerate launch: {file} has {said}, which has no effect here: the nodes of the run "
            f"are the machines, and each has {count}"
        )


def _warnings_of_default_file(settings: Settings, launch: Launch) -> Iterator[str]:
    """Yield a warning if `accelerate config` chose a mode that the launch does not take over.

    accelerate's launcher reads its default file, but its mode only if no flag says one. On several
    GPUs Rollcall says `--multi_gpu`, for the nodes need not have the head's file.
    """
    words = launch.accelerate
    if words is None or "--cpu" in words or ranks.chooses_mode(words):
        return
    variables = {**settings.environ, **settings.runtime_env.get("env_vars", {})}
    cache = Path(variables.get("XDG_CACHE_HOME") or "~/.cache")
    file = Path(variables.get("HF_HOME") or cache / "huggingface").expanduser() / DEFAULT_FILE
    try:
        row = yaml_text.parsed(file.read_text())
    except (OSError, ValueError):
        return
    mode = row.get("distributed_type") if isinstance(row, dict) else None
    if mode is not None and not ranks.has_whole_model(mode):
        yield (
            f"accelerate launch: {file} chooses {mode}, which counts only if the command names the "
            f"file: add --config_file {file}, and put it on each node"
        )


def _no_script(settings: Settings, launch: Launch) -> str:
    """Return a fault if the script is not a file where the job starts; "" if that is elsewhere."""
    words = [word for word in launch.program[:2] if word != PYTHON and word.endswith(".py")]
    return absent(settings, words[0], words[0]) if words else ""


RECIPE = TorchRun()
