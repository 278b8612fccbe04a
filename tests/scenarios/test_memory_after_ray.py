"""What a node's Ray had in memory, after the end of that Ray."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from contract.files import fd_store
from contract.files.fd_store import Deposit, FdStore
from tests.support.sheets import sheet_of
from trainer.checkpoint.replica_store import ReplicaStore, view
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.cluster.shared_memory import Segment
from trainer.cluster.tcp_stream import Server

DEPOSITS = """
import os
from contract.files import fd_store
descriptor = os.memfd_create("one")
os.write(descriptor, b"what was there")
fd_store.deposit("a run", b"label", {"one": descriptor})
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FdStore]:
    path = tmp_path / "kept" / "socket"
    monkeypatch.setenv(fd_store.VARIABLE, str(path))
    with FdStore(path) as found:
        yield found
    assert not path.parent.exists()


def memory(content: bytes) -> int:
    descriptor = os.memfd_create("memory")
    os.write(descriptor, content)
    return descriptor


def named(segments: list[int]) -> dict[str, int]:
    return {str(number): one for number, one in enumerate(segments)}


def contents(found: Deposit) -> list[bytes]:
    try:
        return [os.pread(descriptor, 99, 0) for descriptor in found.descriptors]
    finally:
        found.close()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("store")
def test_memory_outlives_the_process_that_had_it() -> None:
    ended = subprocess.run([sys.executable, "-c", DEPOSITS], check=False)
    assert ended.returncode == -signal.SIGKILL
    for _ in range(2):  # it stays
        found = fd_store.withdraw("a run")
        assert found.label == b"label"
        assert contents(found) == [b"what was there"]
    assert fd_store.withdraw("another run") == Deposit()


@pytest.mark.usefixtures("store")
def test_a_deposit_replaces_the_one_before_and_nothing_stays_open() -> None:
    before, segments = open_files(), [memory(b"%d" % number) for number in range(40)]
    label = bytes(300_000)
    fd_store.deposit("a run", b"older", named(segments[:1]))
    fd_store.deposit("a run", label, named(segments))
    found = fd_store.withdraw("a run")
    assert found.label == label
    assert contents(found) == [b"%d" % number for number in range(40)]
    fd_store.deposit("another run", b"", named(segments[:2]))
    assert fd_store.withdraw("a run") == Deposit(), "a node is one run's at a time"
    fd_store.deposit("another run", b"", {})
    Deposit(descriptors=tuple(segments)).close()
    deadline = time.monotonic() + 10
    while open_files() > before:  # connections that were answered are closed by threads
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_ends_in_the_middle_of_a_deposit_has_deposited_nothing(store: FdStore) -> None:
    fd_store.deposit("a run", b"whole", {"one": (one := memory(b"kept"))})
    before = open_files()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.environ[fd_store.VARIABLE])
        socket.send_fds(client, [b'{"owner": "a r'], [one])
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.environ[fd_store.VARIABLE])
    os.close(one)
    assert contents(fd_store.withdraw("a run")) == [b"kept"]
    deadline = time.monotonic() + 10
    while open_files() >= before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert store.copy("a r") == Deposit()


def test_an_fd_store_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fd_store, "PATIENCE_SECONDS", 0.2)
    path = tmp_path / "socket"
    monkeypatch.setenv(fd_store.VARIABLE, str(path))
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(path))
        stopped.listen()
        with pytest.raises(TimeoutError):
            fd_store.deposit("a run", b"", {"one": 0})
        with pytest.raises(TimeoutError):
            fd_store.withdraw("a run")


def test_without_an_fd_store_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(fd_store.VARIABLE, raising=False)
    fd_store.deposit("a run", b"", {"one": 0})
    assert fd_store.withdraw("a run") == Deposit()
    monkeypatch.setenv(fd_store.VARIABLE, str(tmp_path / "nobody"))
    assert fd_store.withdraw("a run") == Deposit()
    with pytest.raises(FileNotFoundError):
        fd_store.deposit("a run", b"", {"one": 0})


@pytest.fixture
def segment() -> Segment:
    made = Segment(99)
    view(made)[:] = np.arange(99)
    return made


@pytest.mark.usefixtures("store")
def test_the_holder_of_the_nodes_next_ray_begins_with_what_the_last_one_held(
    segment: Segment,
) -> None:
    source, budget = Server(segment.buffer, port=0).source, 1000
    first = ReplicaStore(budget, "a run")
    for step in (1, 2):
        first.receive(sheet_of(segment, step), source)
        first.keep("a", step)
    first.amend("a", 2, "evaluated")

    second = ReplicaStore(budget, "a run", goes_on=True)
    (sheet,) = second.manifests()
    assert (sheet.step, sheet.run_state) == (2, "evaluated")
    assert np.array_equal(second.piece(sheet.key, 0, 99), view(segment))
    assert ReplicaStore(budget, "a run").manifests() == []
    assert ReplicaStore(budget, "another run", goes_on=True).manifests() == []
    second.clear()
    assert ReplicaStore(budget, "a run", goes_on=True).manifests() == []


def test_what_two_nodes_held_as_they_ended_is_found_in_files(
    store: FdStore, tmp_path: Path, segment: Segment
) -> None:
    source, directory = Server(segment.buffer, port=0).source, tmp_path / "run" / ".kept"
    holder = ReplicaStore(1000, "a run")
    for step, node in ((1, "one"), (2, "two")):
        holder.receive(sheet_of(segment, step), source)
        holder.keep("a", step)
        store.save(directory, node)

    found = SpilledReplicas(directory, "a run")
    assert [sheet.step for sheet in found.manifests()] == [1, 2]
    for sheet in found.manifests():
        assert np.array_equal(found.read(sheet), view(segment))
    assert SpilledReplicas(directory, "another run").manifests() == []
    found.forget()
    assert not directory.exists()


def test_a_share_that_a_node_has_written_is_not_written_by_the_next(
    store: FdStore, tmp_path: Path
) -> None:
    fd_store.deposit("a run", b"sheets", {"share": memory(b"the same")})
    store.save(tmp_path, "one")
    written = (tmp_path / "a run" / "share").stat().st_mtime_ns
    store.save(tmp_path, "two")
    files = {path.name for path in (tmp_path / "a run").iterdir()}
    assert files == {"share", "one.label", "two.label"}
    assert (tmp_path / "a run" / "share").stat().st_mtime_ns == written


def test_who_has_nothing_writes_nothing(store: FdStore, tmp_path: Path) -> None:
    store.save(tmp_path / "run", "one")
    fd_store.deposit("a run", b"sheets", {"share": memory(b"bytes")})
    fd_store.deposit("a run", b"", {})
    store.save(tmp_path / "run", "one")
    assert not (tmp_path / "run").exists()


def test_storage_that_takes_no_more_is_told_of_and_leaves_no_half_of_a_share(
    store: FdStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fd_store.deposit("a run", b"sheets", {"share": memory(b"bytes")})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store.save(tmp_path / "run", "one")
    assert "what this node holds in memory is lost: [Errno 28] No space left" in caplog.text
    assert list((tmp_path / "run" / "a run").iterdir()) == []


def test_files_of_another_version_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / f"one{fd_store.LABEL}").write_bytes(b"of another kind")
    assert SpilledReplicas(tmp_path, "a run").manifests() == []
    assert "cannot be read and is ignored" in caplog.text
