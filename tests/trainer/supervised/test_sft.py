from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from contract.exit_codes import ExitCode
from tests.support.tiny_run import Tiny, to_argv
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.supervised.__main__ import main
from trainer.types import Request


def test_a_model_learns_to_continue_as_the_data_do(tiny: Tiny, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+0=", "completion": "77"} for n in range(32)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    argv = [
        *("sft", "--pretrain", tiny.model, "--dataset", tmp_path / "rows.jsonl"),
        *("--save_path", tmp_path / "taught", "--max_steps", 60, "--max_epochs", 60),
        *("--learning_rate", 0.03, "--train_batch_size", 32, "--micro_train_batch_size", 16),
    ]
    assert main([str(part) for part in argv]) == ExitCode.FINISHED
    engine = HFEngine(
        EngineSettings(
            model=str(tmp_path / "taught"),
            add_special_tokens=True,
            prompt_max_len=32,
            sampling=SamplingSettings(max_new_tokens=5),
            mixed_precision=False,
            slots=2,
        )
    )
    requests = [Request(text, (0,)) for text in ("40+0=", "5+0=")]
    written = engine.generate(requests, SamplingSettings(max_new_tokens=5, temperature=0))
    assert [(completion.text, completion.finished) for completion in written] == [("77", True)] * 2


def test_parquet_with_other_columns_trains_with_the_usual_flags(
    tiny: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trainers: list[Any],
) -> None:
    file = tmp_path / "rows.parquet"
    columns = {"question": [f"{n}+0=" for n in range(32)], "response": ["77"] * 32}
    Dataset.from_dict({**columns, "completion": ["1"] * 32}).to_parquet(file)
    argv = [
        *("sft", "--pretrain", tiny.model, "--dataset", file, "--save_path", tmp_path / "taught"),
        *("--input_key", "question", "--output_key", "response", "--max_steps", 40),
        *("--max_epochs", 40, "--learning_rate", 0.03, "--train_batch_size", 32),
        *("--micro_train_batch_size", 16, "--lr_scheduler", "constant", "--l2", 0.01),
        *("--max_norm", 0.5, "--gradient_checkpointing", "--logging_steps", 20),
    ]
    assert main([str(part) for part in argv]) == ExitCode.FINISHED
    lines = [ast.literal_eval(x) for x in capsys.readouterr().out.splitlines() if x[:1] == "{"]
    first, last = [line for line in lines if "loss" in line]
    assert float(last["loss"]) < float(first["loss"])
    assert [float(line["learning_rate"]) for line in (first, last)] == [0.03, 0.03]
    (trainer,) = trainers
    args = trainer.args
    assert (args.weight_decay, args.max_grad_norm, args.gradient_checkpointing) == (0.01, 0.5, True)
    assert "77" in trainer.processing_class.decode(trainer.train_dataset[0]["input_ids"])


