"""A head begins: on a new machine from the store, or with a store that has another run."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path, fault_of, newest_checkpoint
from contract.run_dir import RunFiles
from entrypoint.config.role import Head
from entrypoint.job import command_identity
from entrypoint.job.recipes.builtin import recipe as builtin
from entrypoint.node import head, store_sync
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.run import kept_layouts, restore
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import Patience, Store, StoreError, UnusableStoreError
from entrypoint.run.restore import TakenOverError
from entrypoint.run.upload import Uploads
from tests.support.s3 import S3, s3
from tests.support.saved_states import flip_a_bit, leaves_of
from tests.support.stored import (
    PATIENCE,
    begun,
    finish,
    kinds,
    looks_often,
    newest_in,
    run,
    settings_of,
    until,
    uploads,
    write_checkpoint,
)
from tests.support.tiny_job import tiny_job
from tests.support.tiny_run import Tiny, train

__all__ = ["looks_often", "run", "s3", "uploads"]


def test_a_run_on_a_new_machine_goes_on_to_the_same_bits(
    tiny: Tiny, tmp_path: Path, s3: S3
) -> None:
    """The newest checkpoint is corrupt in the store, so the one before it counts."""
    first = begun(tmp_path / "first", s3.url)
    config = tiny.config(first.root, max_steps=4, save_steps=2)
    train(config)
    store = Store(s3.url)
    for step in (2, 4):
        with Uploads(store, first, Journal(first.journal, "head")) as uploads:
            if step == 2:
                shutil.move(checkpoint_path(first.checkpoints, 4), tmp_path / "later")
            else:
                shutil.move(tmp_path / "later", checkpoint_path(first.checkpoints, 4))
            finish(uploads)
    assert [step for step, whole in store.checkpoints().items() if whole] == [2, 4]
    s3.put("checkpoints/global_step_4/policy.pt", b"corrupt")
    second = RunFiles(tmp_path / "second")
    second.root.mkdir()
    settings = settings_of(second.root, s3.url)
    store_sync.fetch_history(settings, second, threading.Event())
    assert second.run.read_bytes() == first.run.read_bytes()
    assert restore.under_way(second)
    journal = Journal(second.journal, "head")
    assert len(kinds(second, "step")) == 4
    with store_sync.uploading(settings, second, journal, Inbox()) as finish_uploads:
        assert newest_checkpoint(second.checkpoints) == 2
        assert not restore.under_way(second)
        flags = {"max_steps": 4, "save_steps": 2, "load_checkpoint": True}
        train(tiny.config(second.root, **flags))
        assert finish_uploads()
    (skipped,) = kinds(second, "checkpoint-skipped")
    assert "policy.pt has 7 bytes, its manifest says" in skipped["sentence"]
    assert [event["details"]["step"] for event in kinds(second, "restore")] == [2]
    assert leaves_of(tiny.config(second.root, max_steps=4), 4) == leaves_of(config, 4)
    assert newest_in(s3) == 4
    assert not [name for name in second.checkpoints.iterdir() if name.name.startswith(".")]


def test_a_head_that_lost_the_store_goes_on_if_the_run_has_begun_here(
    run: RunFiles, s3: S3
) -> None:
    settings = settings_of(run.root, s3.url, ROLLCALL_REWARD_TIMEOUT="1")
    journal = Journal(run.journal, "head")

    def begins() -> bool:
        with store_sync.uploading(settings, run, journal, Inbox()):
            return True

    s3.stop()
    with pytest.raises(StoreError, match="not there after 1 s"):
        begins()
    journal.write("attempt", "attempt 1 starts")
    store_sync.fetch_history(settings, run, threading.Event())
    assert begins()
    sentence = kinds(run, "upload-failed")[0]["sentence"]
    assert sentence.endswith("The run continues from its own directory.")
    (run.root / restore.UNDER_WAY).touch()  # its checkpoint was to be fetched
    with pytest.raises(StoreError):
        begins()
    s3.start()


def fetched(s3: S3, run: RunFiles, **named: int) -> int | None:
    patience = Patience(20.0, threading.Event())
    return restore.checkpoint(Store(s3.url), run, Journal(run.journal, "head"), patience, **named)


def test_a_run_directory_that_has_a_checkpoint_fetches_none(run: RunFiles, s3: S3) -> None:
    write_checkpoint(run, 1)
    s3.put("checkpoints/global_step_9/MANIFEST.json", b'{"step": 9, "files": {}}')
    assert fetched(s3, run) is None
    assert newest_checkpoint(run.checkpoints) == 1


def test_a_new_machine_keeps_the_layout_that_was_chosen(
    run: RunFiles, s3: S3, uploads: Uploads, tmp_path: Path
) -> None:
    chosen = kept_layouts.KeptLayout(("--actor_num_nodes", "2"), ("two nodes are there",))
    kept_layouts.keep(run.layouts, "these nodes", chosen)
    write_checkpoint(run, 1)
    finish(uploads)
    (tmp_path / "second").mkdir()
    second = RunFiles(tmp_path / "second")
    store_sync.fetch_history(settings_of(second.root, s3.url), second, threading.Event())
    assert kept_layouts.read(second.layouts) == {"these nodes": chosen}


def test_another_run_is_refused_and_both_are_named(tmp_path: Path, s3: S3) -> None:
    one, other = (begun(tmp_path / name, s3.url) for name in ("one", "other"))
    restore.claim(Store(s3.url), one)
    restore.claim(Store(s3.url), one)
    with pytest.raises(restore.OtherRunError, match=r"holds the checkpoints of run \w+, and .*"):
        restore.claim(Store(s3.url), other)


def test_a_machine_that_returns_with_an_old_disk_does_not_undo_what_another_one_did(
    run: RunFiles, s3: S3
) -> None:
    write_checkpoint(run, 1)
    s3.put(".owner", b"a head on another machine")
    store = Store(s3.url)
    restore.claim(store, run)  # the other head has completed no checkpoint
    s3.put("checkpoints/global_step_9/MANIFEST.json", b'{"step": 9, "files": {}}')
    with pytest.raises(restore.OtherRunError, match=r"has its step 9, and the newest .* is 1\."):
        store_sync.fetch_history(settings_of(run.root, s3.url), run, threading.Event())
    (run.root / restore.UNDER_WAY).touch()  # this machine is the new one
    restore.claim(store, run)
    (run.root / restore.UNDER_WAY).unlink()
    head_of = {"incarnation": "a head on another machine"}
    Journal(run.journal, "head").write("start", "this is the head", **head_of)
    restore.claim(store, run)  # the owner was a head of this run directory


def test_a_head_ends_with_64_for_another_run_and_with_73_without_the_store(
    tmp_path: Path, s3: S3, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    def serve(directory: Path) -> object:
        port = {"ROLLCALL_CONTROL_PORT": str(free_port), "ROLLCALL_REWARD_TIMEOUT": "1"}
        settings = settings_of(directory, s3.url, **port)
        return head.serve(settings, Head(0, 0, "a test"), {}, Inbox())

    restore.claim(Store(s3.url), begun(tmp_path / "one", s3.url))
    assert serve(begun(tmp_path / "other", s3.url).root) == ExitCode.USAGE
    assert "give ROLLCALL_STORAGE another prefix" in caplog.text
    (tmp_path / "empty").mkdir()
    s3.stop()
    assert serve(tmp_path / "empty") == ExitCode.RUN_DIR
    assert not RunFiles(tmp_path / "empty").run.exists(), "the run has not begun anew"
    s3.start()


def test_a_finished_run_that_is_started_again_uploads_what_was_left(
    tmp_path: Path, run: RunFiles, s3: S3
) -> None:
    settings = settings_of(run.root, s3.url)
    write_checkpoint(run, 1)
    fingerprint = command_identity.fingerprint(settings)
    Journal(run.journal, "head").write(
        "outcome", "finished", outcome="finished", exit_code=0, command=fingerprint
    )
    s3.stop()
    hurried = settings_of(run.root, s3.url, ROLLCALL_REWARD_TIMEOUT="1")
    assert head.serve(hurried, Head(0, 0, "a test"), {}, Inbox()) == ExitCode.RUN_DIR
    for thread in threading.enumerate():  # it would end with the head's process
        if thread.name == "upload":
            thread.join(30)
    s3.start()
    assert head.serve(settings, Head(0, 0, "a test"), {}, Inbox()) == ExitCode.FINISHED
    assert Store(s3.url).checkpoints() == {1: True}


def test_a_corrupt_checkpoint_on_disk_is_no_reason_to_fetch(run: RunFiles, s3: S3) -> None:
    """Its sizes are right, so the trainer decides: it puts the checkpoint aside."""
    write_checkpoint(run, 1)
    flip_a_bit(checkpoint_path(run.checkpoints, 1) / "policy.pt")
    assert fault_of(checkpoint_path(run.checkpoints, 1)) is not None
    assert fetched(s3, run) is None


def stored(tmp_path: Path, s3: S3, *steps: int) -> RunFiles:
    """An empty run directory, and a store with a run's checkpoints."""
    first = begun(tmp_path / "first", s3.url)
    for step in steps:
        write_checkpoint(first, step)
        for path in checkpoint_path(first.checkpoints, step).rglob("*"):
            if path.is_file():
                s3.put(str(path.relative_to(first.root)), path.read_bytes())
    s3.put("run.json", first.run.read_bytes())
    second = RunFiles(tmp_path / "second")
    second.root.mkdir()
    assert restore.history(Store(s3.url), second)
    return second


