"""One rank of a stage: data and model → training → the exported model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import AutoConfig, AutoTokenizer
from trl.trainer.utils import global_then_local_main_first

from contract.exit_codes import ExitCode
from contract.journal import journal_writer
from contract.launch.model_digests import ModelDigests, OtherModelError
from contract.options import ConfigError, Fault, ended
from contract.run_dir import RunFiles
from env.data.prompts import PromptError
from trainer.models import hf_export, hub, lora, pretrained, zero3
from trainer.models.loading import prepare_process
from trainer.supervised import arguments, batches, data, loggers
from trainer.supervised.lengths import FITS, Fit, fitted
from trainer.supervised.metrics import MetricRows
from trainer.supervised.options import StageFlags
from trainer.supervised.parse import Command, content_faults
from trainer.supervised.stages import STAGES, DPOFlags
from trainer.supervised.trainers import TRAINERS, Inputs
from trainer.types import TrainingError, UnfitModelError

EXIT_CODES: Mapping[type[Exception], ExitCode] = {
    ConfigError: ExitCode.USAGE,
    PromptError: ExitCode.USAGE,
    UnfitModelError: ExitCode.USAGE,
    OtherModelError: ExitCode.USAGE,
    hub.HubUnreachableError: ExitCode.UNREACHABLE,
    hub.HubError: ExitCode.USAGE,
    TrainingError: ExitCode.JOB_FAILED,
}
"""Errors whose sentence is enough for the user. The first entry that matches an error counts."""


def exit_code(error: Exception) -> ExitCode | None:
    """Return None if the error is a bug of this program."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), None)


def run(command: Command) -> None:
    """Train, and write the model. Raises the errors of EXIT_CODES."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if faults := list(batches.faults(command.flags, world)):
        raise ConfigError(faults)
    flags = _with_local_models(command.flags)
    _compare_models(command.flags)
    _tell_of_code(flags)
    if flags != command.flags and (faults := list(content_faults(flags))):
        raise ConfigError(faults)  # of a model of the hub
    # TRL's buffer of logits, [tokens, 32768], is touched at its vocabulary's columns alone.
    device = prepare_process(
        deterministic=flags.full_determinism,
        huge_pages=False,
        trust_remote_code=flags.trust_remote_code,
    )
    disable_progress_bars()
    _set_up_loggers(flags)
    if flags.zero_stage:
        zero3.set_up_deepspeed()
    make_arguments, build = TRAINERS[command.stage]
    largest = STAGES[command.stage].LARGEST_PASS
    common = arguments.of_trainer(flags, largest, world, cpu=device.type == "cpu")
    with _process_group_ended():
        made = make_arguments(flags, common)  # it begins the process group
        _use_one_gpu(made, command.stage)
        if flags.zero_stage:
            _join_deepspeed()
        tokenizer = _tokenizer(flags)
        rows, held_out = _rows(flags)
        rows = data.fitting(rows, tokenizer)
        held_out = held_out and data.fitting(held_out, tokenizer)
        inputs = Inputs(made, tokenizer, rows, held_out)
        try:
            trainer = build(flags, inputs)
        except Exception as error:
            raise _told(flags, error, inputs) from error
        _keep_use_cache(trainer.model, flags.pretrain)
        fit = FITS[command.stage]
        trainer.train_dataset = _fitted(flags, flags.dataset, trainer.train_dataset, fit)
        if held_out is not None:
            trainer.eval_dataset = _fitted(flags, flags.eval_dataset, trainer.eval_dataset, fit)
        for callback, best_effort in loggers.BEST_EFFORT.items():
            if trainer.pop_callback(callback):
                trainer.add_callback(best_effort())
        if flags.run_dir:
            trainer.add_callback(MetricRows(RunFiles(flags.run_dir).metrics))
        resume = flags.resume_from_checkpoint
        with pretrained.tensors_alone():  # in this process nothing of the user runs but models
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        _export(trainer, tokenizer, flags)


def _use_one_gpu(made: Any, stage: str) -> None:
    """Keep the Trainer from torch's DataParallel, which cuts a pass after its rows are counted."""
    if (count := made.n_gpu) > 1:
        print(
            f"warning: one process uses one of the {count} GPUs: `rollcall {stage} …` and "
            f"`torchrun --nproc-per-node {count} -m trainer.supervised {stage} …` use all",
            file=sys.stderr,
            flush=True,
        )
        made._n_gpu = 1


def _compare_models(flags: StageFlags) -> None:
    """Raise OtherModelError if a model has other weights than the run was begun with."""
    if flags.run_dir and os.environ.get("RANK", "0") == "0":
        flags.run_dir.mkdir(parents=True, exist_ok=True)
        begun = flags.resume_from_checkpoint is not None
        ModelDigests(RunFiles(flags.run_dir)).compare(flags.models, begun=begun)