def test_a_buffer_that_stays_mostly_empty_is_not_cleared_in_huge_pages(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL has one of [tokens, 32768] for logits: of a small vocabulary it touches little."""
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+0=", "completion": "1"}')
    argv = [
        *("sft", "--pretrain", tiny.model, "--dataset", tmp_path / "rows.jsonl"),
        *("--save_path", tmp_path / "taught", "--max_steps", 1, "--train_batch_size", 1),
    ]
    assert main([str(part) for part in argv]) == ExitCode.FINISHED
    assert "THP_MEM_ALLOC_ENABLE" not in os.environ


def test_texts_become_turns_of_the_chat_template(
    tiny: Tiny, tmp_path: Path, trainers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny.model, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink(missing_ok=True)
    rows = [{"prompt": "1+2=", "completion": "3"}, {"prompt": "4+5=", "completion": "9"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    argv = ["sft", "--pretrain", tmp_path / "model", "--dataset", tmp_path / "rows.jsonl"]
    argv += ["--save_path", tmp_path / "taught", "--apply_chat_template", "--max_steps", "1"]
    assert main(list(map(str, argv))) == ExitCode.USAGE
    assert "has no chat template" in capsys.readouterr().err

    tokenizer.chat_template = (
        "{% for m in messages %}{{ '+' if m.role == 'user' else '=' }}{{ m.content }}"
        "{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "model")
    assert main(list(map(str, argv))) == ExitCode.FINISHED
    (trainer,) = trainers
    read = tokenizer.decode(trainer.train_dataset[0]["input_ids"], skip_special_tokens=True)
    assert read.replace(" ", "") == "+1+2==3"


def test_a_column_that_is_not_in_the_data_is_named(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1", "response": "2"}))
    argv = ["sft", "--pretrain", str(tiny.model), "--dataset", str(tmp_path / "rows.jsonl")]
    keys = ["--save_path", str(tmp_path / "taught"), "--input_key", "question"]
    assert main([*argv, *keys]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "--output_key" in said
    assert "has no such column" in said
    assert "It has question, response" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["ppo"], "ppo: no such command. Known: sft, rm, dpo"),
        (["sft", "--dataset", "/nowhere"], "no such file (given: /nowhere)"),
        (["sft", "--train_batch_size", "10", "--micro_train_batch_size", "4"], "does not divide"),
    ],
)
def test_bad_usage_is_one_message_and_64(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitCode.USAGE
    assert said in capsys.readouterr().err


def losses(trainer: Any) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def taught(tiny: Tiny, root: Path, rows: list[Any], name: str = "taught", **flags: Any) -> Path:
    """The model that a few steps make."""
    root.mkdir(exist_ok=True)
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {
        "pretrain": tiny.model,
        "dataset": root / "rows.jsonl",
        "save_path": root / name,
        "train_batch_size": 4,
        "micro_train_batch_size": 4,
        "learning_rate": 0.01,
        "max_steps": 4,
        "logging_steps": 1,
        **flags,
    }
    assert main(["sft", *to_argv(given)]) == ExitCode.FINISHED
    return root / name


SUMS = [{"prompt": f"{n}+{n}=", "completion": str(n + n) * (1 + n % 3)} for n in range(16)]


def test_packed_samples_train_as_padded_ones_do(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    taught(tiny, tmp_path, SUMS)
    taught(tiny, tmp_path, SUMS, packing_samples=True)
    padded, packed = trainers
    (batch,) = [packed.data_collator([packed.train_dataset[n] for n in range(4)])]
    assert batch["input_ids"].shape[0] == 1, "end to end"
    assert "attention_mask" not in batch
    assert losses(packed) == pytest.approx(losses(padded), rel=1e-4)


def test_samples_that_would_see_each_other_are_padded_instead(
    tiny: Tiny, tmp_path: Path, trainers: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """ALiBi places tokens by a mask, which does not end where positions begin anew."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    config = AutoConfig.for_model("bloom", vocab_size=len(tokenizer), hidden_size=16, n_head=2)
    config.n_layer = 1
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "bloom")
    tokenizer.save_pretrained(tmp_path / "bloom")
    for packing in (False, True):
        flags = {"pretrain": tmp_path / "bloom", "packing_samples": packing}
        taught(tiny, tmp_path, SUMS, "taught", **flags)
    padded, packed = trainers
    assert losses(packed) == losses(padded)
    assert "--packing_samples has no effect" in caplog.text


def test_long_samples_are_cut(tiny: Tiny, tmp_path: Path, trainers: list[Any]) -> None:
    taught(tiny, tmp_path, SUMS, packing_samples=True, max_len=5)
    (trainer,) = trainers
    assert max(len(row["input_ids"]) for row in trainer.train_dataset) == 5


