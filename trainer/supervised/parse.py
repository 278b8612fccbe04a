"""Parses a stage's command line, and says what is wrong with it before anything starts. Torch-free.

`parse` looks at flags and names of files, `content_faults` into the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from contract.files.os_errors import why_absent
from contract.options import ConfigError, Fault, MissingFile, UnfinishedFile, did_you_mean
from env.data.prompts import PromptError
from env.data.rows import Row, chat_of_text, column_of, is_chat, read_rows
from trainer.config import data_sets, label_check, model_files, unusual
from trainer.config.data_sets import is_hub_name
from trainer.config.parse import read
from trainer.config.reward_models import output_faults
from trainer.config.schema import OVER
from trainer.config.validate import missing_model
from trainer.config.vocabulary import unreadable_tokens
from trainer.supervised import batches
from trainer.supervised.options import StageFlags
from trainer.supervised.stages import (
    DESCRIPTIONS,
    STAGES,
    DPOFlags,
    PreferenceStageFlags,
    RewardFlags,
    SFTFlags,
)

PROG = "rollcall"
UNDER_ZERO = ("adam_offload", "overlap_comm", "grad_accum_dtype", "zpg")
OF_LORA = ("lora_alpha", "lora_dropout", "target_modules")
OF_ROWS = {"dataset", "prompt_key", "output_key", "apply_chat_template", "multiturn"}
"""Flags beside the columns that say how rows are read: with another value they may be right."""
MARGIN = "margin"
"""Column of the lead of the better answer."""


@dataclass(frozen=True, slots=True)
class Command:
    """A stage with its flags."""

    stage: str
    flags: StageFlags
    warnings: tuple[str, ...] = ()
    """One sentence for each flag that was given and has no effect."""
    unsure: frozenset[str] = frozenset()
    """Flags whose value is not what the user meant: those at fault, and those misspelt."""


def parse(
    stage: str, argv: Sequence[str], run_dir: Path | None = None, *, absent: bool = False
) -> Command:
    """Return the command line of a stage. Raises ConfigError with every fault.

    `run_dir`: the run directory if the flags name none; `absent`: named files may be missing.
    Prints the help and exits if `argv` asks for it.
    """
    command, faults = _parsed(stage, argv, run_dir, absent=absent)
    if faults:
        raise ConfigError(faults)
    return command


def check(stage: str, argv: Sequence[str], run_dir: Path | None = None) -> Command:
    """Return the command line as `parse` does, after a look into the files that it names.

    Raises ConfigError with every fault of flags and of files, OSError if the disk fails.
    """
    command, of_flags = _parsed(stage, argv, run_dir)
    found = list(of_flags)
    if not (of_flags and all(isinstance(fault, UnfinishedFile) for fault in of_flags)):
        found += content_faults(command.flags, command.unsure)
    if found:
        raise ConfigError(found)
    return command


def _parsed(
    stage: str, argv: Sequence[str], run_dir: Path | None, *, absent: bool = False
) -> tuple[Command, tuple[Fault, ...]]:
    kind = STAGES[stage]
    reading = read(kind, argv, f"{PROG} {stage}", DESCRIPTIONS[stage])
    flags = _settled(reading.config, reading.given, run_dir)
    faults = reading.all_faults(_faults(flags, reading.given), absent=absent)
    warnings = (*reading.warnings, *_warnings(flags, reading.given))
    return Command(stage, flags, warnings, reading.unsure(kind)), faults


def unchecked(stage: str, argv: Sequence[str], run_dir: Path) -> StageFlags:
    """Return what `argv` and its files give, whatever is wrong with other flags.

    A flag at fault has its default. `run_dir`: the run directory if the flags name none.
    """
    reading = read(STAGES[stage], argv, f"{PROG} {stage}", DESCRIPTIONS[stage])
    return _settled(reading.config, reading.given, run_dir)


def given_texts(stage: str, argv: Sequence[str]) -> Mapping[str, str]:
    """Return what `argv` and its files give, by the flags as they are spelt; without secrets."""
    return read(STAGES[stage], argv, f"{PROG} {stage}", DESCRIPTIONS[stage]).texts


def with_flags(argv: Sequence[str], *words: str) -> tuple[str, ...]:
    """Return a command line with these flags added, which win over its own."""
    return (*argv, *(() if OVER in argv else (OVER,)), *words)


def datasets_of(text: str) -> list[str]:
    """Return the names of data sets that a flag gives: paths, or names on the hub."""
    return [name.strip() for name in text.split(",") if name.strip()]


def columns(flags: StageFlags) -> dict[str, str]:
    """Return the columns that the stage reads: flag → column."""
    if isinstance(flags, SFTFlags):
        answer = {"--output_key": flags.output_key} if flags.answers_apart else {}
        return {"--input_key": flags.input_key, **answer}
    assert isinstance(flags, PreferenceStageFlags)
    prompt = {"--prompt_key": flags.prompt_key} if flags.prompt_key else {}
    margin = (
        {"--margin_loss": MARGIN} if isinstance(flags, RewardFlags) and flags.margin_loss else {}
    )
    pair = {"--chosen_key": flags.chosen_key, "--rejected_key": flags.rejected_key}
    return {**prompt, **pair, **margin}


def misfit(prompt: Any, answers: Sequence[Any]) -> str:
    """Return why a row's prompt and its answers do not fit each other; "" if they do.

    Each is a text or a list of messages. `prompt`: None if the row has none.
    """
    values = [*answers] if prompt is None else [prompt, *answers]
    if len({is_chat(value) for value in values}) > 1:
        return "has texts and messages. Make them alike, or give --apply_chat_template"
    if is_chat(prompt) and any(answer[: len(prompt)] == prompt for answer in answers):
        return (
            "has an answer that repeats the prompt, which would be trained twice. Without "
            "--prompt_key, the answers of rm and dpo are whole conversations"
        )
    return ""


def content_faults(flags: StageFlags, unsure: Collection[str] = ()) -> Iterator[Fault]:
    """Yield what is wrong inside the files of model and data on this disk.

    `unsure`: flags whose value is not what the user meant; what depends on them is left out.
    Raises OSError if the disk fails.
    """
    known = columns(flags)
    of_rows = {one.removeprefix("--") for one in known} | OF_ROWS
    for fault in _content_faults(flags, read_data=of_rows.isdisjoint(unsure)):
        if fault.path.removeprefix("--") not in unsure:
            yield fault


def _content_faults(flags: StageFlags, *, read_data: bool) -> Iterator[Fault]:
    models = {"--pretrain": flags.pretrain}
    if isinstance(flags, DPOFlags) and flags.ref_pretrain:
        models["--ref_pretrain"] = flags.ref_pretrain
    for flag, model in models.items():
        if Path(model).is_dir():
            own = flag == "--pretrain"
            for sentence in (
                *model_files.faults(Path(model), tokenizer=own, trained=own),
                *model_files.code_faults(Path(model), trusted=flags.trust_remote_code),
            ):
                yield Fault(flag, model, sentence.removesuffix("."), "")
            if not own and (said := unreadable_tokens(Path(flags.pretrain), Path(model))):
                yield Fault(flag, model, said, "")
    if isinstance(flags, RewardFlags):
        yield from output_faults("--pretrain", Path(flags.pretrain))
    yield from _attention_faults(flags)
    for flag in ("--dataset", "--eval_dataset") if read_data else ():
        for name in datasets_of(getattr(flags, flag.removeprefix("--"))):
            if not is_hub_name(name) and why_absent(Path(name)) is None:  # `parse` names it
                yield from data_faults(flags, flag, name)


def _settled(flags: StageFlags, given: Set[str], run_dir: Path | None) -> StageFlags:
    """Fold flags that stand for others into those."""
    flags = replace(flags, run_dir=flags.run_dir or run_dir)
    if isinstance(flags, SFTFlags) and (flags.multiturn or flags.pretrain_mode):
        return flags if "output_key" in given else replace(flags, output_key="")
    return flags


def _faults(flags: StageFlags, given: Set[str]) -> Iterator[Fault]:
    yield from _path_faults(flags)
    yield from batches.faults(flags, 1)
    if flags.bf16 and flags.param_dtype == "fp32":
        yield Fault("--bf16", "", "contradicts --param_dtype fp32", "Give one of the two")
    for name in OF_LORA:
        if name in given and not flags.lora_rank:
            yield Fault(f"--{name}", "", "needs LoRA, and --lora_rank is 0", "Give --lora_rank 8")
    if isinstance(flags, RewardFlags) and flags.margin_loss and flags.loss == "logexp":
        yield Fault("--margin_loss", "", "is no part of --loss logexp", "Give --loss sigmoid")
    if flags.dataset_probs and (sets := len(datasets_of(flags.dataset))) > 1:
        problem = f"is not supported, and --dataset names {sets} data sets"
        remedy = "All rows are used once an epoch; mix the data sets into one file"
        yield Fault("--dataset_probs", flags.dataset_probs.text, problem, remedy)
    template = flags.input_template
    if template and "{}" not in template:
        remedy = "Give a text such as 'User: {}'"
        yield Fault("--input_template", template, "has no {} for the prompt", remedy)
    if template and flags.apply_chat_template:
        problem = "is not used with --apply_chat_template"
        yield Fault("--input_template", template, problem, "Give one of the two")


def _path_faults(flags: StageFlags) -> Iterator[Fault]:
    yield from missing_model("--pretrain", flags.pretrain)
    if isinstance(flags, DPOFlags):
        yield from missing_model("--ref_pretrain", flags.ref_pretrain)
    for flag in ("--dataset", "--eval_dataset"):
        for name in datasets_of(getattr(flags, flag.removeprefix("--"))):
            if not is_hub_name(name):
                yield from data_sets.missing(flag, Path(name))
    template = flags.tokenizer_chat_template or ""
    if template.endswith(".jinja") and (why := why_absent(Path(template))):
        remedy = "Give a file that all nodes see, or the template's text"
        yield MissingFile("--tokenizer_chat_template", template, why, remedy)
    elif template and not template.endswith(".jinja") and "{" not in template:
        problem = "is neither a .jinja file nor a template: it has no {{ }}"
        yield Fault("--tokenizer_chat_template", template, problem, "Give one of the two")
    resume = flags.resume_from_checkpoint
    if resume is not None and why_absent(resume / "trainer_state.json"):
        problem = "is not a checkpoint: it has no trainer_state.json"
        remedy = "Give a directory checkpoint-STEP"
        yield MissingFile("--resume_from_checkpoint", str(resume), problem, remedy)
    if flags.save_path is None and flags.run_dir is None:
        yield Fault("--save_path", "", "is required outside a run", "Say where the model goes")
    elif flags.exported == flags.checkpoints or flags.exported in flags.checkpoints.parents:
        problem = f"the model in {flags.exported} would replace the checkpoints there"
        yield Fault("--ckpt_path", str(flags.checkpoints), problem, "Give another directory")


def _warnings(flags: StageFlags, given: Set[str]) -> Iterator[str]:
    if not flags.zero_stage:
        for name in UNDER_ZERO:
            if name in given:
                yield f"--{name} has no effect: it is of ZeRO, and --zero_stage is 0"
    elif flags.zpg > 1 and flags.zero_stage < 3:
        yield f"--zpg has no effect: it is of ZeRO stage 3, and --zero_stage is {flags.zero_stage}"
    yield from unusual.warnings({"learning_rate": flags.learning_rate}, given)
    if flags.save_interval is None and flags.run_dir is not None:
        yield "--save_steps -1: without checkpoints, an attempt after a crash begins at step 1"
    if flags.eval_steps > 0 and not flags.eval_dataset:
        yield "--eval_steps has no effect: there is no --eval_dataset"


def _attention_faults(flags: StageFlags) -> Iterator[Fault]:
    wanted = flags.attention or ""
    if wanted.startswith("flash_attention") and find_spec("flash_attn") is None:
        flag = "--flash_attn" if flags.flash_attn else "--attn_implementation"
        remedy = "The CUDA image has it; without the flag torch's own attention does the same"
        yield Fault(flag, wanted, "flash-attn is not installed here", remedy)


def data_faults(flags: StageFlags, flag: str, name: str) -> Iterator[Fault]:
    """Yield the faults of a data set by its first row."""
    try:
        first = list(islice(read_rows(Path(name), (), whole=True), 1))
    except PromptError as error:
        yield Fault(flag, "", str(error), "Correct the data")
        return
    if not first:
        yield Fault(flag, name, "has no rows", "Give data with at least one row")
        return
    row = first[0]
    wanted = columns(flags)
    lacking = {
        own: column for own, column in wanted.items() if column_of(column, row.fields) is None
    }
    for own, column in lacking.items():
        has = f"It has {', '.join(row.fields)}"
        chat = own == "--output_key" and is_chat(_read(row.fields.get(wanted["--input_key"])))
        hint = "; --output_key none takes the last message as the answer" if chat else ""
        near = did_you_mean(column, row.fields, begin="; ")
        yield Fault(own, column, f"{name} has no such column", has + (hint or near))
    if not lacking:
        yield from _value_faults(flags, row)


def data_warnings(flags: StageFlags) -> Iterator[str]:
    """Yield what the first rows of the data sets on this disk show that may be meant."""
    if not isinstance(flags, SFTFlags) or not flags.answers_apart:
        return
    for flag in ("--dataset", "--eval_dataset"):
        for name in datasets_of(getattr(flags, flag.removeprefix("--"))):
            if not is_hub_name(name) and why_absent(Path(name)) is None:
                named, keys = f"{flag} {name}", (flags.input_key, flags.output_key)
                yield from label_check.hidden_options(named, Path(name), *keys)


def _fit_faults(flags: StageFlags, row: Row, values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault if prompt and answers of a row do not fit each other."""
    if not all(isinstance(value, str) or is_chat(value) for value in values.values()):
        return  # a fault of its own
    key = "--input_key" if isinstance(flags, SFTFlags) else "--prompt_key"
    read: dict[str, Any] = {}
    for own, value in values.items():
        role = "user" if own == key else "assistant"
        as_turn = flags.apply_chat_template and isinstance(value, str)
        read[own] = [{"role": role, "content": value}] if as_turn else value
    prompt = read.pop(key, None)
    if why := misfit(prompt, list(read.values())):
        problem, _, remedy = why.partition(". ")
        yield Fault(key, "", f"{row.where}: {problem}", remedy)


