"""What is refused before anything starts, all at once, without torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.options import ConfigError
from tests.support.tiny_run import Tiny, to_argv
from trainer.config.schema import flags_of
from trainer.supervised.parse import Command, check, content_faults, data_warnings, parse
from trainer.supervised.stages import STAGES, DPOFlags

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SLURM = """
--save_path ./checkpoint/llama3-8b-dpo --save_steps -1 --logging_steps 1 --eval_steps -1
--train_batch_size 256 --micro_train_batch_size 1 --pretrain OpenRLHF/Llama-3-8b-sft-mixture
--bf16 --max_epochs 1 --max_len 8192 --zero_stage 3 --learning_rate 9e-6 --beta 0.1
--dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku --apply_chat_template
--chosen_key chosen --rejected_key rejected --packing_samples --flash_attn
--gradient_checkpointing --use_wandb secret
"""
"""The flags of DPO in OpenRLHF's guide for Slurm."""


def command(stage: str, **flags: Any) -> Command:
    given = {"pretrain": "org/model", "dataset": "org/data", "save_path": "/out", **flags}
    return parse(stage, to_argv(given))


def faults(stage: str, **flags: Any) -> list[str]:
    try:
        return [str(fault) for fault in content_faults(command(stage, **flags).flags)]
    except ConfigError as error:
        return [str(fault) for fault in error.faults]


def test_the_flags_of_the_slurm_guide_are_understood() -> None:
    found = parse("dpo", SLURM.split())
    flags = found.flags
    assert isinstance(flags, DPOFlags)
    assert (flags.zero_stage, flags.beta, flags.max_len) == (3, 0.1, 8192)
    assert flags.attention == "flash_attention_2"
    assert flags.mixed_precision is True
    assert "secret" not in repr(flags)
    assert [warning.partition(" ")[0] for warning in found.warnings] == ["--packing_samples"]


@pytest.mark.parametrize("stage", STAGES)
def test_every_flag_of_openrlhf_is_known_in_its_dotted_spelling(stage: str) -> None:
    source = Path(__file__).parents[3] / ".oracles/openrlhf/cli" / f"train_{stage}.py"
    theirs = {
        str(node.args[0].value).removeprefix("--")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        and isinstance(node.args[0], ast.Constant)
    }
    ours = set(flags_of(STAGES[stage]))
    for flag in flags_of(STAGES[stage]).values():
        ours |= {*flag.about.aliases, *flag.about.dotted_spellings}
    assert theirs - ours == set()


@pytest.mark.parametrize(
    ("stage", "flags", "said"),
    [
        ("sft", {"lora_alpha": 8}, "--lora_alpha: needs LoRA, and --lora_rank is 0"),
        ("sft", {"bf16": True, "param_dtype": "fp32"}, "--bf16: contradicts --param_dtype fp32"),
        ("sft", {"pretrain": "/nowhere"}, "--pretrain: no model there"),
        ("dpo", {"ref_pretrain": "/nowhere"}, "--ref_pretrain: no model there"),
        ("rm", {"eval_dataset": "/nowhere.jsonl"}, "--eval_dataset: no such file"),
        ("rm", {"dataset": "org/data.jsonl"}, "--dataset: no such file"),
        ("sft", {"input_template": "User:"}, "--input_template: has no {} for the prompt"),
        (
            "dpo",
            {"tokenizer_chat_template": "/no.jinja"},
            "--tokenizer_chat_template: no such file",
        ),
        ("rm", {"tokenizer_chat_template": "/no.txt"}, "is neither a .jinja file nor a template"),
        ("sft", {"resume_from_checkpoint": "/no"}, "is not a checkpoint: it has no trainer_state"),
        ("sft", {"ckpt_path": "/out/saved"}, "would replace the checkpoints there"),
        ("sft", {"save_path": None}, "--save_path: is required outside a run"),
        ("sft", {"train_batch_size": 10, "micro_train_batch_size": 4}, "4 does not divide"),
        ("dpo", {"label_smoothing": 0.1}, "--label_smoothing: is not supported"),
        ("sft", {"attn_implementation": "flash_attention_2"}, "flash-attn is not installed here"),
        ("rm", {"margin_loss": True, "loss": "logexp"}, "is no part of --loss logexp"),
        ("sft", {"beta": 0.1}, "--beta: unknown flag"),
        ("sft", {"dataset_probs": "0.5,0.5", "dataset": "o/a,o/b"}, "names 2 data sets"),
    ],
)
def test_flags_that_cannot_be_right(stage: str, flags: dict[str, Any], said: str) -> None:
    (fault,) = faults(stage, **flags)
    assert said in fault


def test_what_has_no_effect_in_openrlhf_has_none_here() -> None:
    whole = {"dataset_probs": "1.0", "input_template": "", "apply_chat_template": True}
    assert faults("sft", **whole) == faults("sft", apply_chat_template=True)


