"""Recipe `supervised`: the stages sft, rm and dpo of this product, on all nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.files.os_errors import explain
from contract.launch import ranks
from contract.launch.launcher_flags import parse as launch_of
from contract.launch.log_lines import STEP
from contract.launch.programs import Program
from contract.resources import NodeResources
from entrypoint.config.parsers import HELP, STAGES, one_of
from entrypoint.config.settings import Settings
from entrypoint.job.found_checkpoints import FoundCheckpoint, start_faults
from entrypoint.job.job_end import Lacking, of_script
from entrypoint.job.recipes.base import JobCommand, MemoryAdvice, PlacedJob
from entrypoint.job.recipes.builtin.faults import ConfigError, UnfinishedFile, error_of, sentences
from entrypoint.job.recipes.torchrun.recipe import TorchRun
from entrypoint.job.recipes.trl import checkpoints as hf_checkpoints
from entrypoint.job.recipes.trl.recipe import NOT_HERE
from entrypoint.job.recipes.typed_command import Match, TypedCommand

if TYPE_CHECKING:
    from entrypoint.job.recipes.builtin.stages import Command

NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=supervised has nothing to train: give a stage "
    "after `rollcall up --`, or in ROLLCALL_JOB, such as `sft --pretrain … --dataset …`"
)

LESS_MEMORY = MemoryAdvice(
    gpu="lower --micro_train_batch_size or --max_len, or raise --zero_stage",
    node="lower --micro_train_batch_size, or leave --adam_offload out",
)


class Supervised(TorchRun):
    runs_any_program = False
    writes_metrics = True
    model_flags = ("--pretrain", "--actor.model_name_or_path", "--model_name_or_path")
    output_flags = ("--save_path", "--ckpt.output_dir")
    less_placement = "Change the flag, or the nodes"
    tells_steps = True

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.SURE if typed.words[0] in STAGES else Match.NONE

    def faults(self, settings: Settings) -> Sequence[str]:
        from entrypoint.job.recipes.builtin.stages import check, unchecked

        if not settings.job:
            return (NO_JOB,)
        if (stage := settings.job[0]) not in STAGES:
            return (f"{stage} is not a stage: give {one_of(STAGES)}",)
        if asked := next((word for word in settings.job if word in HELP), ""):
            return (f"{asked} trains nothing: `rollcall {stage} --help` lists the flags",)
        if find_spec("trl") is None:
            return (NOT_HERE,)
        try:
            command = check(stage, settings.job[1:], settings.run_dir)
            found = _start_faults(settings, command)
        except ConfigError as error:
            if all(isinstance(fault, UnfinishedFile) for fault in error.faults):
                return ()  # the head waits for the file, as for one that is gone
            found = sentences(error.faults)
        except OSError as error:
            return [explain(error)]
        run_dir = unchecked(stage, settings.job[1:], settings.run_dir).run_dir
        if run_dir != settings.run_dir:
            found.append(
                f"--run_dir {run_dir} is not ROLLCALL_RUN_DIR={settings.run_dir}, which "
                "counts. Set ROLLCALL_RUN_DIR, and leave --run_dir out"
            )
        return found

    def look_for_files(self, settings: Settings) -> None:
        _command(settings)

    def warnings(self, settings: Settings) -> Sequence[str]:
        shared = (
            "all ranks read checkpoints, which lie in the run directory: all nodes must share it"
        )
        from entrypoint.job.recipes.builtin.stages import data_warnings

        command = _command(settings)
        found = (*command.warnings, *data_warnings(command.flags))
        return found if settings.shares_run_dir else (*found, shared)

    def hub_notes(self, settings: Settings) -> Sequence[str]:
        from entrypoint.job.recipes.builtin.stages import models_of_hub

        return [*models_of_hub(self.models(settings))]

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        from entrypoint.job.recipes.builtin.stages import batches

        command, launch = _command(settings, absent=True), launch_of(_words(settings))
        world = ranks.world_size(launch, nodes)
        lacking = [str(fault) for fault in batches.faults(command.flags, world)]
        found = _newest(command)
        if found and (sentence := hf_checkpoints.other_world(found.path, world)):
            lacking.append(sentence)
        layout = None if lacking else _layout(command, nodes, world)
        return PlacedJob(settings=settings, lacking=tuple(lacking), layout=layout)

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        from entrypoint.job.recipes.builtin.stages import with_flags

        added = ["--run_dir", str(settings.run_dir)]
        found = _newest(_command(settings)) if resume_from is not None else None
        if found is not None:
            added += ["--resume_from_checkpoint", str(found.path)]
        job = with_flags(_words(settings), *added)
        return super().command(replace(settings, job=job), resume_from)

    def latest(self, settings: Settings) -> int | None:
        from entrypoint.job.recipes.builtin.stages import unchecked

        stage, *flags = settings.job
        # The job's files may be away for a while, and its checkpoints are there all the same.
        found = hf_checkpoints.newest(unchecked(stage, flags, settings.run_dir).checkpoints)
        return found.step if found else None

    def step_pattern(self, settings: Settings) -> re.Pattern[str]:
        return STEP

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return LESS_MEMORY

    def flags(self, settings: Settings) -> Mapping[str, str]:
        from entrypoint.job.recipes.builtin.stages import given_texts

        stage, *flags = settings.job
        return given_texts(stage, flags)

    def model_place(self, settings: Settings) -> Path:
        from entrypoint.job.recipes.builtin.stages import unchecked

        stage, *flags = settings.job
        return unchecked(stage, flags, settings.run_dir).exported

    def models(self, settings: Settings) -> Mapping[str, str]:
        return _command(settings).flags.models

    def lacking_at_end(self, settings: Settings) -> Lacking:
        return of_script

    def effect(self, changed: Collection[str]) -> str:
        return "It holds from the next step on; the Trainer restores optimizer and schedule"


def _words(settings: Settings) -> tuple[str, ...]:
    """Return what each rank runs."""
    return ("-m", str(Program.SUPERVISED), *settings.job)


def _parsed(settings: Settings, *, absent: bool = False) -> Command:
    """Return the job's stage and flags. Raises ConfigError.

    `absent`: files that it names may be missing.
    """
    from entrypoint.job.recipes.builtin.stages import parse

    stage, *flags = settings.job
    return parse(stage, flags, settings.run_dir, absent=absent)


def _command(settings: Settings, *, absent: bool = False) -> Command:
    """Return the job's stage and flags. Raises FilesGoneError and ArgumentsError."""
    try:
        return _parsed(settings, absent=absent)
    except ConfigError as error:
        raise error_of(error) from None