def test_a_run_whose_checkpoints_are_all_corrupt_in_the_store_does_not_begin_anew(
    tmp_path: Path, s3: S3
) -> None:
    run = stored(tmp_path, s3, 1, 2)
    for step in (1, 2):
        s3.put(f"checkpoints/global_step_{step}/policy.pt", b"corrupt")
    with pytest.raises(UnusableStoreError, match="has no complete checkpoint of this run any more"):
        fetched(s3, run)
    assert [event["details"]["step"] for event in kinds(run, "checkpoint-skipped")] == [2, 1]
    assert restore.under_way(run), "the next head looks again"
    assert not list(run.checkpoints.iterdir())


def test_a_run_whose_checkpoints_were_deleted_in_the_store_does_not_begin_anew(
    tmp_path: Path, s3: S3
) -> None:
    run = stored(tmp_path, s3)
    assert fetched(s3, run) is None, "it had none when its machine was lost"
    Journal(run.journal, "head").write("upload", "checkpoint 1 is in the store", step=1)
    with pytest.raises(UnusableStoreError, match="would begin again at step 0"):
        fetched(s3, run)


def test_a_named_step_is_fetched_and_later_ones_in_the_store_do_not_count_any_more(
    tmp_path: Path, s3: S3
) -> None:
    run = stored(tmp_path, s3, 1, 2, 3)
    assert fetched(s3, run, named=2) == 2
    assert newest_checkpoint(run.checkpoints) == 2
    assert Store(s3.url).checkpoints() == {1: True, 2: True, 3: False}
    assert "checkpoints/global_step_3/MANIFEST.left.json" in s3.names()
    with pytest.raises(restore.OtherRunError, match=r"--load_step 3: .* Other steps there: 1, 2"):
        fetched(s3, run, named=3)