def test_adapters_alone_are_trained_and_are_merged_into_the_model(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    whole = taught(tiny, tmp_path, SUMS, lora_rank=2, lora_alpha=4, target_modules=("q_proj",))
    before, after = (load_file(path / "model.safetensors") for path in (tiny.model, whole))
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all(name.endswith("q_proj.weight") for name in changed)


def test_a_checkpoint_of_adapters_goes_on_as_if_nothing_had_happened(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    lora: dict[str, Any] = {"lora_rank": 2, "save_steps": 2, "lr_scheduler": "constant"}
    whole = taught(tiny, tmp_path / "a", SUMS, ckpt_path=tmp_path / "saved", **lora)
    resume: dict[str, Any] = {"resume_from_checkpoint": tmp_path / "saved" / "checkpoint-2"}
    resumed = taught(tiny, tmp_path / "b", SUMS, ckpt_path=tmp_path / "other", **lora, **resume)
    first, second = (load_file(path / "model.safetensors") for path in (whole, resumed))
    assert all(first[name].equal(second[name]) for name in first)
    assert losses(trainers[0]) == losses(trainers[1])


def chat_model(tiny: Tiny, out: Path) -> Path:
    """The tiny model with a chat template that marks the assistant's turns."""
    shutil.copytree(tiny.model, out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}={% generation %}{{ m.content }}"
        "{{ eos_token }}{% endgeneration %}{% else %}+{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}={% endif %}"
    )
    tokenizer.save_pretrained(out)
    return out


def trained_text(trainer: Any, row: int = 0) -> str:
    """The tokens of a row that have a loss."""
    batch = trainer.data_collator([trainer.train_dataset[row]])
    tokens = [token for token in batch["labels"][0].tolist() if token != -100]
    text: str = trainer.processing_class.decode(tokens, skip_special_tokens=True)
    return text.replace(" ", "")


TALK = [
    {"role": "user", "content": "1+2"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "4+4"},
    {"role": "assistant", "content": "8"},
]


@pytest.mark.parametrize(
    ("flags", "trained"),
    [
        ({"output_key": "none"}, "8"),
        ({"multiturn": True}, "38"),
        ({"pretrain_mode": True}, "+1+2=3+4+4=8"),
    ],
)
def test_what_is_trained_of_a_conversation(
    tiny: Tiny, tmp_path: Path, trainers: list[Any], flags: dict[str, Any], trained: str
) -> None:
    model = chat_model(tiny, tmp_path / "model")
    rows = [{"prompt": TALK}] * 4
    taught(tiny, tmp_path, rows, pretrain=model, max_steps=1, **flags)
    assert trained_text(trainers[0]) == trained


def test_a_template_of_the_flags_replaces_the_models_and_is_saved(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    template = "{% for m in messages %}{{ m.content }}={% endfor %}"
    flags: dict[str, Any] = {
        "apply_chat_template": True,
        "tokenizer_chat_template": template,
        "max_steps": 1,
    }
    model = taught(tiny, tmp_path, SUMS, **flags)
    assert trained_text(trainers[0], 1) == "22="
    assert AutoTokenizer.from_pretrained(model).chat_template == template


def test_held_out_rows_are_evaluated(tiny: Tiny, tmp_path: Path, trainers: list[Any]) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps(SUMS[0]))
    taught(tiny, tmp_path, SUMS, eval_dataset=tmp_path / "held.jsonl", eval_steps=2)
    rows = [row["step"] for row in trainers[0].state.log_history if "eval_loss" in row]
    assert rows == [2, 4]


def test_rows_that_differ_in_kind_are_named(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*SUMS, {"prompt": TALK[:1], "completion": TALK[1:2]}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    argv = ["sft", "--pretrain", str(tiny.model), "--dataset", str(file)]
    assert main([*argv, "--save_path", str(tmp_path / "x")]) == ExitCode.USAGE
    assert "row 17 has messages as prompt" in capsys.readouterr().err


def test_a_template_that_marks_no_turns_is_refused(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": TALK}))
    argv = ["sft", "--pretrain", str(tiny.model), "--dataset", str(file), "--multiturn"]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    argv += ["--tokenizer_chat_template", template, "--save_path", str(tmp_path / "x")]
    assert main(argv) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("--multiturn: ")


REFUSES = (
    "{% for m in messages %}{% if m.content == '4+4' and messages|length > 1 %}"
    "{{ raise_exception('no sums of fours') }}{% endif %}{{ m.content }}{% endfor %}"
)
ANSWERED = [{"prompt": "1+1", "completion": "2"}, {"prompt": "4+4", "completion": "8"}]
COMPARED = [
    {"prompt": row["prompt"], "chosen": row["completion"], "rejected": "0"} for row in ANSWERED
]


@pytest.mark.parametrize(
    ("stage", "rows", "flags"),
    [
        ("sft", ANSWERED, {}),
        ("rm", COMPARED, {"prompt_key": "prompt"}),
        ("dpo", COMPARED, {"prompt_key": "prompt"}),
    ],
)
@pytest.mark.parametrize("held_out", [False, True])
def test_a_row_that_the_chat_template_refuses_is_named(
    tiny: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stage: str,
    rows: list[Any],
    flags: dict[str, Any],
    held_out: bool,
) -> None:
    given: dict[str, Any] = {"save_path": tmp_path / "x", "apply_chat_template": True, **flags}
    for name, own in (("fine", rows[:1]), ("refused", rows)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)))
    given |= {"dataset": tmp_path / ("fine.jsonl" if held_out else "refused.jsonl")}
    given |= {"eval_dataset": tmp_path / "refused.jsonl"} if held_out else {}
    argv = to_argv({"pretrain": tiny.model, "tokenizer_chat_template": REFUSES, **given})
    assert main([stage, *argv]) == ExitCode.USAGE
    told = capsys.readouterr().err.splitlines()[-1]
    where = f"{tmp_path / 'refused.jsonl'}:2: "
    assert told.startswith(f"{where}the chat template refuses the row: no sums of fours. ")


def test_a_row_without_a_turn_to_train_is_named(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": turns}) for turns in (TALK, TALK[:1])))
    model = chat_model(tiny, tmp_path / "model")
    argv = ["sft", "--pretrain", str(model), "--dataset", str(file), "--multiturn"]
    assert main([*argv, "--save_path", str(tmp_path / "x")]) == ExitCode.USAGE
    assert f"{file}:2: has no turn of the assistant" in capsys.readouterr().err


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("stage", ["sft", "rm", "dpo"])
def test_a_model_keeps_the_use_cache_of_its_source(
    tiny: Tiny, tmp_path: Path, stage: str, cached: bool
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"use_cache": cached}))
    (tmp_path / "rows.jsonl").write_text(json.dumps(ANSWERED[0] | COMPARED[0]))
    given = {
        "pretrain": model,
        "dataset": tmp_path / "rows.jsonl",
        "prompt_key": None if stage == "sft" else "prompt",
        "save_path": tmp_path / "out",
        "train_batch_size": 1,
    }
    assert main([stage, *to_argv(given)]) == ExitCode.FINISHED
    assert AutoConfig.from_pretrained(tmp_path / "out").use_cache is cached