def _newest(command: Command) -> FoundCheckpoint | None:
    return hf_checkpoints.newest(command.flags.checkpoints)


def _start_faults(settings: Settings, command: Command) -> list[str]:
    if (named := command.flags.resume_from_checkpoint) is None:
        return []
    words = f"--resume_from_checkpoint {named}"
    return start_faults(settings, words, named, _newest(command), "--ckpt_path")


def _layout(command: Command, nodes: Sequence[NodeResources], world: int) -> Mapping[str, Any]:
    """Return the ranks of the nodes, and their passes, for `plan`."""
    from entrypoint.job.recipes.builtin.stages import batches

    chosen = ranks.members(nodes)
    passes = batches.passes(command.flags, command.flags.LARGEST_PASS, world)
    per_node = sorted({max(1, node.gpus) for node in chosen}, reverse=True)
    group = {
        "role": command.stage,
        "nodes": len(chosen),
        "per_node": " or ".join(map(str, per_node)),
        "on": [node.name for node in chosen],
        "shares_with": [],
    }
    times = f"{passes.count} passes" if passes.count > 1 else "one pass"
    note = (
        f"{world} {'rank' if world == 1 else 'ranks'}; a step is "
        f"{command.flags.train_batch_size} samples: "
        f"{times} of {passes.samples} on each rank"
    )
    return {"groups": [group], "memory": [], "chosen": None, "note": note, "idle": None}


RECIPE = Supervised()
