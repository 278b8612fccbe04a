"""Recipe `trl`: TRL's scripts, and any script of transformers' Trainer, on all nodes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from contract.files.child_variables import RESUME_CHECKPOINT
from contract.launch import ranks
from contract.launch.command_lines import option_value, variables_before
from contract.launch.launcher_flags import PYTHON, LaunchError, parse, telling_steps
from contract.launch.log_lines import STEP
from contract.launch.programs import Program
from contract.resources import NodeResources
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.job import told_numbers, working_dir
from entrypoint.job.checkpoint_files import UNREADABLE
from entrypoint.job.found_checkpoints import FoundCheckpoint, start_faults
from entrypoint.job.found_checkpoints import newest as newest_by_pattern
from entrypoint.job.job_end import Lacking, of_script, of_steps
from entrypoint.job.recipes.base import JobCommand, MemoryAdvice, NotHere, PlacedJob
from entrypoint.job.recipes.interpreters import brings, has_module, is_own, package_in, unanswered
from entrypoint.job.recipes.named_files import absent
from entrypoint.job.recipes.torchrun.recipe import TorchRun
from entrypoint.job.recipes.trl import checkpoints as hf_checkpoints
from entrypoint.job.recipes.trl import command_line
from entrypoint.job.recipes.trl import flags as trl_flags
from entrypoint.job.recipes.trl.command_line import CONFIG, OUTPUT, RESUME, Script
from entrypoint.job.recipes.trl.own_script import Arguments, arguments_of
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.run.failure_classes import FailureClass

USAGE = re.compile(
    r"ValueError: (Some specified arguments are not used by the HfArgumentParser"
    r"|Either `datasets` or `dataset_name` must be provided"
    r"|Can't find a valid checkpoint at)"
)
TEMPLATE, TEMPLATE_FILES = "chat_template_path", (".jinja", ".j2")
"""A flag of `trl sft`; it may also be the name of a model whose template counts."""
CONFIGS = "accelerate_configs"
"""Directory of TRL's own configurations of accelerate."""
MODELS = (
    *("model_name_or_path", "reward_model_name_or_path", "ref_model_name_or_path"),
    *("reward_model_path", "sft_model_path", "teacher_model_name_or_path"),
)
"""Flags of TRL's scripts that name a model."""
NOT_SCRIPTS = frozenset({"__init__", "_hf_argparser", "env", "utils", "vllm_serve"})
NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=trl has nothing to train: give TRL's command "
    "after `rollcall up --`, or in ROLLCALL_JOB, such as `trl sft --model_name_or_path …`"
)
NOT_HERE = "this image has no TRL: use the images `cpu`, `cuda` or `rocm`, or install trl"


LESS_MEMORY = MemoryAdvice(
    gpu="lower --per_device_train_batch_size and raise --gradient_accumulation_steps by as much, or"
    " give --gradient_checkpointing true",
    node="lower --dataloader_num_workers or --per_device_train_batch_size",
)


class Trl(TorchRun):
    runs_any_program = False
    framework = "TRL"
    model_flags = ("--model_name_or_path",)
    output_flags = ("--output_dir",)
    tells_steps = True

    def recognises(self, typed: TypedCommand) -> Match:
        if typed.name == "trl":
            others = command_line.OTHERS.intersection(typed.unwrapped[1:2])
            return Match.NONE if others else Match.OWN
        if command_line.SCRIPT.fullmatch(typed.program[-1]) or _behind_launcher(typed):
            return Match.OWN
        if _arguments(typed) is not Arguments.NO_TRAINER and _is_told(typed):
            return Match.OWN
        return Match.POSSIBLE if typed.on_ranks else Match.NONE

    def shown(self, typed: TypedCommand) -> str:
        if _arguments(typed) is Arguments.NO_TRAINER:
            return super().shown(typed)
        return f"{typed.program[-1]}, which trains with transformers' Trainer, once for each GPU"

    def is_translated(self, typed: TypedCommand) -> bool:
        found = command_line.SCRIPT.fullmatch(typed.program[-1])
        names = (*typed.unwrapped[1:2], *(found.groups() if found else ()))
        return "grpo" in (*names, _behind_launcher(typed))

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        if (scripts := _scripts(settings)) is None:
            return (_no_trl(_python(settings)),)
        script = _script(settings, scripts)
        if script and script.name in command_line.OTHERS:
            return (f"trl {script.name} trains nothing: run it with ROLLCALL_RECIPE=command",)
        if script and script.name not in scripts:
            known = ", ".join(sorted(scripts))
            return (f"trl has no training script {script.name}: it has {known}",)
        try:
            found = [*super().faults(_launched(settings))]
            telling = telling_steps(parse(_launched(settings).job))
        except LaunchError as error:
            return error.faults
        found += [*_no_rollcall(telling.python), *_faults_of_arguments(settings)]
        return [*found, *_unknown_flags(settings, _own_script(settings, scripts))]

    def warnings(self, settings: Settings) -> Sequence[str]:
        return [*super().warnings(_launched(settings)), *_warnings(settings)]

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        placed = super().placed(_launched(settings), nodes)
        lacking = (*placed.lacking, *_other_world(settings, nodes))
        return replace(placed, settings=settings, lacking=lacking)

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        added: tuple[str, ...] = ()
        typed = TypedCommand(settings.job, settings.runtime_env)
        takes_flags = _arguments(typed) is not Arguments.OF_CODE
        if takes_flags and _argument(settings, OUTPUT) is None:
            added = (f"--{OUTPUT}", str(_output(settings)))
        found = _newest(settings) if resume_from is not None else None
        resumed: dict[str, str] = {}
        if found is not None and not settings.resume_args:
            resumed[RESUME_CHECKPOINT] = str(found.path)
            if takes_flags:
                added = (*added, f"--{RESUME}", str(found.path))  # the last one counts
        launched = _launched(settings)
        made = super().command(replace(launched, job=(*launched.job, *added)), resume_from)
        return replace(made, env={**made.env, **resumed})

    def latest(self, settings: Settings) -> int | None:
        found = _newest(settings)
        return found.step if found else None

    def step_pattern(self, settings: Settings) -> re.Pattern[str]:
        return settings.step_pattern or STEP

    def metrics_in(self, text: str, groups: Mapping[str, float]) -> Mapping[str, float]:
        return told_numbers.of_dict(text)  # a step's line repeats what the Trainer logged last

    def failure_in(self, line: str) -> FailureClass | None:
        return FailureClass.USAGE if USAGE.search(line) else None

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return LESS_MEMORY

    def models(self, settings: Settings) -> Mapping[str, str]:
        named = {name: _argument(settings, name) for name in MODELS}
        return {f"--{name}": value for name, value in named.items() if value}

    def lacking_at_end(self, settings: Settings) -> Lacking:
        python = parse(_launched(settings).job).python
        return of_script if python == PYTHON or is_own(python) else of_steps

    def effect(self, changed: Collection[str]) -> str:
        return "It holds from the next step on; the Trainer restores optimizer and schedule"


