"""Recipe `verl`: verl's trainers, whose driver runs on the head and uses Ray."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from contract.files.child_variables import RESUME_FROM
from contract.resources import NodeResources
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job import told_numbers, working_dir
from entrypoint.job.found_checkpoints import start_faults
from entrypoint.job.job_end import JobEnd, Lacking
from entrypoint.job.recipes.base import AbsentPython, JobCommand, MemoryAdvice, NotHere, PlacedJob
from entrypoint.job.recipes.command.recipe import (
    AnyCommand,
    needless_variables,
    no_directory,
    runtime_environment,
)
from entrypoint.job.recipes.interpreters import (
    has_module,
    interpreter_for,
    unanswered,
)
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.job.recipes.verl import checkpoints, command_line, installed, keys
from entrypoint.job.recipes.verl.command_line import (
    AUTO,
    DIRECTORY,
    FREQUENCY,
    FROM_PATH,
    LOGGER,
    PROGRAM_OF_SFT,
    RESUME_MODE,
    RESUME_PATH,
    WORKERS_PYTHON,
    VerlCommand,
    parse,
)
from entrypoint.job.recipes.verl.installed import PACKAGE
from entrypoint.run.failure_classes import FailureClass

SAVE_EVERY = 20
"""Steps between two checkpoints, if the user does not say: verl's default is never."""
ADDED = (FREQUENCY, DIRECTORY, LOGGER, command_line.NNODES, command_line.GPUS)
"""Overrides that the recipe adds if the command does not have them."""
NUMBER = r"(?:np\.float\d+\()?(?P<{}>[-+.\de]+)"
STEP_PATTERN = re.compile(
    r"^step:(?P<step>\d+) - "
    + "".join(
        f"(?=(?:.*? - |){key}:{NUMBER.format(name)}|)"
        for key, name in (
            ("critic/rewards/mean", "reward"),
            ("timing_s/step", "step_seconds"),
            ("perf/throughput", "tokens_per_second"),
        )
    )
    + r"|Total training steps: (?P<total_steps>\d+)|Size of train dataloader: (?P<epoch_steps>\d+)"
    r"|(?P<ended>(?:Final|Initial) validation metrics)"
)
"""A line of verl's console logger, and what verl prints before the first step and at the end."""
USAGE = re.compile(
    r"Total available GPUs \d+ is less than total desired GPUs"
    r"|hydra\.errors\.|omegaconf\.errors\.|ConfigAttributeError|ConfigKeyError"
    r"|resume ckpt must (be str type|specify the global_steps)"
)
NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=verl has nothing to train: give verl's command "
    "after `rollcall up --`, or in ROLLCALL_JOB, such as `python3 -m verl.trainer.main_ppo …`"
)
NOT_HERE = (
    "neither Rollcall's Python nor the one on PATH has verl: build the CUDA image with "
    "FLAVOUR=cuda-verl, or use an image that has it, and give the path of its Python, as in "
    "/opt/verl/bin/python -m verl.trainer.main_ppo; it needs the cluster's version of Ray"
)
EFFECT = "It holds from the next step on; verl restores optimizer, schedule and data"


def usual_warnings(
    settings: Settings, command: VerlCommand, directory: Path, unsaved: str
) -> Iterator[str]:
    """Yield the warnings that each program of verl needs.

    `directory`: of the checkpoints. `unsaved`: what it means that there are none between the ends.
    """
    given = command.value(DIRECTORY)
    if given and not working_dir.expanded(given).is_absolute():
        yield f"{DIRECTORY}={given} is relative: checkpoints lie in {directory}"
    if (every := command.number(FREQUENCY)) is not None and every < 1:
        yield f"{FREQUENCY}={every}: {unsaved}"
    if not settings.shares_run_dir:
        yield command_line.NOT_SHARED
    logger = command.value(LOGGER)
    if logger is not None and "console" not in logger:
        yield f"{LOGGER}={logger}: `console` is added, because its lines tell the steps"