def _tell_of_code(flags: StageFlags) -> None:
    """Print, and journal in a run, which code of the models runs, before any of it does."""
    if not flags.trust_remote_code or os.environ.get("RANK", "0") != "0":
        return
    if said := pretrained.code_that_runs(flags.models.values()):
        print(said, flush=True)
        if flags.run_dir:
            journal_writer(RunFiles(flags.run_dir).journal)("remote-code", said)


def _with_local_models(flags: StageFlags) -> StageFlags:
    """Return flags whose models are directories of this node. Raises HubError."""
    if isinstance(flags, DPOFlags):
        flags = replace(flags, ref_pretrain=_local(flags.ref_pretrain))
    return replace(flags, pretrain=_local(flags.pretrain))


def _local(model: str) -> str:
    return hub.fetch(model) if model and hub.is_name(model) else model


def _set_up_loggers(flags: StageFlags) -> None:
    keeps = flags.run_dir is not None and loggers.wandb_wanted(flags, os.environ)
    first = os.environ.get("RANK", "0") == "0"
    run_id = loggers.run_id(flags.run_dir) if keeps and first and flags.run_dir else None
    os.environ.update(loggers.variables(flags, run_id, os.environ))


def _join_deepspeed() -> None:
    """Tell DeepSpeed of the process group before a model is split. On GPUs accelerate does it."""
    import deepspeed

    if not torch.cuda.is_available():
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def _tokenizer(flags: StageFlags) -> Any:
    """Return the tokeniser, with the chat template of the flags. Raises UnfitModelError."""
    tokenizer = pretrained.load(AutoTokenizer, flags.pretrain)
    if given := flags.tokenizer_chat_template:
        file = Path(given) if given.endswith(".jinja") else None
        tokenizer.chat_template = file.read_text() if file else given
    return tokenizer


def _rows(flags: StageFlags) -> tuple[Dataset, Dataset | None]:
    """Return the rows to train on, and the held-out ones. Raises PromptError and HubError."""
    into = flags.run_dir / "data" if flags.run_dir else None
    with global_then_local_main_first():  # one rank downloads and reads
        rows = data.load(flags, flags.dataset, into)
        held_out = data.load(flags, flags.eval_dataset, into) if flags.eval_dataset else None
    return rows, held_out


def _told(flags: StageFlags, error: Exception, inputs: Inputs) -> Exception:
    """Return a refusal of a row by its chat template, or of the template by TRL, as a fault.

    Any other error is returned as it is.
    """
    may_be_row = exit_code(error) is None and inputs.tokenizer.chat_template
    for names, rows in ((flags.dataset, inputs.rows), (flags.eval_dataset, inputs.held_out)):
        if may_be_row and rows is not None and (refused := data.refused(rows, inputs.tokenizer)):
            number, why = refused
            return PromptError(
                f"{data.where(flags, names, number)}: the chat template refuses the row: "
                f"{ended(why)} Correct the row, or give --tokenizer_chat_template one that takes it"
            )
    if not (isinstance(error, ValueError) and "template" in str(error)):
        return error
    flag = "--multiturn" if getattr(flags, "multiturn", False) else "--apply_chat_template"
    remedy = "Give --tokenizer_chat_template a template that fits"
    return ConfigError([Fault(flag, "", " ".join(str(error).split()), remedy)])


def _keep_use_cache(model: Any, source: str) -> None:
    """Give the model's config the `use_cache` of its source: the Trainer puts its own there."""
    own = pretrained.load(AutoConfig, source)
    if hasattr(own, "use_cache"):
        model.config.use_cache = own.use_cache
    elif hasattr(model.config, "use_cache"):
        del model.config.use_cache


def _fitted(flags: StageFlags, names: str, rows: Dataset, fit: Fit) -> Dataset:
    """Return the rows that fit into --max_len, and say what became of the others.

    Raises PromptError if none does.
    """
    with global_then_local_main_first():
        fitting, told = fitted(rows, flags.max_len, fit)
    if len(fitting) == 0:
        raise PromptError(
            f"--max_len {flags.max_len}: all rows of {names} are left out: {fit.why_not}"
        )
    if told and os.environ.get("RANK", "0") == "0":
        print(f"--max_len {flags.max_len}: of {names}, {told}", flush=True)
    return fitting


def _export(trainer: Any, tokenizer: Any, flags: StageFlags) -> None:
    """Write model and tokeniser on the first rank, with the adapters merged into the weights."""
    sharded = trainer.is_deepspeed_enabled
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) if sharded else None
    if trainer.is_world_process_zero():
        if flags.lora_rank:
            weights = lora.merged(trainer.model, weights or trainer.model.state_dict())
        hf_export.write(trainer.model, tokenizer, flags.exported, weights=weights)
    trainer.accelerator.wait_for_everyone()


@contextmanager
def _process_group_ended() -> Iterator[None]:
    """End the process group that the block begins: torch may abort a rank that exits with one."""
    is_ours = not _in_process_group()
    try:
        yield
    finally:
        if is_ours and _in_process_group():
            torch.distributed.destroy_process_group()


def _in_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
