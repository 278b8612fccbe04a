"""A checkpoint is fetched from an S3-compatible store that fails, is slow, or is left alone."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from pathlib import Path

import pytest

from contract.manifest import MANIFEST, checkpoint_path, fault_of, files_of, write_manifest
from contract.run_dir import RunFiles
from entrypoint.net.wait import InterruptedWaitError
from entrypoint.run import object_store_files
from entrypoint.run.object_store import Patience, Store, StoreError, checkpoint_name
from entrypoint.run.object_store_files import CorruptCheckpointError
from tests.support.s3 import S3, s3
from tests.support.stored import PATIENCE

__all__ = ["s3"]

PART = 1000
SIZES = {"policy-0-of-2.pt": 3500, "policy-1-of-2.pt": 2000, "critic.pt": 1, "hf/config.json": 0}


@pytest.fixture
def checkpoints(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an empty run; the store has step 3."""
    monkeypatch.setattr(object_store_files, "PART_BYTES", PART)
    directory = checkpoint_path(tmp_path / "stored", 3)
    (directory / "hf").mkdir(parents=True)
    for name, size in SIZES.items():
        (directory / name).write_bytes(bytes(number % 251 for number in range(size)))
    write_manifest(directory, 3)
    for name in (*SIZES, MANIFEST):
        s3.put(f"{checkpoint_name(3)}/{name}", (directory / name).read_bytes())
    run = RunFiles(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    return run.checkpoints


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many parts of each file the store was asked for."""
    counts: Counter[str] = Counter()
    part = Store.part

    def counting(store: Store, name: str, start: int, size: int) -> bytes:
        counts[name.removeprefix(f"{checkpoint_name(3)}/")] += 1
        return part(store, name, start, size)

    monkeypatch.setattr(Store, "part", counting)
    return counts


def fetch(s3: S3, checkpoints: Path, patience: float = PATIENCE) -> int:
    return object_store_files.fetch_checkpoint(
        Store(s3.url), checkpoints, 3, Patience(patience, threading.Event())
    )


def test_a_checkpoint_arrives_whole_in_parts(
    s3: S3, checkpoints: Path, asked: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert fetch(s3, checkpoints) == sum(SIZES.values())
    directory = checkpoint_path(checkpoints, 3)
    assert fault_of(directory) is None
    assert {file.name: file.bytes for file in files_of(directory)} == SIZES
    assert asked == {"policy-0-of-2.pt": 4, "policy-1-of-2.pt": 2, "critic.pt": 1}
    assert [path.name for path in checkpoints.iterdir()] == [directory.name]
    assert "fetching checkpoint 3 from s3://" in caplog.text
    assert "0.000 of 0.000 GB" in caplog.text


def test_files_that_have_arrived_stay_when_the_store_fails_and_when_the_head_restarts(
    s3: S3, checkpoints: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Store.part

    def fails(store: Store, name: str, start: int, size: int) -> bytes:
        if name.endswith("policy-0-of-2.pt") and start == PART:
            raise StoreError("it is away")
        return part(store, name, start, size)

    with monkeypatch.context() as patch:
        patch.setattr(object_store_files, "FILES_AT_ONCE", 1)
        patch.setattr(Store, "part", fails)
        patch.setattr(
            object_store_files, "_largest_first", lambda files: sorted(files, key=lambda f: f.name)
        )
        with pytest.raises(StoreError, match="it is away"):
            fetch(s3, checkpoints, patience=0.2)
    assert asked["critic.pt"] == 1
    (incoming,) = checkpoints.iterdir()
    assert (incoming / "critic.pt").exists()
    fetch(s3, checkpoints)
    assert asked["critic.pt"] == 1
    assert fault_of(checkpoint_path(checkpoints, 3)) is None


def test_the_timeout_counts_from_the_newest_part(
    s3: S3, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part comes at the second try, which takes longer in all than the timeout."""
    part, tried, clock = Store.part, set(), []

    def flaky(store: Store, name: str, start: int, size: int) -> bytes:
        if (name, start) not in tried:
            tried.add((name, start))
            clock.append(threading.Event().wait(0.4))
            raise StoreError("a connection was lost")
        return part(store, name, start, size)

    monkeypatch.setattr(Store, "part", flaky)
    monkeypatch.setattr(object_store_files, "FILES_AT_ONCE", 1)
    fetch(s3, checkpoints, patience=2.0)
    assert len(clock) * 0.4 > 2.0
    assert fault_of(checkpoint_path(checkpoints, 3)) is None


def test_a_stop_ends_it_between_two_parts(
    s3: S3, checkpoints: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, part = threading.Event(), Store.part

    def stops(store: Store, name: str, start: int, size: int) -> bytes:
        stop.set()
        return part(store, name, start, size)

    monkeypatch.setattr(Store, "part", stops)
    monkeypatch.setattr(object_store_files, "FILES_AT_ONCE", 1)
    with pytest.raises(InterruptedWaitError):
        object_store_files.fetch_checkpoint(Store(s3.url), checkpoints, 3, Patience(PATIENCE, stop))
    assert sum(asked.values()) == 1


def test_files_of_a_checkpoint_that_was_written_again_are_fetched_again(
    tmp_path: Path, s3: S3, checkpoints: Path
) -> None:
    incoming = checkpoints / ".global_step_3.incoming"
    incoming.mkdir()
    (incoming / ".manifest").write_text('{"step": 3, "files": {}}')
    (incoming / "critic.pt").write_bytes(b"x")
    (checkpoints / ".global_step_2.incoming").mkdir()
    fetch(s3, checkpoints)
    assert fault_of(checkpoint_path(checkpoints, 3)) is None
    assert [path.name for path in checkpoints.iterdir()] == ["global_step_3"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"x" * 2000, "the checksum"), (b"", "has 0 bytes"), (None, "is missing")],
)
def test_a_corrupt_checkpoint_leaves_nothing(
    s3: S3, checkpoints: Path, content: bytes | None, fault: str
) -> None:
    name = f"{checkpoint_name(3)}/policy-1-of-2.pt"
    if content is None:
        Store(s3.url).remove(name)
    else:
        s3.put(name, content)
    with pytest.raises(CorruptCheckpointError, match=rf"policy-1-of-2.pt .*{fault}"):
        fetch(s3, checkpoints)
    assert not list(checkpoints.iterdir())