def _behind_launcher(typed: TypedCommand) -> str:
    """Return the script of `accelerate launch /x/bin/trl sft …`; "" of another command."""
    if not (typed.on_ranks and command_line.is_trl(typed.program[-1])):
        return ""
    pairs = pairwise(typed.unwrapped)
    name = next((name for word, name in pairs if word == typed.program[-1]), "")
    return "" if name in command_line.OTHERS else name


def _arguments(typed: TypedCommand) -> Arguments:
    """Return where the typed script's Trainer has its arguments from, if its file is here."""
    script = Path(typed.program[-1])
    if script.suffix != ".py" or command_line.SCRIPT.fullmatch(str(script)):
        return Arguments.NO_TRAINER
    with suppress(*UNREADABLE):
        return arguments_of(working_dir.content(typed.runtime_env, script).decode())
    return Arguments.NO_TRAINER


def _is_told(typed: TypedCommand) -> bool:
    """Return whether the script's Python can tell steps: it is Rollcall's own.

    `python3` of another environment, which comes first in PATH, is the one that somebody means.
    """
    typed_python = re.fullmatch(r"python[\d.]*", next(iter(typed.unwrapped), ""))
    found = shutil.which(typed_python[0]) if typed_python else None
    if found and not is_own(found):
        return False
    with suppress(LaunchError):
        python = parse(typed.unwrapped).python
        return python == PYTHON or is_own(python)
    return False


def _scripts(settings: Settings) -> frozenset[str] | None:
    """Return the names of TRL's training scripts; None if the job's Python has no TRL."""
    if (directory := _trl(settings)) is None:
        return None
    return frozenset(file.stem for file in (directory / "scripts").glob("*.py")) - NOT_SCRIPTS


def _python(settings: Settings) -> str | None:
    """Return the path of the Python that has the TRL of the job; None: it is Rollcall's own."""
    beside = command_line.python_beside(variables_before(settings.job)[1])
    return None if beside is None or is_own(beside) else beside


def _trl(settings: Settings) -> Path | None:
    """Return the directory of the package TRL, which is not imported; None without TRL."""
    if python := _python(settings):
        return package_in(python, "trl")
    spec = find_spec("trl")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def _no_trl(python: str | None) -> str:
    """Return why there is no TRL. `python`: the path of another Python than Rollcall's."""
    if python is None:
        return NotHere(NOT_HERE)
    if shutil.which(python) is None:
        why = f"{python} is not there: give the `trl` of an environment with its Python beside it"
        return NotHere(why)
    none = NotHere(f"{python} has no TRL: give the `trl` of an environment that has it")
    return unanswered("TRL", python) or none


def _script(settings: Settings, scripts: Collection[str]) -> Script | None:
    """Return TRL's own script that the job runs; None for another program."""
    return command_line.script_of(variables_before(settings.job)[1], scripts)


def _own_script(settings: Settings, scripts: Collection[str]) -> Script | None:
    """Return TRL's own script also if a launcher or a Python starts it."""
    if script := _script(settings, scripts):
        return script
    launch = parse(command_line.as_module(settings.job, scripts))
    return command_line.script_in((*launch.program, *launch.arguments), scripts)


