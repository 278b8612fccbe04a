"""Which worker a note of a head that does not start is for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node.find_head import HeadLocator
from entrypoint.run import unfit_head_note
from entrypoint.run.lease import Lease
from entrypoint.run.unfit_head_note import HeadUnfitError, NoteWatch

SECRET = "correct-horse-battery"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_TOKEN": SECRET})


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


def test_a_worker_that_starts_with_the_head_is_told_what_failed_without_secrets(
    settings: Settings, run: RunFiles
) -> None:
    began = time.time() - 5
    unfit_head_note.tell(settings, 76, f"host.ports: {SECRET} is taken")
    with pytest.raises(HeadUnfitError, match="has ended with 76: host") as found:
        NoteWatch(run, began).check()
    assert SECRET not in str(found.value)


def test_a_note_of_an_earlier_start_is_told_once_and_ends_no_worker(
    settings: Settings, run: RunFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker may start before the head that is repaired; that one may fail, too."""
    unfit_head_note.tell(settings, 75, "host.ports: 1 is taken")
    written = time.time() - 1
    os.utime(run.unfit, (written, written))
    watch = NoteWatch(run, written + 0.5)
    watch.check()
    watch.check()
    (line,) = caplog.messages
    assert "has ended with 75: host.ports: 1 is taken; this node waits for a head" in line
    unfit_head_note.forget(settings)
    watch.check()
    unfit_head_note.tell(settings, 75, "host.ports: 1 is taken")
    with pytest.raises(HeadUnfitError):
        watch.check()


def test_a_second_head_that_fails_ends_no_worker_of_the_living_one(
    settings: Settings, run: RunFiles
) -> None:
    with Lease(run.leases) as lease:
        unfit_head_note.tell(settings, 76, "host.ports: 1 is taken")
        beat = run.unfit.stat().st_mtime + 1
        os.utime(lease.path, (beat, beat))
        NoteWatch(run, beat - 9).check()


def test_a_worker_that_had_found_its_head_waits_for_it_to_come_back(
    settings: Settings, run: RunFiles
) -> None:
    unfit_head_note.tell(settings, 76, "host.ports: 1 is taken")
    HeadLocator("head", run.leases, known=True).raise_if_unfit()
    with pytest.raises(HeadUnfitError):
        HeadLocator("head", run.leases).raise_if_unfit()


def test_a_run_directory_that_takes_no_note_is_tolerated(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    settings = read_settings({"ROLLCALL_RUN_DIR": str(absent)})
    unfit_head_note.forget(settings)
    unfit_head_note.tell(settings, 73, "host.run_dir: it does not exist")
    NoteWatch(RunFiles(absent)).check()
    assert not absent.exists()
