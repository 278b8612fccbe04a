"""Supervised training through TRL: `python -m trainer.supervised sft --pretrain … --dataset …`."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.exit_codes import ExitCode
from trainer.config.parse import read
from trainer.config.schema import ConfigError, Fault, flag

if TYPE_CHECKING:
    from datasets import Dataset

PROG = "python -m trainer.supervised sft"
DESCRIPTION = "Teach a model to continue prompts as the data do."

SCHEDULERS = ("cosine", "linear", "constant", "constant_with_warmup")


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTFlags:
    """The flags of supervised fine-tuning, spelled as in OpenRLHF."""

    pretrain: str = flag("", group="model", required=True, help="a Hugging Face directory")
    save_path: Path | None = flag(None, group="model", required=True, help="the trained model")
    dataset: Path | None = flag(None, group="data", required=True, help="a JSONL or Parquet file")
    input_key: str = flag("prompt", group="data", help="column of the prompt")
    output_key: str = flag("completion", group="data", help="column of what to answer")
    apply_chat_template: bool = flag(
        False, group="data", help="make texts turns of user and assistant by the chat template"
    )
    max_len: int = flag(1024, group="data", unit="tokens", at_least=2, help="longest example")
    max_samples: int | None = flag(None, group="data", at_least=1, help="use only the first")
    train_batch_size: int = flag(
        64, group="training", unit="samples", at_least=1, help="samples of one optimizer step"
    )
    micro_train_batch_size: int = flag(
        64, group="training", unit="samples", at_least=1, help="samples of one pass"
    )
    max_epochs: int = flag(1, group="training", at_least=1, help="passes over the data")
    max_steps: int | None = flag(None, group="training", at_least=1, help="stop after so many")
    learning_rate: float = flag(5e-6, group="training", above=0, help="peak")
    lr_warmup_ratio: float = flag(
        0.03, group="training", at_least=0, at_most=1, help="share of the run with a rising rate"
    )
    lr_scheduler: str = flag(
        "cosine", group="training", choices=SCHEDULERS, help="learning rate over the run"
    )
    l2: float = flag(
        0.0, group="training", at_least=0, help="weight decay, not on norms and biases"
    )
    max_norm: float = flag(1.0, group="training", above=0, help="clip the gradient to this norm")
    gradient_checkpointing: bool = flag(
        False, group="training", help="recompute activations in the backward pass"
    )
    logging_steps: int = flag(50, group="training", at_least=1, help="steps between lines of log")
    seed: int = flag(42, group="training", at_least=0, help="order of the data")


def parse(argv: Sequence[str]) -> SFTFlags:
    """Raises ConfigError with every fault."""
    reading = read(SFTFlags, argv, PROG, DESCRIPTION)
    flags, faults = reading.config, list(reading.faults)
    if flags.dataset is not None and not flags.dataset.is_file():
        faults.append(Fault("--dataset", str(flags.dataset), "no such file", "Give a JSONL file"))
    if flags.train_batch_size % flags.micro_train_batch_size:
        faults.append(
            Fault(
                "--micro_train_batch_size",
                str(flags.micro_train_batch_size),
                f"does not divide train_batch_size {flags.train_batch_size}",
                f"{flags.train_batch_size} would",
            )
        )
    if faults:
        raise ConfigError(faults)
    return flags


def _rows(flags: SFTFlags) -> Dataset:
    """Return the columns `prompt` and `completion`, whatever they are called in the file."""
    from datasets import Dataset

    path = str(flags.dataset)
    reader = Dataset.from_parquet if path.endswith(".parquet") else Dataset.from_json
    rows = reader(path, keep_in_memory=True)
    keys = {"--input_key": flags.input_key, "--output_key": flags.output_key}
    has = f"It has {', '.join(rows.column_names)}"
    faults = [
        Fault(name, key, f"{path} has no such column", has)
        for name, key in keys.items()
        if key not in rows.column_names
    ]
    if faults:
        raise ConfigError(faults)
    if flags.max_samples:
        rows = rows.select(range(min(flags.max_samples, len(rows))))
    prompts, answers = rows[flags.input_key][:], rows[flags.output_key][:]
    if flags.apply_chat_template:
        prompts = [_turns("user", prompt) for prompt in prompts]
        answers = [_turns("assistant", answer) for answer in answers]
    return Dataset.from_dict({"prompt": prompts, "completion": answers})


def _turns(role: str, said: Any) -> Any:
    """Return a text as a list of one message; a list of messages stays."""
    return [{"role": role, "content": said}] if isinstance(said, str) else said


def sft(flags: SFTFlags) -> None:
    """Train with TRL's SFTTrainer, on completions only, and save model and tokeniser."""
    import torch
    from datasets import disable_progress_bars
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from trainer.models import hf_export
    from trainer.models.loading import load_causal_lm, prepare_process

    tokenizer = AutoTokenizer.from_pretrained(flags.pretrain)
    if flags.apply_chat_template and not tokenizer.chat_template:
        message = f"the tokeniser of {flags.pretrain} has no chat template"
        hint = "Leave it out, or take a model that has one"
        raise ConfigError([Fault("--apply_chat_template", "true", message, hint)])
    device = prepare_process()
    disable_progress_bars()
    rows = _rows(flags)
    assert flags.save_path is not None
    arguments = SFTConfig(
        output_dir=str(flags.save_path),
        per_device_train_batch_size=flags.micro_train_batch_size,
        gradient_accumulation_steps=flags.train_batch_size // flags.micro_train_batch_size,
        num_train_epochs=flags.max_epochs,
        max_steps=flags.max_steps or -1,
        learning_rate=flags.learning_rate,
        warmup_steps=flags.lr_warmup_ratio,
        lr_scheduler_type=flags.lr_scheduler,
        weight_decay=flags.l2,
        max_grad_norm=flags.max_norm,
        max_length=flags.max_len,
        completion_only_loss=True,
        seed=flags.seed,
        use_cpu=device.type == "cpu",
        bf16=device.type != "cpu",
        gradient_checkpointing=flags.gradient_checkpointing,
        save_strategy="no",
        report_to="none",
        logging_steps=flags.logging_steps,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=load_causal_lm(flags.pretrain, torch.float32),
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train()
    hf_export.write(trainer.model, tokenizer, flags.save_path)


COMMANDS = {"sft": sft}


def main(argv: Sequence[str] | None = None) -> int:
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if command not in COMMANDS:
        words = ", ".join(COMMANDS)
        print(f"{command or 'nothing'}: no such command. Known: {words}", file=sys.stderr)
        return ExitCode.USAGE
    try:
        COMMANDS[command](parse(rest))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return ExitCode.USAGE
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