def _launched(settings: Settings) -> Settings:
    """Return settings whose job has the words of the launch."""
    scripts = _scripts(settings) or ()
    script = _script(settings, scripts)
    if script is None:
        return replace(settings, job=command_line.as_module(settings.job, scripts))
    configs, script = f"{_trl(settings)}/{CONFIGS}", command_line.with_file(script, _file(settings))
    variables = variables_before(settings.job)[0].items()
    assigned = (f"{name}={value}" for name, value in variables)
    words = command_line.launched(script, configs, _python(settings))
    return replace(settings, job=(*assigned, *words))


def _no_rollcall(python: str) -> Iterator[str]:
    """Yield a fault if the script's Python is one that cannot tell steps."""
    if python == PYTHON or shutil.which(python) is None or has_module(python, Program.WITH_STEPS):
        return
    if slow := unanswered("Rollcall", python):
        yield slow
        return
    yield (
        f"{python} has no Rollcall, which tells the steps of the script: give python3, which is "
        f"{sys.executable}, or install Rollcall in that one (docs/platforms/jobs.md)"
    )


def _unknown_flags(settings: Settings, script: Script | None) -> Iterator[str]:
    directory, variables = _trl(settings), variables_before(settings.job)[0]
    if script and directory and not brings(settings, variables, "trl"):
        yield from trl_flags.unknown(directory, script.name, script.arguments)


def _not_checked(settings: Settings) -> Iterator[str]:
    """Yield why the flags of TRL's own script are checked only when it starts."""
    scripts, directory = _scripts(settings) or (), _trl(settings)
    script = _own_script(settings, scripts)
    if script is None or script.name not in scripts or directory is None:
        return
    if brings(settings, variables_before(settings.job)[0], "trl"):
        why = "the job may bring its own TRL"
    elif trl_flags.flags_of(directory, script.name) is None:
        why = "the installed TRL has them in a form that is not read"
    else:
        return
    yield f"trl {script.name}: its flags are not checked before it starts, because {why}"


def _argument(settings: Settings, name: str) -> str | None:
    return command_line.argument(settings.job, _file(settings), name)


def _file(settings: Settings) -> Mapping[str, Any]:
    """Return the arguments of TRL's --config file; an unreadable one is for TRL to refuse."""
    path = option_value(settings.job, CONFIG)
    try:
        content = working_dir.content(settings.runtime_env, Path(path)) if path else b""
        row = yaml_text.parsed(content.decode())
    except (*UNREADABLE, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


def _output(settings: Settings) -> Path:
    """Return where checkpoints and the final model lie: transformers expands `~`, too."""
    given = _argument(settings, OUTPUT)
    run = RunFiles(settings.run_dir)
    return Path.cwd() / working_dir.expanded(given) if given else run.exported


def _newest(settings: Settings) -> FoundCheckpoint | None:
    if settings.checkpoints is not None:
        return newest_by_pattern(settings)
    return hf_checkpoints.newest(_output(settings))


def _faults_of_arguments(settings: Settings) -> Iterator[str]:
    output = _argument(settings, OUTPUT)
    is_copy = "working_dir" in settings.runtime_env
    if output and is_copy and not working_dir.expanded(output).is_absolute():
        yield (
            f"--{OUTPUT} {output} lies in Ray's copy of working_dir, which Ray deletes: give an "
            f"absolute path, such as {settings.run_dir / output}"
        )
    template = _argument(settings, TEMPLATE) or ""
    files = {TEMPLATE: template if template.endswith(TEMPLATE_FILES) else ""}
    if _script(settings, _scripts(settings) or ()):  # another script's --config may be anything
        files[CONFIG] = option_value(settings.job, CONFIG) or ""
    for name, file in files.items():
        if file and (missing := absent(settings, f"--{name} {file}", file)):
            yield missing
    resume = _argument(settings, RESUME)
    if resume is None:
        return
    if resume.lower() in ("true", "false", ""):
        yield (
            f"--{RESUME} {resume} is not a checkpoint's path: leave it out, the recipe trl resumes "
            "from the newest complete checkpoint itself"
        )
        return
    words = f"--{RESUME} {resume}"
    yield from start_faults(settings, words, Path(resume), _newest(settings), f"--{OUTPUT}")


def _warnings(settings: Settings) -> Iterator[str]:
    if _argument(settings, "save_strategy") == "no":
        yield "--save_strategy no: without checkpoints, each attempt begins at step 1"
    if (_argument(settings, "save_only_model") or "").lower() == "true":
        yield "--save_only_model true: checkpoints have no optimizer, so a resumed run differs"
    yield from _not_checked(settings)
    if not settings.shares_run_dir:
        yield f"all ranks write checkpoints and read them: all nodes must share --{OUTPUT}"


def _other_world(settings: Settings, nodes: Sequence[NodeResources]) -> Iterator[str]:
    """Refuse a resume that DeepSpeed's ZeRO cannot do: at another number of ranks."""
    if found := _newest(settings):
        world = ranks.world_size(parse(_launched(settings).job), nodes)
        if sentence := hf_checkpoints.other_world(found.path, world):
            yield sentence


RECIPE = Trl()
