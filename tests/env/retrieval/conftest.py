"""Small corpora, a tiny embedding model with random weights, indexes of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette

from env.http.batching import Limits
from env.prepare.__main__ import main
from env.retrieval.index import Index
from env.retrieval.server import Topk, create_app
from tests.support.corpora import write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passages a file, so that a small corpus has several."""
    for module in ("files", "passages", "dense"):
        monkeypatch.setattr(f"env.retrieval.{module}.PART", 2)


@pytest.fixture
def bm25_index(corpus: Path, tmp_path: Path) -> Path:
    out = tmp_path / "index"
    assert main(["index", "--corpus", str(corpus), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def encoder_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with random weights. Its name has e5, so that it gets that model's prefixes."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    out = tmp_path_factory.mktemp("models") / "tiny-e5"
    words = ["[PAD]", "[UNK]", "query", "passage", ":", "capital", "china", "france", "foxes"]
    words += ["rain", "beijing", "paris", "seine", "dogs", "is", "the", "of", "clouds", "cool"]
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(out)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(out)
    return out


@pytest.fixture
def url(serve: Callable[[Starlette], str], bm25_index: Path) -> str:
    return serve(create_app(Index(bm25_index), Topk(), Limits(max_wait=0.0)))
