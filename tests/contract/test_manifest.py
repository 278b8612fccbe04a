"""The manifest of a checkpoint names all that was written, wherever it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.manifest import MANIFEST, WrittenFile, fault_of, files_in, files_of, write_manifest


def test_a_shard_that_another_node_kept_for_itself_leaves_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "policy-0.pt").write_bytes(b"weights")
    shards = [WrittenFile(f"policy-{rank}.pt", 7, f"sum {rank}") for rank in range(2)]
    with pytest.raises(FileNotFoundError, match="the nodes do not share it") as caught:
        write_manifest(tmp_path, 3, shards)
    assert caught.value.filename == str(tmp_path / "policy-1.pt")
    assert not (tmp_path / MANIFEST).exists()


def test_a_shard_of_which_this_node_sees_a_part_leaves_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "policy-0.pt").write_bytes(b"wei")
    with pytest.raises(OSError, match="has 3 bytes here, and 7 were written"):
        write_manifest(tmp_path, 3, [WrittenFile("policy-0.pt", 7, "sum")])
    assert not (tmp_path / MANIFEST).exists()


def test_a_shard_that_an_old_list_of_the_directory_lacks_is_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy-1.pt").write_bytes(b"weights")
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: iter(()))
    write_manifest(tmp_path, 3, [WrittenFile("policy-1.pt", 7, "sum")])
    assert files_of(tmp_path) == [WrittenFile("policy-1.pt", 7, "sum")]
    assert fault_of(tmp_path, checksums=False) is None


@pytest.mark.parametrize("name", ["", "../run.json", "hf/../../run.json", "/etc/passwd", "a\0b"])
def test_a_manifest_that_names_a_file_outside_its_directory_is_damaged(name: str) -> None:
    entry = {"bytes": 1, "sha256": "0"}
    assert files_in(json.dumps({"files": {"hf/a": entry}}).encode())
    with pytest.raises(ValueError, match="damaged"):
        files_in(json.dumps({"files": {name: entry}}).encode())
