"""Which checkpoints a run takes for its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from contract.manifest import (
    MANIFEST,
    Lineage,
    checkpoint_path,
    fault_of,
    is_strange,
    keep_origin,
    kept_run_id,
    lineage_of,
    newest_checkpoint,
    write_manifest,
)
from contract.run_dir import RunFiles


def written(checkpoints: Path, step: int, run: str | None = None) -> Path:
    directory = checkpoint_path(checkpoints, step)
    directory.mkdir(parents=True)
    (directory / "policy.pt").write_bytes(b"weights")
    write_manifest(directory, step, run=run)
    return directory


BEGUN = Lineage("a", begun=True)
FORKED = Lineage("a", begun=True, origins=frozenset({"b", "c"}), step=20)


@pytest.mark.parametrize(
    ("ours", "run", "step", "takes"),
    [
        (Lineage(), "b", 5, True),  # a trainer without a head
        (Lineage("a"), "b", 5, True),  # the run begins, and goes on from what it finds
        (BEGUN, "a", 5, True),
        (BEGUN, None, 5, True),  # of an older version
        (BEGUN, "b", 5, False),
        (FORKED, "b", 20, True),
        (FORKED, "c", 10, True),
        (FORKED, "b", 21, False),  # of the other run's own future
        (FORKED, "d", 10, False),
        (FORKED, "a", 99, True),
    ],
)
def test_a_run_takes_its_own_checkpoints_and_those_that_it_began_from(
    ours: Lineage, run: str | None, step: int, *, takes: bool, tmp_path: Path
) -> None:
    directory = written(tmp_path, step, run)
    assert (fault_of(directory, lineage=ours) is None) == takes
    assert is_strange(directory, ours) == (not takes)
    assert newest_checkpoint(tmp_path, lineage=ours) == (step if takes else None)
    assert fault_of(directory) is None


def test_the_step_of_a_checkpoint_is_what_its_manifest_says(tmp_path: Path) -> None:
    real = written(tmp_path, 10)
    copy = checkpoint_path(tmp_path, 99999)
    shutil.copytree(real, copy)
    assert fault_of(copy) == "its manifest says step 10"
    assert newest_checkpoint(tmp_path, checksums=False) == 10
    other = tmp_path / "global_step_10_old"  # no name of a checkpoint's
    shutil.copytree(real, other)
    assert fault_of(other) is None


def test_a_manifest_of_an_older_version_may_say_no_step(tmp_path: Path) -> None:
    directory = written(tmp_path, 10)
    row = json.loads((directory / MANIFEST).read_text())
    del row["step"]
    (directory / MANIFEST).write_text(json.dumps(row))
    assert fault_of(directory) is None


def test_the_beginning_of_a_run_is_kept(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    assert lineage_of(files) == Lineage()
    files.run.write_text('{"run_id": "a"}')
    assert lineage_of(files) == Lineage("a")
    keep_origin(files, FORKED)
    assert lineage_of(files) == FORKED
    assert kept_run_id(files) == "a"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"step": -1, "runs": []}', b"\xff"])
def test_a_damaged_file_counts_as_absent(content: bytes, tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.run.write_text('{"run_id": "a"}')
    files.origin.write_bytes(content)
    assert lineage_of(files) == Lineage("a")
