"""Dense retrieval with a tiny model: its vectors, faiss' indexes, and models that do not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from env.prepare.__main__ import main
from env.retrieval.dense import Dense
from env.retrieval.encoder import Encoder, settings_of
from env.retrieval.files import IndexFault
from env.retrieval.index import Index
from env.retrieval.types import Query
from tests.support.corpora import PASSAGES, write_corpus

MODELS = "sentence_transformers.models"
QUERIES = ["foxes", "capital of france", "rain"]


def prepare(corpus: Path, out: Path, model: Path, *flags: str) -> int:
    command = ["index", "--kind", "dense", "--model", str(model), "--corpus", str(corpus)]
    return main([*command, "--out", str(out), *flags])


def encoder(model: Path) -> Encoder:
    return Encoder(settings_of(model, pooling=None, query_prefix=None, passage_prefix=None))


def expected(model: Path, query: str) -> list[int]:
    """The rows by a comparison of all vectors."""
    coder = encoder(model)
    vectors = coder.passages([contents for _, contents in PASSAGES])
    scores = vectors @ coder.queries([query])[0]
    return sorted(range(len(PASSAGES)), key=lambda row: (-scores[row], row))


@pytest.mark.parametrize("flags", [[], ["--faiss", "HNSW8"], ["--faiss", "IVF1,Flat"]])
def test_the_nearest_passages_are_found(
    corpus: Path, tmp_path: Path, encoder_model: Path, small_parts: None, flags: list[str]
) -> None:
    out = tmp_path / "index"
    assert prepare(corpus, out, encoder_model, *flags) == 0
    index = Index(out)
    results = index.search([Query(text, 3) for text in QUERIES])
    for query, documents in zip(QUERIES, results, strict=True):
        scores = [document.score for document in documents]
        wanted = expected(encoder_model, query)[:3]
        if flags:  # these have another order of equal scores
            wanted = [PASSAGES.index((d.id, d.contents)) for d in documents]
            assert wanted[0] in expected(encoder_model, query)[:2]
        assert [document.id for document in documents] == [str(row) for row in wanted]
        assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    assert len(index.search([Query("rain", 100)])[0]) == 5


def test_a_batch_gives_the_same_as_its_queries_alone(
    corpus: Path, tmp_path: Path, encoder_model: Path
) -> None:
    assert prepare(corpus, tmp_path / "index", encoder_model) == 0
    index = Index(tmp_path / "index")
    together = index.search([Query(text, n + 1) for n, text in enumerate(QUERIES)])
    for n, text in enumerate(QUERIES):
        (alone,) = index.search([Query(text, n + 1)])
        assert [d.id for d in together[n]] == [d.id for d in alone]
        assert len(alone) == n + 1


def test_vectors_that_are_there_are_not_computed_again(
    corpus: Path, tmp_path: Path, encoder_model: Path, small_parts: None
) -> None:
    out = tmp_path / "index"
    assert prepare(corpus, out, encoder_model) == 0
    (out / "vectors" / "00001.npy").unlink()
    manifest = out / "index.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    kept = {path: path.stat().st_mtime_ns for path in (out / "vectors").glob("*.npy")}
    assert len(kept) == 2
    assert prepare(corpus, out, encoder_model) == 0
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert Index(out).search([Query("foxes", 1)])[0][0].id == str(
        expected(encoder_model, "foxes")[0]
    )


def test_vectors_have_length_one_and_padding_changes_nothing(encoder_model: Path) -> None:
    coder = encoder(encoder_model)
    alone = coder.queries(["rain"])
    beside = coder.queries(["rain", "the capital of china is beijing"])
    np.testing.assert_allclose(alone[0], beside[0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(beside, axis=1), 1, atol=1e-5)
    assert not np.allclose(coder.passages(["rain"]), alone, atol=1e-3), "e5 has two prefixes"


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("e5-base-v2", "query: "),
        ("models--intfloat--e5-base-v2/snapshots/bge0", "query: "),
        ("bge-small-en", "Represent this sentence for searching relevant passages: "),
        ("ae5f", ""),
    ],
)
def test_prefixes_follow_the_name_of_the_model(
    encoder_model: Path, tmp_path: Path, name: str, prefix: str
) -> None:
    model = tmp_path / name
    shutil.copytree(encoder_model, model)
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    settings = settings_of(model, pooling=None, query_prefix=None, passage_prefix=None)
    assert (settings.query_prefix, settings.pooling) == (prefix, "cls")
    settings = settings_of(model, pooling="mean", query_prefix="q", passage_prefix="")
    assert (settings.query_prefix, settings.passage_prefix) == ("q", "")
    assert settings.pooling == "mean"


@pytest.mark.parametrize(
    ("saved", "pooling"),
    [
        ('{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}', "mean"),
        ('{"pooling_mode": "cls"}', "cls"),
        ('{"word_embedding_dimension": 16}', "mean"),
        ('{"pooling_mode_lasttoken": true, "include_prompt": true}', "the pooling lasttoken"),
        ('{"pooling_mode": "lasttoken"}', "the pooling lasttoken"),
        ('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}', "cls_token, mean"),
    ],
)
def test_a_pooling_that_the_model_was_not_trained_with_is_refused(
    encoder_model: Path, tmp_path: Path, saved: str, pooling: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(encoder_model, model)
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(saved)
    if pooling in ("mean", "cls"):
        settings = settings_of(model, pooling=None, query_prefix=None, passage_prefix=None)
        assert settings.pooling == pooling
        return
    with pytest.raises(IndexFault, match=pooling):
        settings_of(model, pooling=None, query_prefix=None, passage_prefix=None)


def with_modules(encoder_model: Path, to: Path, *names: str) -> Path:
    """Copy a model and write its modules as sentence-transformers does."""
    shutil.copytree(encoder_model, to)
    listed = [
        {"idx": place, "name": str(place), "path": f"{place}_{name}", "type": f"{MODELS}.{name}"}
        for place, name in enumerate(names)
    ]
    (to / "modules.json").write_text(json.dumps(listed))
    return to


def test_a_model_with_a_module_that_is_not_applied_is_refused(
    encoder_model: Path, tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = with_modules(encoder_model, tmp_path / "a", "Transformer", "Pooling", "Normalize")
    assert encoder(right).width == 16
    dense = with_modules(encoder_model, tmp_path / "b", "Transformer", "Pooling", "Dense")
    assert prepare(corpus, tmp_path / "index", dense) == 64
    assert "modules.json has Dense, and only Normalize, Pooling" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
    settings = settings_of(right, pooling=None, query_prefix=None, passage_prefix=None)
    with pytest.raises(IndexFault, match=r"modules\.json has Dense"):  # an index of an older build
        Encoder(replace(settings, model=str(dense)))
    (dense / "modules.json").write_text("{}]")
    assert prepare(corpus, tmp_path / "index", dense) == 64
    assert "modules.json cannot be read" in capsys.readouterr().err


def test_a_ready_made_index_of_faiss_is_taken_if_it_fits(
    corpus: Path, tmp_path: Path, encoder_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coder, ready = encoder(encoder_model), tmp_path / "e5_Flat.index"
    vectors = coder.passages([contents for _, contents in PASSAGES])

    def make(rows: np.ndarray[Any, Any]) -> None:
        index = faiss.IndexFlatIP(rows.shape[1])
        index.add(np.ascontiguousarray(rows))
        faiss.write_index(index, str(ready))

    for rows, message in [
        (vectors[:4], "has 4 vectors, the corpus 5 passages: it is the index of another corpus"),
        (vectors[:, :8], "vectors have 8 numbers, the model's 16: it comes from another model"),
    ]:
        make(rows)
        assert prepare(corpus, tmp_path / "i", encoder_model, "--faiss-index", str(ready)) == 64
        assert message in capsys.readouterr().err
    ready.write_bytes(b"no index")
    assert prepare(corpus, tmp_path / "i", encoder_model, "--faiss-index", str(ready)) == 64
    assert "no index that faiss can read" in capsys.readouterr().err
    make(vectors)
    assert prepare(corpus, tmp_path / "i", encoder_model, "--faiss-index", str(ready)) == 0
    (documents,) = Index(tmp_path / "i").search([Query("foxes", 5)])
    assert documents[0].id == str(expected(encoder_model, "foxes")[0])
    assert prepare(corpus, tmp_path / "i", encoder_model, "--faiss-index", str(ready)) == 0
    make(vectors[::-1])
    assert prepare(corpus, tmp_path / "i", encoder_model, "--faiss-index", str(ready)) == 64
    assert "was made with another --faiss-index than" in capsys.readouterr().err
    ready.unlink()
    assert prepare(corpus, tmp_path / "i", encoder_model, "--faiss-index", str(ready)) == 0


def test_another_model_is_refused(
    corpus: Path, tmp_path: Path, encoder_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, moved = tmp_path / "index", tmp_path / "moved" / encoder_model.name
    assert prepare(corpus, out, encoder_model) == 0
    shutil.copytree(encoder_model, moved)
    assert len(Index(out, moved).search([Query("rain", 2)])[0]) == 2
    weights = moved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(IndexFault, match="its weights are not those of the model that made"):
        Index(out, moved)
    assert prepare(corpus, out, moved) == 64
    assert "other arguments: weights" in capsys.readouterr().err
    with pytest.raises(IndexFault, match="no model there"):
        Index(out, tmp_path / "absent")


def test_a_model_that_cannot_be_loaded_and_an_unknown_index_are_named(
    corpus: Path, tmp_path: Path, encoder_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(encoder_model, broken)
    (broken / "config.json").write_text('{"model_type": "no-such-model"}')
    assert prepare(corpus, tmp_path / "a", broken) == 64
    assert "broken: cannot be loaded" in capsys.readouterr().err
    assert prepare(corpus, tmp_path / "b", encoder_model, "--faiss", "Flatt,9") == 64
    assert "faiss knows no such index; examples: Flat, HNSW64" in capsys.readouterr().err
    assert prepare(corpus, tmp_path / "c", encoder_model, "--faiss", "IVF99,Flat") == 64
    assert "--faiss IVF99,Flat: too few passages" in capsys.readouterr().err


def test_vectors_of_another_width_are_refused(
    tmp_path: Path, encoder_model: Path, corpus: Path
) -> None:
    (tmp_path / "vectors").mkdir()
    np.save(tmp_path / "vectors" / "00000.npy", np.zeros((5, 8), np.float32))
    with pytest.raises(IndexFault, match="have 8 numbers, the model's 16"):
        Dense(tmp_path / "vectors", tmp_path / "faiss.index", encoder(encoder_model))
    assert write_corpus(corpus)
