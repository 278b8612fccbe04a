"""The index: built whole or not at all, continued after a kill, and never of another corpus."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from env.prepare.__main__ import main
from env.retrieval import bm25, passages
from env.retrieval.files import IndexFault
from env.retrieval.index import Index
from env.retrieval.types import Query
from tests.support.corpora import PASSAGES, write_corpus
from tests.support.repository import ROOT


def prepare(corpus: Path, out: Path, *flags: str) -> int:
    return main(["index", "--corpus", str(corpus), "--out", str(out), *flags])


def found(index: Path, query: str, topk: int = 3) -> list[str]:
    """The ids of the passages."""
    return [document.id for document in Index(index).search([Query(query, topk)])[0]]


def test_words_are_found_by_their_stems_and_without_stop_words(bm25_index: Path) -> None:
    index = Index(bm25_index)
    capitals, fox, nothing, stop_words = index.search(
        [Query("capital of China?", 2), Query("FOX", 3), Query("zebra", 3), Query("the of is", 3)]
    )
    assert [document.id for document in capitals] == ["0", "1"]
    assert [document.contents for document in fox] == [PASSAGES[2][1]]
    assert (fox[0].title, fox[0].text) == ("Foxes", PASSAGES[2][1].partition("\n")[2])
    assert nothing == stop_words == []
    best, second = (document.score or 0.0 for document in capitals)
    assert best > second > 0


def test_a_model_for_an_index_by_words_is_refused(bm25_index: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexFault, match="is an index by words, without a model"):
        Index(bm25_index, tmp_path)


def test_opening_writes_nothing_into_the_index(bm25_index: Path) -> None:
    """The nodes' storage may be read-only."""
    for lock in bm25_index.rglob("*.lock"):
        lock.unlink()
    before = sorted(bm25_index.rglob("*"))
    assert found(bm25_index, "foxes") == ["2"]
    assert sorted(bm25_index.rglob("*")) == before


def test_equal_scores_come_in_the_order_of_the_corpus(bm25_index: Path) -> None:
    assert found(bm25_index, "rain") == ["3", "4"]


def test_a_query_is_words_and_no_syntax(bm25_index: Path) -> None:
    query = 'contents:"paris" AND -(france OR [a TO b]) ~ * row:0 \\ \0'
    assert found(bm25_index, query)[0] == "1"


def test_without_a_language_words_are_as_they_stand(corpus: Path, tmp_path: Path) -> None:
    assert prepare(corpus, tmp_path / "index", "--language", "none") == 0
    assert found(tmp_path / "index", "fox") == ["2"]
    assert found(tmp_path / "index", "jumps") == []
    assert found(tmp_path / "index", "it") == ["1"]


def test_parquet_and_several_files_are_one_corpus(tmp_path: Path) -> None:
    first = write_corpus(tmp_path / "a.jsonl", PASSAGES[:2])
    second = tmp_path / "b.parquet"
    columns = {"id": [2, 3], "contents": [text for _, text in PASSAGES[2:4]], "url": ["", ""]}
    pyarrow.parquet.write_table(pyarrow.table(columns), second)
    out = tmp_path / "index"
    assert main(["index", "--corpus", str(first), str(second), "--out", str(out)]) == 0
    assert [found(out, word) for word in ("Seine", "foxes", "clouds")] == [["1"], ["2"], ["3"]]