def test_all_faults_are_said_at_once() -> None:
    found = faults("sft", pretrain="/nowhere", dataset="/no", lora_alpha=1, learning_rate=-1)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("stage", "row", "flags", "said"),
    [
        ("sft", {"question": "1"}, {"input_key": "question"}, "--output_key: "),
        ("rm", {"chosen": "a", "rejected": "b"}, {"prompt_key": "q"}, "--prompt_key: "),
        ("rm", {"chosen": "a", "rejected": "b"}, {"margin_loss": True}, "--margin_loss: "),
        ("dpo", {"chosen": "a", "rejected": 3}, {}, "is neither a text nor a list of messages"),
        (
            "dpo",
            {"prompt": "a", "chosen": CHAT, "rejected": CHAT},
            {"prompt_key": "prompt", "tokenizer_chat_template": "{{x}}"},
            "has texts and messages. Make them alike, or give --apply_chat_template",
        ),
        (
            "rm",
            {"prompt": "a", "chosen": CHAT, "rejected": CHAT},
            {"prompt_key": "prompt", "apply_chat_template": True, "tokenizer_chat_template": "{}"},
            "an answer that repeats the prompt",
        ),
        ("sft", {"prompt": "a"}, {"output_key": "none"}, "has no answer: it is a text"),
        ("sft", {"prompt": "a"}, {"multiturn": True}, "--multiturn: "),
        (
            "dpo",
            {"chosen": "a", "rejected": "b"},
            {"apply_chat_template": True},
            "no chat template",
        ),
        (
            "sft",
            {"prompt": [{"role": "user", "content": "1"}], "x": 1},
            {},
            "--output_key none takes the last message as the answer",
        ),
    ],
)
def test_data_that_do_not_fit(
    tiny: Tiny, tmp_path: Path, stage: str, row: Any, flags: dict[str, Any], said: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    (fault,) = faults(stage, pretrain=tiny.model, dataset=file, **flags)
    assert said in fault


def test_relative_paths_are_below_the_run_directory_or_outside_a_run_below_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ["--save_path", "./out/llama", "--ckpt_path", "saved"]
    argv = [*to_argv({"pretrain": "org/model", "dataset": "org/data"}), *paths]
    flags = parse("sft", argv).flags
    assert (flags.exported, flags.checkpoints) == (tmp_path / "out/llama", tmp_path / "saved")
    flags = parse("sft", argv, Path("/run")).flags
    assert (flags.exported, flags.checkpoints) == (Path("/run/out/llama"), Path("/run/saved"))


def test_a_damaged_model_is_said(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{")
    assert "is damaged" in " ".join(faults("sft", pretrain=tmp_path / "model"))


def test_flags_without_effect_are_said() -> None:
    found = command("sft", adam_offload=True, eval_steps=5, use_liger_kernel=True).warnings
    assert [warning.partition(" ")[0] for warning in found] == [
        *("--use_liger_kernel", "--adam_offload", "--eval_steps")
    ]


def test_a_command_is_checked_without_torch() -> None:
    script = (
        "import sys; from trainer.supervised.parse import parse, content_faults; "
        "list(content_faults(parse('sft', sys.argv[1:]).flags)); "
        "assert not {'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules)"
    )
    argv = ["--pretrain", "org/model", "--dataset", "org/data", "--save_path", "/out"]
    subprocess.run([sys.executable, "-c", script, *argv], check=True)


def test_faults_of_flags_and_of_columns_are_told_at_once(tmp_path: Path) -> None:
    rows = tmp_path / "pairs.jsonl"
    rows.write_text('{"chosen": "a", "rejected": "b"}\n')
    words = ["--pretrain", "org/model", "--save_path", "/out", "--dataset", str(rows)]
    with pytest.raises(ConfigError) as caught:
        check("dpo", [*words, "--rejected_key", "bad", "--learning_rate", "x"])
    assert [fault.path for fault in caught.value.faults] == ["--learning_rate", "--rejected_key"]
    with pytest.raises(ConfigError) as caught:  # which column is meant is not known
        check("dpo", [*words, "--rejectedkey", "rejected", "--learning_rate", "x"])
    assert [fault.path for fault in caught.value.faults] == ["--rejectedkey", "--learning_rate"]


@pytest.mark.parametrize(
    ("question", "said"), [("Which?", ["`choices` is not in the prompt"]), ("A car, a stone?", [])]
)
def test_options_that_no_prompt_shows_are_warned_of(
    tmp_path: Path, question: str, said: list[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"input": question, "choices": ["A car", "a stone"], "output": "B"}
    file.write_text(json.dumps(row))
    found = data_warnings(
        command("sft", dataset=file, input_key="input", output_key="output").flags
    )
    for warning, words in zip(found, said, strict=True):
        assert warning.startswith(f"--dataset {file}: the column {words}")
