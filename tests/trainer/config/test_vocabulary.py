"""A tokeniser with more tokens than a model's embedding is a fault; a larger embedding is right."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.tiny_run import Tiny, to_argv
from trainer.config.job_checks import model_faults
from trainer.config.vocabulary import unreadable_tokens
from trainer.supervised.parse import content_faults, parse


@pytest.fixture
def model(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.model, tmp_path / "model"))


def add_words(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(model)


def add_a_padding_token(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(model)


def shrink_the_embedding(model: Path) -> None:
    rows = len(AutoTokenizer.from_pretrained(model))
    smaller = AutoModelForCausalLM.from_pretrained(model)
    smaller.resize_token_embeddings(rows - 1)
    smaller.save_pretrained(model)


def change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


@pytest.mark.parametrize(
    ("grow", "said"),
    [
        (add_words, "2 tokens"),
        (add_a_padding_token, "1 token"),
        (shrink_the_embedding, "1 token"),
    ],
)
def test_tokens_without_a_row_are_named(
    model: Path, grow: Callable[[Path], None], said: str
) -> None:
    assert unreadable_tokens(model, model) is None
    grow(model)
    found = unreadable_tokens(model, model)
    assert found
    assert found.startswith(f"the tokeniser in {model} has {said} without a row in the embedding")


def test_a_vocabulary_that_is_filled_up_is_right(model: Path) -> None:
    larger = AutoModelForCausalLM.from_pretrained(model)
    larger.resize_token_embeddings(len(AutoTokenizer.from_pretrained(model)), pad_to_multiple_of=64)
    larger.save_pretrained(model)
    assert json.loads((model / "config.json").read_text())["vocab_size"] == 64
    assert unreadable_tokens(model, model) is None


def test_a_token_that_stands_for_an_image_needs_no_row(model: Path) -> None:
    """As in Gemma 3's models of text."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(model)
    assert unreadable_tokens(model, model)
    change(model / "tokenizer_config.json", image_token="<image_soft_token>")
    assert unreadable_tokens(model, model) is None


@pytest.mark.parametrize(
    "files",
    [
        {"vocab.json": {"a": 0, "b": 1, "c": 7}},
        {"vocab.json": {"a": 0}, "added_tokens.json": {"[PAD]": 7}},
        {"tokenizer.json": {"model": {"vocab": [["a", -1.0]] * 8}}},
        {"tokenizer.json": {"model": {"vocab": {}}, "added_tokens": [{"id": 7, "content": "c"}]}},
        {
            "vocab.json": {"a": 0},
            "tokenizer_config.json": {"added_tokens_decoder": {"7": {"content": "c"}}},
        },
        {
            "tekken.json": {
                "config": {"default_num_special_tokens": 2, "default_vocab_size": 8},
                "vocab": [
                    {"rank": rank, "token_str": str(rank), "token_bytes": ""} for rank in range(20)
                ],
            }
        },
    ],
)
@pytest.mark.parametrize(("rows", "fits"), [(8, True), (7, False)])
def test_every_kind_of_vocabulary_is_read(
    tmp_path: Path, files: dict[str, Any], rows: int, fits: bool
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": rows}}))
    assert (unreadable_tokens(tmp_path, tmp_path) is None) is fits


def sentencepiece(kind: str) -> bytes:
    """A model of 60 pieces, as SentencePiece's own trainer writes it."""
    sums = [f"{a}+{b}={a + b} hello world the quick" for a in range(60) for b in range(30)]
    made = BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sums), model_writer=made, vocab_size=60, model_type=kind
    )
    return made.getvalue()


TIKTOKEN = b"".join(b64encode(bytes([byte])) + f" {byte}\n".encode() for byte in range(256))


@pytest.mark.parametrize(
    ("content", "config", "size"),
    [
        (sentencepiece("bpe"), {"tokenizer_class": "LlamaTokenizer"}, 60),
        (sentencepiece("unigram"), {"tokenizer_class": "GemmaTokenizer"}, 60),
        (sentencepiece("bpe"), {"tokenizer_class": "LlamaTokenizer", "pad_token": "[PAD]"}, 61),
        (TIKTOKEN, {"tokenizer_class": "PreTrainedTokenizerFast"}, 256),
        (TIKTOKEN, {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}, 257),
    ],
)
def test_a_tokeniser_without_json_is_counted_as_transformers_loads_it(
    tmp_path: Path, content: bytes, config: dict[str, Any], size: int
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for rows in (size, size - 1):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
        said = unreadable_tokens(tmp_path, tmp_path)
        assert bool(said) is (rows < size)
    assert "has 1 token without a row" in (said or "")
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert max(loaded.get_vocab().values()) >= size - 1


def test_a_cut_file_of_pieces_is_no_fault_here(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece("bpe")[:-7])
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1}))
    unreadable_tokens(tmp_path, tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xff")
    assert unreadable_tokens(tmp_path, tmp_path) is None


def test_a_named_token_that_no_vocabulary_has_is_counted(model: Path) -> None:
    change(model / "tokenizer_config.json", pad_token="[PAD]")
    said = unreadable_tokens(model, model)
    assert "'[PAD]'" in (said or "")
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    assert AutoTokenizer.from_pretrained(model).pad_token_id == rows


@pytest.mark.parametrize("content", ["[]", "{", '{"model": 3}', '{"model": {"vocab": [1]}}'])
def test_files_that_say_nothing_are_no_fault_here(model: Path, content: str) -> None:
    (model / "tokenizer.json").write_text(content)
    assert unreadable_tokens(model, model) is None


@pytest.mark.parametrize(
    ("flag", "flags"),
    [
        ("pretrain", {}),
        ("critic_pretrain", {"advantage_estimator": "gae"}),
        ("reward_pretrain", {"remote_rm_url": None}),
    ],
)
def test_a_run_is_refused_beforehand(
    tiny: Tiny, model: Path, run_dir: Path, flag: str, flags: dict[str, Any]
) -> None:
    change(
        model / "config.json",
        vocab_size=9,
        architectures=["Qwen2ForSequenceClassification"],
        id2label={"0": "score"},
    )
    config = tiny.config(run_dir, **{flag: model}, **flags)
    (fault,) = model_faults(config)
    assert fault.startswith(f"--{flag}: the tokeniser in ")
    assert f"of {model}, which has 9 (vocab_size): " in fault


@pytest.mark.parametrize("flag", ["pretrain", "ref_pretrain"])
def test_a_stage_is_refused_beforehand(tiny: Tiny, model: Path, tmp_path: Path, flag: str) -> None:
    change(model / "config.json", vocab_size=9)
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    given = {"pretrain": tiny.model, "dataset": tmp_path / "rows.jsonl", "save_path": tmp_path}
    faults = content_faults(parse("dpo", to_argv({**given, flag: model})).flags)
    assert [fault.path for fault in faults] == [f"--{flag}"]
