"""Recipe `verl-sft`: verl's supervised trainer, once for each GPU of all nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from contract.launch import ranks
from contract.launch.command_lines import PYTHON as PYTHON_PROGRAM
from contract.launch.command_lines import variables_before
from contract.launch.launcher_flags import PYTHON, LaunchError, parse
from contract.resources import NodeResources
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job import told_numbers, working_dir
from entrypoint.job.found_checkpoints import FoundCheckpoint, start_faults
from entrypoint.job.job_end import JobEnd, Lacking
from entrypoint.job.recipes.base import JobCommand, MemoryAdvice, NotHere, PlacedJob
from entrypoint.job.recipes.command.recipe import needless_variables
from entrypoint.job.recipes.interpreters import has_module, interpreter_for, unanswered
from entrypoint.job.recipes.torchrun.recipe import TorchRun
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.job.recipes.verl import command_line as of_verl
from entrypoint.job.recipes.verl import installed
from entrypoint.job.recipes.verl import recipe as verl
from entrypoint.job.recipes.verl.command_line import (
    DIRECTORY,
    PROGRAM_OF_SFT,
    TOTAL,
    VerlCommand,
)
from entrypoint.job.recipes.verl_sft import checkpoints
from entrypoint.run.failure_classes import FailureClass

NAME, MODULE = "verl-sft", "verl.trainer.sft_trainer"
SAVE_EVERY = 100
"""Steps between two checkpoints, if the user does not say: verl's default is the last step."""
LOSS = verl.NUMBER.format("loss")
STEP_PATTERN = re.compile(
    rf"step:(?P<step>\d+) - (?:(?=(?:.*? - |)train/loss:{LOSS})|(?=val/loss:))"
    r"|Total training steps: (?P<total_steps>\d+)|(?P<ended>Final validation metrics)"
)
"""A line of verl's console logger, often behind a progress bar, and what verl prints at the end."""
CONTENTS = "checkpoint.save_contents"
NO_JOB = (
    f"ROLLCALL_JOB is not set, and ROLLCALL_RECIPE={NAME} has nothing to train: give the command "
    f"after `rollcall up --`, or in ROLLCALL_JOB, such as `torchrun -m {MODULE} …`"
)
NOT_HERE = (
    "{python} has no verl: build the CUDA image with FLAVOUR=cuda-verl, or use an image that has "
    f"it, and give the path of its launcher, as in /opt/verl/bin/torchrun -m {MODULE}"
)
LESS_MEMORY = MemoryAdvice(
    gpu="lower data.micro_batch_size_per_gpu or data.max_token_len_per_gpu, or give"
    " model.enable_gradient_checkpointing=True",
    node="lower data.num_workers",
)


class VerlSft(TorchRun):
    framework = "verl"
    runs_any_program = False
    model_flags = ("model.path",)

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.OWN if PROGRAM_OF_SFT.fullmatch(typed.program[-1]) else Match.NONE

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        found = [*super().faults(settings), *needless_variables(settings)]
        try:
            command = _command(settings)
        except LaunchError:
            return found  # the launcher's own faults
        found += [*of_verl.resume_faults(command), *of_verl.common_faults(command, NAME)]
        found += [_no_verl(settings, command), *_start_faults(settings, command)]
        if not any(found):
            found += installed.lacks(settings, command, _completed(settings, command).overrides)
        return [sentence for sentence in found if sentence]

    def flags(self, settings: Settings) -> Mapping[str, str]:
        command = _command(settings)
        launch = settings.job[: len(settings.job) - len(command.overrides)]
        return {**command.flags, "": " ".join(launch)}

    def warnings(self, settings: Settings) -> Sequence[str]:
        return [*super().warnings(settings), *_warnings(settings, _command(settings))]

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        placed = super().placed(settings, nodes)
        return replace(placed, lacking=(*placed.lacking, *_other_world(settings, nodes)))

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        given = _command(settings)
        words = settings.job[: len(settings.job) - len(given.overrides)]
        job = (*_with_python(words, given), *_completed(settings, given).overrides)
        return super().command(replace(settings, job=job), resume_from)

    def latest(self, settings: Settings) -> int | None:
        found = _newest(settings, _command(settings))
        return found.step if found else None

    def step_pattern(self, settings: Settings) -> re.Pattern[str]:
        return settings.step_pattern or STEP_PATTERN

    def metrics_in(self, text: str, groups: Mapping[str, float]) -> Mapping[str, float]:
        return told_numbers.of_groups(groups) | told_numbers.of_dashed(text)

    def failure_in(self, line: str) -> FailureClass | None:
        return FailureClass.USAGE if verl.USAGE.search(line) else None

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return LESS_MEMORY

    def effect(self, changed: Collection[str]) -> str:
        return verl.EFFECT

    def models(self, settings: Settings) -> Mapping[str, str]:
        path = _command(settings).value("model.path")
        return {"model.path": path.strip("'\"")} if path else {}

    def lacking_at_end(self, settings: Settings) -> Lacking:
        command = _command(settings)

        def lacking(end: JobEnd) -> str:
            found = _newest(settings, command)
            last = end.total_steps or command.number(TOTAL) or 0
            saved = found.step if found else 0
            if end.ended or (last and max(saved, end.step if end.told else 0) >= last):
                return ""
            return "the log has neither its last step nor verl's last line"

        return lacking

    def exported(self, settings: Settings) -> Path | None:
        found = _newest(settings, _command(settings))
        return checkpoints.model_of(found) if found else None

    def without_model(self, settings: Settings) -> str:
        command = _command(settings)
        is_other = command.value("engine") not in (None, "fsdp", "fsdp2")
        if is_other or any(of_verl.HF_MODEL in word for word in command.overrides):
            return ""
        contents = f"[model,optimizer,extra,{of_verl.HF_MODEL}]"
        return f"its checkpoints have no {of_verl.HF_MODEL}: give {CONTENTS}={contents}"