def test_the_same_command_keeps_a_whole_index(
    corpus: Path, bm25_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (bm25_index / "index.json").stat().st_mtime_ns
    assert prepare(corpus, bm25_index) == 0
    assert "already there, kept" in capsys.readouterr().out
    assert (bm25_index / "index.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("passages_given", [1, 2, 3, 4])
def test_a_build_that_ends_early_continues(
    tmp_path: Path, small_parts: None, passages_given: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first corpus has a broken line, as a build that a kill ends at that line."""
    lines = write_corpus(tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text("".join(lines[:passages_given]) + "{broken\n")
    assert prepare(corpus, out) == 64
    assert f"corpus.jsonl:{passages_given + 1}: not JSON" in capsys.readouterr().err
    with pytest.raises(IndexFault, match="half-built; run the same"):
        Index(out)
    kept = {path: path.stat().st_mtime_ns for path in (out / "passages").glob("0*")}
    assert len(kept) == passages_given // 2
    torn = [out / "passages" / ".00000.arrow.7", out / ".faiss.index.7", out / ".index.json.7"]
    for path in torn:
        path.write_text("what a killed build was writing")
    corpus.write_text("".join(lines))
    assert prepare(corpus, out) == 0
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert not any(path.exists() for path in torn)
    assert found(out, "rain") == ["3", "4"]
    assert Index(out).manifest.passages == 5


def test_words_that_are_committed_are_not_added_again(
    corpus: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "index"

    class KilledError(Exception):
        pass

    def kill(row: int) -> None:
        if row == 4:
            raise KilledError

    passages.store(passages.read_corpus([corpus]), _made(out / "passages"), lambda _: None)
    stored = passages.Passages(out / "passages")
    with pytest.raises(KilledError):
        bm25.build(out / "bm25", stored, "english", kill)
    added: list[int] = []
    bm25.build(out / "bm25", stored, "english", added.append)
    assert added == [2, 4, 5]
    assert bm25.BM25(out / "bm25", "english").size == 5


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


@pytest.mark.slow
def test_a_killed_process_loses_at_most_its_last_files(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    count = 70_000
    write_corpus(corpus, [(str(n), f"Title {n}\ncommon words and unique{n}") for n in range(count)])
    command = [sys.executable, "-m", "env.prepare", "index"]
    command += ["--corpus", str(corpus), "--out", str(out)]
    build = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "passages" / "00000.arrow").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    build.kill()
    build.wait()
    kept = (out / "passages" / "00000.arrow").stat().st_mtime_ns
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{out}: made\n")
    assert (out / "passages" / "00000.arrow").stat().st_mtime_ns == kept
    assert found(out, f"unique{count - 1}") == [str(count - 1)]
    assert not list((out / "passages").glob(".*"))


def test_another_corpus_is_refused_and_force_takes_it(
    bm25_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for others in (PASSAGES[::-1], PASSAGES[:-1], [*PASSAGES, ("5", "More\ntext")]):
        other = write_corpus(tmp_path / "other.jsonl", others)
        assert prepare(other, bm25_index) == 64
        assert "another corpus was given before" in capsys.readouterr().err
        assert found(bm25_index, "Seine") == ["1"]
    assert prepare(other, bm25_index, "--force") == 0
    assert found(bm25_index, "more") == ["5"]


def test_other_arguments_are_refused(
    corpus: Path, bm25_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(corpus, bm25_index, "--language", "german") == 64
    assert "other arguments: language english (now german)" in capsys.readouterr().err


def test_a_directory_of_other_files_is_left_alone(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "passages").write_text("mine")
    for flags in ([], ["--force"]):
        assert prepare(corpus, tmp_path / "docs", *flags) == 64
        assert "holds passages and no index" in capsys.readouterr().err
    assert (tmp_path / "docs" / "passages").read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "corpus.jsonl:2: not JSON"),
        ('{"id": "1"}', "corpus.jsonl:2: the key 'contents' is missing; its keys: 'id'"),
        ('{"contents": "a"}', "corpus.jsonl:2: the key 'id' is missing"),
        ('{"id": "1", "contents": 7}', "corpus.jsonl:2: 'contents' is of type int"),
        ('{"id": "1", "contents": " \\n"}', "corpus.jsonl:2: 'contents' is empty"),
        ('{"id": "1", "contents": "\\ud800"}', "corpus.jsonl:2: 'contents' is not Unicode"),
        ('{"id": "\\ud800", "contents": "a"}', "corpus.jsonl:2: 'id' is not Unicode"),
        ("[1]", "corpus.jsonl:2: a JSON list"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "0", "contents": "a\nb"}) + f"\n{line}\n")
    assert prepare(corpus, tmp_path / "index") == 64
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("corpus", "flags", "message"),
    [
        ("absent.jsonl", [], "absent.jsonl: no such file"),
        ("empty.jsonl", [], "the corpus has no passages"),
        ("corpus.csv", [], "corpus.csv: unknown kind of file"),
        ("corpus.jsonl", ["--language", "klingon"], "--language klingon: unknown"),
        ("corpus.jsonl", ["--kind", "dense"], "--kind dense wants --model DIR"),
        ("corpus.jsonl", ["--model", "x"], "--model: only with --kind dense"),
        ("corpus.jsonl", ["--faiss", "HNSW8"], "--faiss: only with --kind dense"),
        (
            "corpus.jsonl",
            ["--kind", "dense", "--model", "x", "--faiss", "HNSW8", "--faiss-index", "y"],
            "--faiss and --faiss-index: give one",
        ),
        ("corpus.jsonl", ["--kind", "dense", "--model", "x"], "--model x: no model there"),
    ],
)
def test_bad_arguments_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    corpus: str,
    flags: list[str],
    message: str,
) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "corpus.csv").touch()
    assert prepare(tmp_path / corpus, tmp_path / "index", *flags) == 64
    assert message in capsys.readouterr().err


def test_a_second_builder_is_refused(
    corpus: Path, bm25_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    with (bm25_index / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert prepare(corpus, bm25_index) == 64
    assert "another process builds this index now" in capsys.readouterr().err


def damage_size(index: Path) -> None:
    next((index / "bm25").glob("*.term")).write_bytes(b"short")


def damage_count(index: Path) -> None:
    text = (index / "index.json").read_text().replace('"passages": 5', '"passages": 6')
    (index / "index.json").write_text(text)


def remove_passages(index: Path) -> None:
    (index / "passages" / "00000.arrow").unlink()


def tear_manifest(index: Path) -> None:
    (index / "index.json").write_text('{"kind": "bm2')


def older_version(index: Path) -> None:
    text = (index / "index.json").read_text().replace('"version": 1', '"version": 0')
    (index / "index.json").write_text(text)


def remove_manifest(index: Path) -> None:
    (index / "index.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_size, "has 5 bytes, not .*damaged"),
        (damage_count, "5 passages, 5 in the index, 6 in index.json"),
        (remove_passages, "00000.arrow: is missing; the index is damaged"),
        (tear_manifest, "not the manifest of an index"),
        (older_version, "an index of version 0; this Rollcall reads version 1"),
        (remove_manifest, "has no index.json"),
    ],
)
def test_a_damaged_index_is_refused(bm25_index: Path, damage: Any, message: str) -> None:
    damage(bm25_index)
    with pytest.raises(IndexFault, match=message):
        Index(bm25_index)


def test_a_flipped_bit_is_found_when_the_command_runs_again(
    corpus: Path, bm25_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((bm25_index / "bm25").glob("*.idx"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert prepare(corpus, bm25_index) == 64
    assert f"{path}: is damaged; make the index again" in capsys.readouterr().err
    assert prepare(corpus, bm25_index, "--force") == 0
    assert found(bm25_index, "Seine") == ["1"]
