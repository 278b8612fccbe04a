"""A checkpoint takes the place of an earlier one of the same step."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from contract.manifest import checkpoint_path, fault_of, files_of
from trainer.checkpoint import writer
from trainer.checkpoint.writer import DriverState, RunState


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of a step with files that cannot be deleted: those whose names have "busy"."""
    unlink = os.unlink

    def refuse(path: Any, **where: Any) -> None:
        if "busy" in os.fspath(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        unlink(path, **where)

    monkeypatch.setattr(os, "unlink", refuse)
    directory = checkpoint_path(tmp_path, 3)
    (directory / writer.EXPORTED).mkdir(parents=True)
    return directory


def test_what_nfs_keeps_of_an_earlier_checkpoint_is_in_no_later_one(
    busy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [busy / ".nfs1-busy", busy / writer.EXPORTED / ".nfs2-busy"]
    for path in (*kept, busy / "policy-0-of-2.pt"):
        path.write_bytes(b"earlier")
    assert writer.begin(busy.parent, 3) == busy
    writer.commit(busy, DriverState(RunState(step=3, seed=0, prompts={})), [])
    assert [file.name for file in files_of(busy)] == [writer.RUN_STATE]
    monkeypatch.undo()
    for path in kept:  # the last process has closed them
        path.unlink()
    assert fault_of(busy) is None


def test_a_file_of_an_earlier_checkpoint_that_stays_is_named(busy: Path) -> None:
    (busy / "busy-of-2.pt").write_bytes(b"earlier")
    with pytest.raises(OSError, match="cannot be deleted, and the checkpoint of step 3") as error:
        writer.begin(busy.parent, 3)
    assert error.value.filename == str(busy / "busy-of-2.pt")
