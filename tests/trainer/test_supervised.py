from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTTrainer

from contract.exit_codes import ExitCode
from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.supervised import main
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


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[SFTTrainer]:
    """The trainers of TRL that have trained."""
    trainers: list[SFTTrainer] = []
    train = SFTTrainer.train

    def recorded(trainer: SFTTrainer) -> object:
        trainers.append(trainer)
        return train(trainer)

    monkeypatch.setattr(SFTTrainer, "train", recorded)
    return trainers


def test_parquet_with_other_columns_trains_with_the_usual_flags(
    tiny: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trainers: list[SFTTrainer],
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


def test_texts_become_turns_of_the_chat_template(
    tiny: Tiny, tmp_path: Path, trainers: list[SFTTrainer], capsys: pytest.CaptureFixture[str]
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
        (["dpo"], "dpo: no such command. Known: sft"),
        (["sft", "--dataset", "/nowhere"], "no such file (given: /nowhere)"),
        (["sft", "--train_batch_size", "10", "--micro_train_batch_size", "4"], "does not divide"),
    ],
)
def test_bad_usage_is_one_message_and_64(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitCode.USAGE
    assert said in capsys.readouterr().err