class AnyVerl(AnyCommand):
    """What the recipes of verl and of its copies have in common."""

    runs_any_program = False
    framework = "verl"
    model_flags = ("actor_rollout_ref.model.path",)
    less_placement = (
        "Set trainer.nnodes and trainer.n_gpus_per_node to what the nodes have, or leave both out"
    )
    each: ClassVar[str] = "_per_gpu"
    """How the keys of the samples of a pass end."""

    def warnings(self, settings: Settings) -> Sequence[str]:
        return tuple(self.warnings_of(settings, parse(settings.job)))

    def flags(self, settings: Settings) -> Mapping[str, str]:
        return parse(settings.job).flags

    def warnings_of(self, settings: Settings, command: VerlCommand) -> Iterator[str]:
        """Yield the warnings that each copy of verl needs."""
        unsaved = "without checkpoints, each attempt begins at step 1"
        yield from usual_warnings(settings, command, self.directory(settings, command), unsaved)

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        given = parse(settings.job)
        gpus = [node.gpus for node in nodes if node.gpus]
        command = command_line.placed(given, gpus)
        lacking = command_line.lacking(command, gpus, self.framework)
        found = (lacking, self.other_world(settings, command))
        job = settings if command == given else replace(settings, job=command.words)
        idle = _idle(given, gpus) if given.number(command_line.NNODES) else ""
        warnings = (idle,) if idle else ()
        return PlacedJob(settings=job, lacking=tuple(filter(None, found)), warnings=warnings)

    def other_world(self, settings: Settings, command: VerlCommand) -> str:
        """Return why the newest checkpoint cannot be loaded on this layout; "" if it can."""
        return ""

    def directory(self, settings: Settings, command: VerlCommand) -> Path:
        """Return where the checkpoints lie."""
        return working_dir.below(
            settings.run_dir, command.value(DIRECTORY) or self.framework.lower()
        )

    def step_pattern(self, settings: Settings) -> re.Pattern[str]:
        return settings.step_pattern or STEP_PATTERN

    def metrics_in(self, text: str, groups: Mapping[str, float]) -> Mapping[str, float]:
        return told_numbers.of_groups(groups) | told_numbers.of_dashed(text)

    def failure_in(self, line: str) -> FailureClass | None:
        return FailureClass.USAGE if USAGE.search(line) else None

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        of = "actor_rollout_ref"
        offload = f"{of}.actor.fsdp_config"
        return MemoryAdvice(
            gpu=f"lower {of}.actor.ppo_micro_batch_size{self.each},"
            f" {of}.rollout.log_prob_micro_batch_size{self.each} or"
            f" {of}.rollout.gpu_memory_utilization",
            node=f"set {offload}.param_offload and {offload}.optimizer_offload to False",
        )


def saving(
    settings: Settings, command: VerlCommand, directory: Path, every: int = SAVE_EVERY
) -> VerlCommand:
    """Return the command with a directory and a rhythm of checkpoints, and the console's log."""
    if command.value(DIRECTORY) != command_line.quoted(directory):
        command = command.having(trainer__default_local_dir=directory)
    if command.value(FREQUENCY) is None:
        command = command.having(trainer__save_freq=every)
    return command_line.console_added(command, wandb=settings.wandb_api_key is not None)


class Verl(AnyVerl):
    def recognises(self, typed: TypedCommand) -> Match:
        if not command_line.is_training(typed.program):
            return Match.OWN if command_line.is_relative(typed) else Match.NONE
        return Match.POSSIBLE if command_line.is_search_r1(typed) else Match.OWN

    def is_translated(self, typed: TypedCommand) -> bool:
        return typed.program[-1] == command_line.MODULE

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        if verl_sft := PROGRAM_OF_SFT.fullmatch(TypedCommand(settings.job).program[-1]):
            return (f"{verl_sft[0]} runs on every node: give ROLLCALL_RECIPE=verl-sft, or none",)
        command = parse(settings.job)
        found = [_no_interpreter(settings, command), _no_workers_python(settings, command)]
        found.append(no_directory(settings))
        found += needless_variables(settings)
        found += [*command_line.faults(command), *_start_faults(settings, command)]
        if not any(found):
            found += installed.lacks(settings, command, _completed(settings, command).overrides)
        return [sentence for sentence in found if sentence]

    def warnings_of(self, settings: Settings, command: VerlCommand) -> Iterator[str]:
        yield from super().warnings_of(settings, command)
        yield from _warnings(settings, command)

    def other_world(self, settings: Settings, command: VerlCommand) -> str:
        found = checkpoints.newest(self.directory(settings, command))
        saved = checkpoints.world_size(found.path) if found else None
        nodes, each = command.number(command_line.NNODES), command.number(command_line.GPUS)
        if found is None or saved is None or not (nodes and each) or saved == nodes * each:
            return ""
        return (
            f"{found.path.name} was saved by {saved} ranks of FSDP, which verl cannot load on "
            f"{nodes * each}: bring the nodes back, or remove the checkpoints to begin again"
        )

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        command = _completed(settings, parse(settings.job))
        python = interpreter_for(command.interpreter, PACKAGE)
        env = {**command.variables, "ROLLCALL_RUN_DIR": str(settings.run_dir)}
        if resume_from is not None:
            env[RESUME_FROM] = str(resume_from)
        argv = (python, *command.program, *command.overrides)
        return JobCommand(argv, env, runtime_environment(settings))

    def latest(self, settings: Settings) -> int | None:
        found = checkpoints.newest(self.directory(settings, parse(settings.job)))
        return found.step if found else None

    def effect(self, changed: Collection[str]) -> str:
        return EFFECT

    def models(self, settings: Settings) -> Mapping[str, str]:
        return command_line.models(parse(settings.job))

    def lacking_at_end(self, settings: Settings) -> Lacking:
        command = parse(settings.job)
        directory = self.directory(settings, command)

        def lacking(end: JobEnd) -> str:
            found = checkpoints.newest(directory)
            last = command_line.last_step(command, end)
            saves = (command.number(FREQUENCY) or SAVE_EVERY) > 0
            return command_line.steps_left(
                command, end, last, saved=found.step if found else 0, saves_last=saves
            )

        return lacking

    def exported(self, settings: Settings) -> Path | None:
        found = checkpoints.newest(self.directory(settings, parse(settings.job)))
        return checkpoints.model_of(found) if found else None

    def without_model(self, settings: Settings) -> str:
        return command_line.without_model(parse(settings.job))