def _read(value: Any) -> Any:
    """Return a value as the training reads it: messages in place of their JSON text."""
    return (chat_of_text(value) or value) if isinstance(value, str) else value


def _value_faults(flags: StageFlags, row: Row) -> Iterator[Fault]:
    """Yield the faults of a row's values."""
    values: dict[str, Any] = {}
    for own, column in columns(flags).items():
        try:
            values[own] = _read(row.value(column))
        except PromptError as error:
            yield Fault(own, "", str(error), "Correct the flag or the row")
            return
    margin = values.pop("--margin_loss", 0)
    if isinstance(margin, bool) or not isinstance(margin, int | float):
        remedy = f"Make the column {MARGIN} a number"
        yield Fault("--margin_loss", "", f"{row.where}: the margin is not a number", remedy)
    for own, value in values.items():
        if not (isinstance(value, str) or is_chat(value)):
            problem = f"{row.where}: is neither a text nor a list of messages"
            yield Fault(own, "", problem, "Messages have role and content")
    yield from _fit_faults(flags, row, values)
    whole = values.get("--input_key")
    if isinstance(flags, SFTFlags) and not flags.answers_apart and not is_chat(whole):
        if flags.multiturn:
            yield Fault("--multiturn", "", f"{row.where}: is a text", "Give messages")
        elif not flags.pretrain_mode:
            problem = f"{row.where}: has no answer: it is a text"
            yield Fault("--output_key", "", problem, "Name its column, or give --pretrain_mode")
    needs = flags.apply_chat_template or any(map(is_chat, values.values()))
    local = Path(flags.pretrain)
    if needs and not flags.tokenizer_chat_template and local.is_dir():
        if model_files.has_chat_template(local):
            return
        problem = f"the tokeniser of {flags.pretrain} has no chat template"
        remedy = "Take a model that has one, or give --tokenizer_chat_template"
        yield Fault("--apply_chat_template", "", problem, remedy)
