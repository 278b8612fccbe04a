"""Recipe `builtin`: the trainer of the image."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.files.os_errors import explain
from contract.journal import EXPORT
from contract.launch.programs import Program
from contract.manifest import lineage_of, newest_checkpoint
from contract.options import ConfigError, MissingFile, UnfinishedFile
from contract.redaction import redact
from contract.resources import NodeResources
from contract.run_dir import RunFiles
from entrypoint.config.parsers import HELP
from entrypoint.config.settings import Settings
from entrypoint.job.found_checkpoints import has_begun
from entrypoint.job.job_end import JobEnd, Lacking
from entrypoint.job.recipes.base import (
    AbsentFile,
    ArgumentsError,
    JobCommand,
    MemoryAdvice,
    PlacedJob,
    Recipe,
    TriedCode,
)
from entrypoint.job.recipes.builtin.faults import error_of, sentences
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.processes import warm_process
from entrypoint.processes.programs import program
from entrypoint.run import kept_layouts, restore
from trainer.config.schema import OVER

if TYPE_CHECKING:
    from trainer.cluster.auto_layout.api import LayoutChoice
    from trainer.config.config import Config
    from trainer.config.parse import Parsed


KEPT: Mapping[tuple[str, ...], str] = {
    ("seed",): "a run that has finished steps refuses another --seed",
    (
        *("prompt_data", "prompt_data_probs", "prompt_split"),
        *("input_key", "label_key", "input_template"),
        *("max_samples", "apply_chat_template", "prompt_max_len"),
    ): "a run that has finished steps refuses other prompts",
    (
        "pretrain",
        "critic_pretrain",
        "reward_pretrain",
    ): "a run that has finished steps refuses other weights of a model that it names",
}
"""Maps flags to what stays as the run began, whatever their new values."""


WAY_OUT = (
    ". If the nodes have what is missing here, leave this check out with --no-code "
    "(ROLLCALL_CHECK_CODE=0)"
)
"""Behind a fault that may be of this machine alone."""
LESS_MEMORY = MemoryAdvice(
    gpu="lower --train_max_tokens_per_gpu (without --use_dynamic_batch --micro_train_batch_size and"
    " --micro_rollout_batch_size) or --vllm_gpu_memory_utilization, or raise --zero_stage",
    node="lower --micro_rollout_batch_size",
)


class Builtin(Recipe):
    tells_phases = True
    writes_metrics = True
    model_flags = ("--pretrain", "--actor.model_name_or_path")
    output_flags = ("--save_path", "--ckpt.output_dir")
    less_placement = "Ask for fewer GPUs, share them (--colocate_all_models), or add nodes"

    def __init__(self, columns: Collection[str] = ()) -> None:
        """`columns`: those of data sets that may be away."""
        self._columns = columns

    def may_assume(self, fault: str) -> bool:
        from trainer.config.job_checks import DATA_FLAGS

        return isinstance(fault, AbsentFile) and fault.flag in DATA_FLAGS and not self._columns

    def assuming(self, columns: Collection[str]) -> Builtin:
        return Builtin(columns)

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.SURE if typed.words[0].startswith("-") else Match.NONE

    def faults(self, settings: Settings) -> Sequence[str]:
        from trainer.config.at_hand import assumed_faults
        from trainer.config.whole_job import content_faults

        asked = next((word for word in settings.job if word in HELP), "")
        if asked and settings.waits_for_jobs:
            return (f"{asked} trains nothing: `python -m trainer --help` lists the flags",)
        parsed = self._planned(settings)
        config, of_flags = parsed.config, parsed.faults
        if of_flags and all(isinstance(fault, UnfinishedFile) for fault in of_flags):
            return ()  # the head waits for the file, as for one that is gone
        try:
            named = [
                *_run_dir_faults(settings),
                *(() if of_flags else _store_faults(settings, config)),
                *map(str, content_faults(config, parsed.unsure)),
                *(() if parsed.unsure else assumed_faults(config, self._columns)),
                *(() if of_flags else _beginning_faults(settings, config)),
            ]
        except OSError as error:
            named = [explain(error)]
        return list(dict.fromkeys([*sentences(of_flags), *named]))

    def warnings(self, settings: Settings) -> Sequence[str]:
        from trainer.config.at_hand import assumed_warnings
        from trainer.config.job_checks import data_warnings, few_rows, model_warnings
        from trainer.config.parse import parse

        config = parse(_arguments(settings), incomplete=True, absent=True)
        unseen = assumed_warnings(config, self._columns)
        of_data = [*unseen, *few_rows(config), *data_warnings(config)]
        return [*config.warnings, *of_data, *model_warnings(config)]

    def notes(self, settings: Settings) -> Sequence[str]:
        from trainer.config.data_columns import unseen

        config = self._planned(settings).config
        return [*config.notes, *unseen(config)]

    def hub_notes(self, settings: Settings) -> Sequence[str]:
        from trainer.config import at_hand

        return [*at_hand.of_hub(self._planned(settings).config)]

    def steps(self, settings: Settings) -> tuple[int | None, str]:
        from trainer.config import planned_steps

        return planned_steps.of(self._planned(settings).config)

    def _planned(self, settings: Settings) -> Parsed:
        """Return the job's configuration and faults. Data may be away if columns are assumed."""
        from trainer.config.data_columns import chosen
        from trainer.config.job_checks import DATA_FLAGS
        from trainer.config.parse import parse_all

        parsed = parse_all(_arguments(settings), incomplete=True)
        if not self._columns:
            return parsed
        parsed = replace(parsed, config=chosen(parsed.config, self._columns))
        away = [one for one in parsed.faults if isinstance(one, MissingFile)]
        away = [one for one in away if one.path in DATA_FLAGS]
        return replace(parsed, faults=tuple(one for one in parsed.faults if one not in away))

    def try_code(self, settings: Settings) -> TriedCode:
        from trainer.config import code_check

        words = _arguments(settings)
        parsed = self._planned(settings)
        if parsed.faults:
            return TriedCode()  # the head waits for a file
        found = code_check.in_process(parsed.config, words, tell=_tell)
        hide = settings.secrets
        return TriedCode(
            lines=tuple(redact(one, hide) for one in found.lines),
            faults=tuple(
                redact(f"{one}{WAY_OUT if one.of_here else ''}", hide) for one in found.refusals
            ),
            warnings=tuple(redact(one, hide) for one in found.warnings),
            unended_import=found.unended_import,
        )

    def look_for_files(self, settings: Settings) -> None:
        _parsed(settings)

    def fitted(self, settings: Settings, nodes: Sequence[NodeResources]) -> Settings:
        from trainer.cluster.resource_plan import smaller

        flags = smaller(_parsed(settings), nodes)
        words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
        return _with(settings, *words) if flags else settings

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        from trainer.cluster.auto_layout.api import warnings
        from trainer.cluster.resource_plan import row
        from trainer.config.parse import named_in

        config = _parsed(settings, absent=True)
        key, choice = _choice(settings, config, nodes)
        completed = _with(settings, *choice.words) if choice.words else settings
        try:
            whole = _parsed(completed, incomplete=not choice.words, absent=True)
        except ArgumentsError as error:
            return PlacedJob(settings=settings, lacking=(str(error),))
        found = row(whole, nodes)
        lacking = choice.faults or found["shortfalls"]
        if not lacking and not self._columns:
            self.look_for_files(settings)  # the layout is chosen for the sizes of the models
        chosen = {"flags": [*choice.words], "reasons": [*choice.reasons]} if choice.words else None
        return PlacedJob(
            settings=completed,
            lacking=tuple(lacking),
            says_remedy=bool(choice.faults),
            # What does not fit has no layout: that of the flags alone is none that would start.
            layout=None if choice.faults else found | {"chosen": chosen, "shortfalls": [*lacking]},
            key=key,
            warnings=(
                *warnings(choice.words, named_in(settings.job)),
                *(() if choice.faults else _short_of_memory(found)),
                *_outside(settings, config),
            ),
        )

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        python, *words = program(Program.TRAINER, *_arguments(settings))
        return JobCommand((str(warm_process.python(settings) or python), *words))

    def begins_at(self, settings: Settings) -> int | None:
        return _parsed(settings).load_step or None

    def going_on(self, settings: Settings) -> Settings:
        config = _parsed(settings)
        if config.load_checkpoint and not config.load_step:
            return settings
        return _with(settings, "--load_checkpoint", "true", "--load_step", "0")

    def latest(self, settings: Settings) -> int | None:
        from trainer.config.parse import unchecked

        # The job's files may be away for a while, and its checkpoints are there all the same.
        checkpoints = unchecked(_arguments(settings)).checkpoints
        ours = lineage_of(RunFiles(settings.run_dir))
        return newest_checkpoint(checkpoints, checksums=False, lineage=ours)

    def step_pattern(self, settings: Settings) -> None:
        return None

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return LESS_MEMORY

    def effect(self, changed: Collection[str]) -> str:
        from trainer.config.parse import named_in

        given = named_in([f"--{name}" for name in changed if name])
        kept = [sentence for names, sentence in KEPT.items() if given & set(names)]
        return "; ".join(["The new one holds for all steps that are still to be made", *kept])

    def models(self, settings: Settings) -> Mapping[str, str]:
        return _parsed(settings).models

    def flags(self, settings: Settings) -> Mapping[str, str]:
        from trainer.config.parse import given_texts

        return given_texts(_arguments(settings))

    def model_place(self, settings: Settings) -> Path:
        from trainer.config.parse import unchecked

        return unchecked(_arguments(settings)).exported

    def lacking_at_end(self, settings: Settings) -> Lacking:
        return _not_exported

    def service_outage(self, settings: Settings) -> float:
        return _parsed(settings).longest_service_wait