def _idle(command: VerlCommand, gpus: Sequence[int]) -> str:
    """Return which GPUs a command leaves idle that the nodes have; "" if it uses all."""
    nodes, each = command.number(command_line.NNODES) or 1, command.number(command_line.GPUS) or 8
    used, offered = nodes * each + sum(command_line.apart(command).values()), sum(gpus)
    if used >= offered or command_line.on_cpus(command):
        return ""
    keys = f"{command_line.NNODES}={nodes} × {command_line.GPUS}={each}"
    return f"the job uses {used} of {offered} GPUs ({keys}): leave both keys out to have more"


def _completed(settings: Settings, command: VerlCommand) -> VerlCommand:
    """Return the command with checkpoints, resume and log as the supervision needs them."""
    directory = RECIPE.directory(settings, command)
    command = saving(settings, command, directory)
    python = interpreter_for(command.interpreter, PACKAGE)
    named = command.value(WORKERS_PYTHON) or settings.runtime_env.get("py_executable")
    if command_line.workers_by_uv(command):
        command = command.having(**{WORKERS_PYTHON: Path(python)})
    if python != sys.executable and named is None:  # Ray would start workers by its own Python
        command = command.having(**{WORKERS_PYTHON: Path(python)})
    found = checkpoints.newest(directory)
    own = command.value(RESUME_PATH) or ""
    if not found and command.resume_mode != AUTO and own.startswith("~"):
        # no shell has expanded it, and verl does not
        return command.having(**{RESUME_PATH: working_dir.expanded(own)})
    return command.resuming(found.path if found else None)


def _start_faults(settings: Settings, command: VerlCommand) -> list[str]:
    words, path = command.own_start
    if not words:
        return []
    found = checkpoints.newest(RECIPE.directory(settings, command))
    named = working_dir.expanded(path) if path else None
    return start_faults(settings, words, named, found, DIRECTORY)


def _warnings(settings: Settings, command: VerlCommand) -> Iterator[str]:
    if unchecked := installed.not_checked(settings, command):
        yield unchecked
    yield from installed.likely_mistakes(settings, command)
    if by_uv := command_line.workers_by_uv(command):
        python = interpreter_for(command.interpreter, PACKAGE)
        yield (
            f"{WORKERS_PYTHON}={by_uv}: no effect here; the workers' Python is that of the driver, "
            f"{python}"
        )
    yield from command_line.risks(command)
    added = [key for key in ADDED if command.value(key) is None]
    if settings.wandb_api_key is not None:  # verl's own loggers stay
        added = [key for key in added if key != LOGGER]
    if added and keys.names_own_file(command.overrides):
        yield (
            f"Rollcall adds {', '.join(added)} to the command, and these count more than those of "
            "your file. To choose one, give it in the command"
        )
    mode, path = command.resume_mode, command.value(RESUME_PATH)
    if path and mode != FROM_PATH:
        yield f"{RESUME_PATH}={path} has no effect with {RESUME_MODE}={mode}"
    words, _ = command.own_start
    if words:
        yield (
            f"{words} holds until the run has a checkpoint of its own; then it resumes from that"
        )


def _no_interpreter(settings: Settings, command: VerlCommand) -> str:
    typed = command.interpreter or "python3"
    python = interpreter_for(typed, PACKAGE)
    if not Path(python).is_file():
        return AbsentPython(f"{python} is not there: give the path of a Python", Path(python))
    installs = set(NEEDS_INSTALL) & set(settings.runtime_env)
    if "/" in typed or installs or has_module(python, PACKAGE):
        return ""
    return unanswered("verl", python, shutil.which(typed)) or NotHere(NOT_HERE)


def _no_workers_python(settings: Settings, command: VerlCommand) -> str:
    """Return a fault if the override for the workers' Python names a program that is not there."""
    value = (command.value(WORKERS_PYTHON) or "").strip("'\"")
    program = "" if command_line.workers_by_uv(command) else next(iter(value.split()), "")
    brings = set(NEEDS_INSTALL) & set(settings.runtime_env)
    if not program or "$" in value or brings or shutil.which(program):
        return ""
    return (
        f"{WORKERS_PYTHON}={value}: this image has no program {program}, so that no worker could "
        "start: leave it out, and begin the command with the path of a Python that has verl"
    )


RECIPE = Verl()