@pytest.mark.parametrize(("resumed", "wanted"), [(False, 1), (True, 2)])
def test_the_flag_load_step_counts_on_a_new_machine_until_the_run_has_resumed_from_it(
    tmp_path: Path, s3: S3, resumed: bool, wanted: int
) -> None:
    run = stored(tmp_path, s3, 1, 2)
    job = [*tiny_job(tmp_path, 4), "--load_checkpoint", "true", "--load_step", "1"]
    settings = replace(settings_of(run.root, s3.url), job=tuple(job))
    assert not builtin.RECIPE.faults(settings)
    journal = Journal(run.journal, "head")
    if resumed:
        journal.attempt = 1
        journal.write("attempt", "starts", command=command_identity.fingerprint(settings))
        journal.write("resume", "resumes", step=1)
    with store_sync.uploading(settings, run, journal, Inbox()):
        assert newest_checkpoint(run.checkpoints) == wanted


def test_a_head_whose_store_a_later_head_uses_stops_and_ends_with_an_error(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "OWNER_LOOK_SECONDS", 0.1)
    inbox, journal = Inbox(), Journal(run.journal, "head")
    with store_sync.uploading(settings_of(run.root, s3.url), run, journal, inbox) as finish_uploads:
        until(lambda: ".owner" in s3.names())
        s3.put(".owner", b"a head on another machine")
        message = inbox.take(PATIENCE)
        assert isinstance(message, StopAsked)
        assert "a later head uses" in message.why
        with pytest.raises(TakenOverError):
            finish_uploads()