def _tell(sentence: str) -> None:
    print(f"{sentence}; --no-code leaves this check out", file=sys.stderr, flush=True)


def _short_of_memory(layout: Mapping[str, Any]) -> Sequence[str]:
    return [layout["host"]["lacking"]] if layout["host"] and layout["host"]["lacking"] else []


def _not_exported(end: JobEnd) -> str:
    return "" if EXPORT in end.events else "it has not written its model"


def _beginning_faults(settings: Settings, config: Config) -> Sequence[str]:
    """Return the faults of the run's start; () if the run directory cannot be read.

    Then the preflight check of the run directory says why and exits with 73. If the checkpoint may
    come from the store, that is asked first.
    """
    from trainer.config.job_checks import beginning_faults

    if settings.store and restore.may_fetch(RunFiles(settings.run_dir)):
        return ()
    try:
        if has_begun(settings):
            return ()
        return [AbsentFile(fault, config.checkpoints) for fault in beginning_faults(config)]
    except OSError:
        return ()


def _with(settings: Settings, *words: str) -> Settings:
    """Return settings whose job has these flags added; they override its own."""
    over = () if OVER in settings.job else (OVER,)
    return replace(settings, job=(*settings.job, *over, *words))


RESUMES = frozenset({"load_checkpoint", "load_step"})
"""Flags that later attempts have, and that no layout depends on."""


