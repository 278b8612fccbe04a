"""Is a worker's run directory the head's? A real control port, and files in real directories."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.cluster.client import RefusedError
from entrypoint.cluster.storage_proof import StorageProof, is_there, sweep
from entrypoint.net.wait import NotYetError
from entrypoint.run import run_dir_reads
from entrypoint.run.lease import Lease
from tests.support.control import Head, shared


def test_a_worker_whose_file_the_head_sees_is_taken(strict: Head) -> None:
    proof = StorageProof(strict.run.root)
    strict.client().check_in(shared("a", storage=proof.show()))
    assert strict.heard.check_ins == [("a", None)]
    proof.withdraw()
    assert list(strict.run.root.iterdir()) == []


def test_a_worker_whose_run_directory_is_a_fresh_copy_may_look_again_and_is_then_refused(
    strict: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, copy = strict.client(), tmp_path.with_name(f"{tmp_path.name}-copy")
    with Lease(strict.run.leases) as lease:
        strict.control._registry.me = replace(
            strict.control._registry.me, storage=lease.incarnation
        )
        shutil.copytree(tmp_path, copy)
        proof = StorageProof(copy)
        for said in (proof.show(), lease.incarnation, "first", "../journal.jsonl", "x" * 99):
            with pytest.raises(NotYetError, match="mount one shared storage"):
                client.check_in(shared("a", storage=said))
        assert strict.heard.check_ins == []
        monkeypatch.setattr(run_dir_reads, "STORAGE_GRACE_SECONDS", 0.0)
        with pytest.raises(RefusedError, match="mount one shared storage"):
            client.check_in(shared("a", storage=proof.show()))
        assert list(strict.control.state()["refused"]) == ["a"]
        client.check_in(shared("a", storage=StorageProof(strict.run.root).show()))
        assert strict.control.state()["refused"] == {}


def test_a_file_that_the_heads_storage_shows_late_is_seen_under_the_same_name(
    strict: Head, tmp_path: Path
) -> None:
    client, own = strict.client(), tmp_path.with_name(f"{tmp_path.name}-own")
    own.mkdir()
    proof = StorageProof(own)
    with pytest.raises(NotYetError, match="mount one shared storage"):
        client.check_in(shared("a", storage=proof.show()))
    (own / proof.show()).rename(strict.run.root / proof.show())
    client.check_in(shared("a", storage=proof.show()))
    assert strict.heard.check_ins == [("a", None)]


def test_a_run_directory_that_takes_no_file_is_named_and_waited_for(tmp_path: Path) -> None:
    """Its worker may share it all the same: a full quota is no reason to refuse the worker."""
    proof = StorageProof(tmp_path / "gone")
    with pytest.raises(NotYetError, match=f"ROLLCALL_RUN_DIR={tmp_path / 'gone'} takes no file"):
        proof.show()
    proof.withdraw()


def test_the_next_head_removes_the_files_of_workers_that_were_killed(tmp_path: Path) -> None:
    killed = StorageProof(tmp_path).show()
    (tmp_path / "run.json").touch()
    sweep(tmp_path)
    assert not is_there(tmp_path, killed)
    assert (tmp_path / "run.json").exists()


def test_a_worker_that_has_joined_is_not_asked_for_the_storage_again(strict: Head) -> None:
    client = strict.client()
    client.check_in(shared("a", storage=StorageProof(strict.run.root).show()))
    client.check_in(shared("a"), joined=True)
    assert strict.control.roll().present == ("a",)