def _command(settings: Settings) -> VerlCommand:
    """Return the program and its overrides. Raises LaunchError."""
    launch = parse(settings.job)
    return VerlCommand(
        interpreter=None if launch.python == PYTHON else launch.python,
        program=("-m", launch.program[-1]),
        overrides=launch.arguments,
        variables=dict(launch.variables),
    )


def _with_python(words: Sequence[str], command: VerlCommand) -> Sequence[str]:
    """Return the words of the launch with the path of the Python on PATH if only that has verl."""
    python = interpreter_for(command.interpreter, installed.PACKAGE)
    if command.interpreter is not None or python == sys.executable:
        return words
    place = len(words) - len(variables_before(words)[1])
    name = words[place]
    path = python if PYTHON_PROGRAM.fullmatch(name) else str(Path(python).with_name(name))
    return (*words[:place], path, *words[place + 1 :])


def _directory(settings: Settings, command: VerlCommand) -> Path:
    return working_dir.below(settings.run_dir, command.value(DIRECTORY) or NAME)


def _newest(settings: Settings, command: VerlCommand) -> FoundCheckpoint | None:
    return checkpoints.newest(_directory(settings, command))


def _completed(settings: Settings, command: VerlCommand) -> VerlCommand:
    """Return the command with checkpoints, resume and log as the supervision needs them."""
    directory = _directory(settings, command)
    command = verl.saving(settings, command, directory, SAVE_EVERY)
    found = checkpoints.newest(directory)
    return command.resuming(found.path if found else None)


def _no_verl(settings: Settings, command: VerlCommand) -> str:
    python = interpreter_for(command.interpreter, installed.PACKAGE)
    if set(NEEDS_INSTALL) & set(settings.runtime_env) or has_module(python, installed.PACKAGE):
        return ""
    return unanswered("verl", python) or NotHere(NOT_HERE.format(python=python))


def _start_faults(settings: Settings, command: VerlCommand) -> list[str]:
    words, path = command.own_start
    if not words:
        return []
    named = working_dir.expanded(path) if path else None
    return start_faults(settings, words, named, _newest(settings, command), DIRECTORY)


def _warnings(settings: Settings, command: VerlCommand) -> Iterator[str]:
    if unchecked := installed.not_checked(settings, command):
        yield unchecked
    unsaved = "the only checkpoint is the last, so each attempt begins anew"
    yield from verl.usual_warnings(settings, command, _directory(settings, command), unsaved)


def _other_world(settings: Settings, nodes: Sequence[NodeResources]) -> Iterator[str]:
    """Yield why the newest checkpoint cannot be loaded on this layout."""
    found = _newest(settings, _command(settings))
    saved = checkpoints.world_size(found.path) if found else None
    world = ranks.world_size(parse(settings.job), nodes)
    if found is not None and saved is not None and saved != world:
        yield (
            f"{found.path.name} was saved by {saved} ranks of FSDP, which verl cannot load on "
            f"{world}: bring the nodes back, or remove the checkpoints to begin again"
        )


RECIPE = VerlSft()