def _choice(
    settings: Settings, config: Config, nodes: Sequence[NodeResources]
) -> tuple[str, LayoutChoice]:
    """Return what completes the layout of the job's flags on these nodes, and its key.

    It is what an earlier attempt had with the same flags and nodes.
    """
    from trainer.cluster.auto_layout.api import LayoutChoice, complete
    from trainer.config.parse import named_in

    given = named_in(settings.job)
    values = config.public().items()
    flags = {name: text for name, text in values if name in given and name not in RESUMES}
    key = kept_layouts.key_of(flags, nodes)
    kept = kept_layouts.read(RunFiles(settings.run_dir).layouts).get(key)
    if kept is not None:
        return key, LayoutChoice(words=kept.words, reasons=kept.reasons)
    return key, complete(config, given, nodes)


def _parsed(settings: Settings, *, incomplete: bool = True, absent: bool = False) -> Config:
    """Return the job's configuration. Raises FilesGoneError and ArgumentsError.

    `incomplete`: its layout is still to be chosen; `absent`: files that it names may be missing.
    """
    from trainer.config.parse import parse

    try:
        return parse(_arguments(settings), incomplete=incomplete, absent=absent)
    except ConfigError as error:
        raise error_of(error) from None


def _run_dir_faults(settings: Settings) -> Iterator[str]:
    """Yield a fault if --run_dir differs from ROLLCALL_RUN_DIR, which would override it."""
    from trainer.config.parse import named_in, unchecked

    if "run_dir" in named_in(settings.job):
        given = unchecked(settings.job).run_dir
        if given and given.absolute() != settings.run_dir.absolute():
            yield (
                f"--run_dir {given} is not ROLLCALL_RUN_DIR={settings.run_dir}, which counts. Set "
                "ROLLCALL_RUN_DIR, and leave --run_dir out"
            )


def _outside(settings: Settings, config: Config) -> Iterator[str]:
    """Yield a warning for each directory that the run directory's storage does not hold."""
    for flag, directory in (("--ckpt_path", config.checkpoints), ("--save_path", config.exported)):
        if not directory.is_relative_to(settings.run_dir):
            yield (
                f"{flag} {directory} is outside of the run directory: it must be on storage that "
                "outlives the container; leave the flag out to use the run directory"
            )


def _store_faults(settings: Settings, config: Config) -> Iterator[str]:
    """Yield a fault for each directory outside of those that the head uploads to the store."""
    files = RunFiles(settings.run_dir)
    for flag, given, uploaded in (
        ("--ckpt_path", config.checkpoints, files.checkpoints),
        ("--save_path", config.exported, files.exported),
    ):
        if settings.store and given != uploaded:
            yield (
                f"{flag}: {given} is not uploaded to ROLLCALL_STORAGE={settings.store}, which gets "
                f"{uploaded}. Leave the flag out"
            )


def _arguments(settings: Settings) -> list[str]:
    """Return the user's flags and those that follow from the settings."""
    from trainer.config.parse import named_in

    arguments = [*_with(settings, "--run_dir", str(settings.run_dir)).job]
    given = named_in(settings.job)
    if not settings.shares_run_dir:
        arguments += ["--storage", "head"]
    if settings.reward_url and not given & {"remote_rm_url", "rewards"}:
        arguments += ["--remote_rm_url", settings.reward_url]
    if "remote_rm_deadline" not in given:
        arguments += ["--remote_rm_deadline", f"{settings.service_timeout:g}"]
    return arguments


RECIPE = Builtin()
