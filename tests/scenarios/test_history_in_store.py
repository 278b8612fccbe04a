"""The run's history in the store: what a checkpoint sends of it does not grow with its age."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.run import object_store_files, restore
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import Store, StoreError
from entrypoint.run.object_store_files import SEGMENT_BYTES, Segments
from entrypoint.run.upload import Uploads
from tests.support.s3 import S3, s3
from tests.support.stored import (
    begun,
    finish,
    looks_often,
    run,
    until,
    uploaded,
    uploads,
    write_checkpoint,
)

__all__ = ["looks_often", "run", "s3", "uploads"]

SMALL = 1000
"""Bytes of a segment in tests of many."""


def grow(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(os.urandom(size))


def sent_by_checkpoints(run: RunFiles, s3: S3, steps: range, size: int) -> list[int]:
    """Bytes that each of some checkpoints sends, of a run whose metrics have `size` bytes first."""
    grow(run.metrics, size)
    found: list[int] = []
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
        for step in steps:
            before = s3.received
            grow(run.metrics, SMALL)
            write_checkpoint(run, step)
            until(lambda: len(uploaded(run)) > len(found))
            until(lambda: segment_end(s3) == run.metrics.stat().st_size)
            found.append(s3.received - before)
        finish(uploads)
    return found


def segment_end(s3: S3) -> int:
    names = s3.names()
    return names.get("metrics.jsonl", 0) or sum(
        size for name, size in names.items() if name.startswith("history/metrics.jsonl/")
    )


@pytest.mark.parametrize("megabytes", [1, pytest.param(200, marks=pytest.mark.slow)])
def test_a_checkpoint_sends_the_same_however_long_the_history_is(
    tmp_path: Path, s3: S3, megabytes: int
) -> None:
    run = begun(tmp_path / "run", s3.url)
    first, *later = sent_by_checkpoints(run, s3, range(1, 4), megabytes * 10**6)
    print(f"{megabytes} MB of metrics: first checkpoint {first} bytes, later ones {later}")
    assert first > megabytes * 10**6
    assert max(later) < SEGMENT_BYTES + 100_000
    new = RunFiles(tmp_path / "new")
    new.root.mkdir()
    assert restore.history(Store(s3.url), new)
    assert new.metrics.read_bytes() == run.metrics.read_bytes()


def test_a_history_of_an_earlier_version_is_fetched_and_goes_on_in_segments(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_files, "SEGMENT_BYTES", SMALL)
    run = begun(tmp_path / "run", s3.url)
    grow(run.metrics, 5 * SMALL + 10)
    for path in (run.metrics, run.journal, run.run):
        s3.put(path.name, path.read_bytes())
    new = RunFiles(tmp_path / "new")
    new.root.mkdir()
    assert restore.history(Store(s3.url), new)
    assert new.metrics.read_bytes() == run.metrics.read_bytes()
    grow(new.metrics, 10)
    with Uploads(Store(s3.url), new, Journal(new.journal, "head")) as uploads:
        write_checkpoint(new, 1)
        finish(uploads)
    assert "metrics.jsonl" not in s3.names(), "else the next machine would take the old one"
    last = RunFiles(tmp_path / "last")
    last.root.mkdir()
    assert restore.history(Store(s3.url), last)
    assert last.metrics.read_bytes() == new.metrics.read_bytes()


def test_the_store_of_a_finished_run_has_whole_files(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_files, "SEGMENT_BYTES", SMALL)
    grow(run.metrics, 5 * SMALL)
    journal = Journal(run.journal, "head")
    with Uploads(Store(s3.url), run, journal) as uploads:
        write_checkpoint(run, 1)
        until(lambda: uploaded(run) == [1])
        journal.write("outcome", "it has finished", outcome="finished", exit_code=0)
        finish(uploads)
    assert s3.names()["metrics.jsonl"] == 5 * SMALL


class Stored:
    """A file and its segments in a store on this disk."""

    def __init__(self, root: Path) -> None:
        self.file, self.back = root / "metrics.jsonl", root / "back"
        self.file.touch()
        self.store = Store(f"file://{root}/store")
        self.segments = Segments(self.store, "metrics.jsonl")

    def send(self) -> None:
        with self.file.open("rb") as file:
            self.segments.send(file, os.fstat(file.fileno()).st_size, lambda: None)

    def fetched(self) -> bytes:
        return (
            self.back.read_bytes()
            if object_store_files.fetch_growing(self.store, self.file.name, self.back)
            else b""
        )


def cut(file: Path, at: int) -> None:
    os.truncate(file, at)


def test_whatever_becomes_of_the_file_the_store_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appended to, cut at a step that is done again, thinned; by one head and by later ones."""
    monkeypatch.setattr(object_store_files, "SEGMENT_BYTES", 50)
    stored, draw = Stored(tmp_path), random.Random(7)

    def thin() -> None:
        content = stored.file.read_bytes()
        stored.file.write_bytes(content[: len(content) // 3] + content[len(content) // 2 :])

    acts: list[Callable[[], None]] = [
        lambda: grow(stored.file, draw.randrange(1, 200)),
        lambda: grow(stored.file, 50),
        lambda: cut(stored.file, draw.randrange(stored.file.stat().st_size + 1)),
        lambda: cut(stored.file, stored.file.stat().st_size // 50 * 50),
        thin,
        lambda: setattr(stored, "segments", Segments(stored.store, "metrics.jsonl")),
    ]
    for _ in range(300):
        draw.choice(acts)()
        stored.send()
        content = stored.file.read_bytes()
        stored.back.unlink(missing_ok=True)
        assert stored.fetched() == content


def test_an_outage_in_the_middle_leaves_a_beginning_of_the_file_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_files, "SEGMENT_BYTES", 50)
    stored, draw, write = Stored(tmp_path), random.Random(7), Store.write
    for _ in range(60):
        left = draw.randrange(6)

        def fails(store: Store, name: str, content: bytes) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreError("away")
            write(store, name, content)

        before = stored.file.read_bytes()
        if draw.random() < 0.5:
            cut(stored.file, draw.randrange(len(before) + 1))
        grow(stored.file, draw.randrange(1, 300))
        monkeypatch.setattr(Store, "write", fails)
        try:
            stored.send()
        except StoreError:
            found = stored.fetched()
            assert stored.file.read_bytes().startswith(found) or before == found
        monkeypatch.setattr(Store, "write", write)
        stored.send()
        assert stored.fetched() == stored.file.read_bytes()
