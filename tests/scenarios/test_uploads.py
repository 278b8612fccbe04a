"""Checkpoints are uploaded to an S3-compatible store beside the run."""

from __future__ import annotations

import errno
import gc
import hashlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from contract.manifest import (
    BROKEN,
    LEFT,
    MANIFEST,
    WrittenFile,
    checkpoint_path,
    files_in,
)
from contract.run_dir import RunFiles
from entrypoint.run import object_store, restore
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import PART_BYTES, Store, StoreError
from entrypoint.run.upload import Uploads
from tests.support.s3 import S3, s3
from tests.support.saved_states import flip_a_bit
from tests.support.stored import (
    PATIENCE,
    begun,
    finish,
    kinds,
    looks_often,
    newest_in,
    run,
    until,
    uploaded,
    uploads,
    write_checkpoint,
)

__all__ = ["looks_often", "run", "s3", "uploads"]


def test_a_checkpoint_is_uploaded_when_it_is_complete_and_the_store_keeps_what_the_disk_keeps(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    (checkpoint_path(run.checkpoints, 1)).mkdir(parents=True)  # it has no manifest
    write_checkpoint(run, 2)
    until(lambda: uploaded(run) == [2])
    shutil.rmtree(checkpoint_path(run.checkpoints, 2))
    write_checkpoint(run, 4)
    until(lambda: uploaded(run) == [2, 4])
    run.exported.mkdir()
    (run.exported / "model.safetensors").write_bytes(b"a model")
    run.exported_critic.mkdir()
    (run.exported_critic / "model.safetensors").write_bytes(b"a critic")
    finish(uploads)
    steps = {name.split("/")[1] for name in s3.names() if name.startswith("checkpoints/")}
    assert steps == {"global_step_4"}
    assert s3.names()["checkpoints/global_step_4/policy.pt"] == 4 * len(b"weights")
    assert {"run.json", "journal.jsonl", "hf/model.safetensors"} <= s3.names().keys()
    assert {"hf_critic/model.safetensors", f"hf_critic/{MANIFEST}"} <= s3.names().keys()
    (model,) = files_in(Store(s3.url).read(f"hf/{MANIFEST}") or b"")
    assert model == WrittenFile("model.safetensors", 7, hashlib.sha256(b"a model").hexdigest())


def test_what_nfs_keeps_of_a_deleted_file_is_not_uploaded_with_a_model(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    run.exported.mkdir()
    (run.exported / "model.safetensors").write_bytes(b"a model")
    (run.exported / ".nfs000000000012").write_bytes(b"an older model")
    finish(uploads)
    assert [name for name in s3.names() if ".nfs" in name] == []
    (model,) = files_in(Store(s3.url).read(f"hf/{MANIFEST}") or b"")
    assert model.name == "model.safetensors"


def test_an_outage_is_recorded_once_and_what_was_missed_is_uploaded_after_it(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])
    s3.stop()
    write_checkpoint(run, 2)
    until(lambda: bool(kinds(run, "upload-failed")))
    write_checkpoint(run, 3)
    time.sleep(0.5)
    s3.start()
    finish(uploads)
    (failed,) = kinds(run, "upload-failed")
    assert "The run continues" in failed["sentence"]
    assert "a-secret-key" not in run.journal.read_text()
    assert uploaded(run)[-1] == 3
    assert newest_in(s3) == 3


def test_the_end_of_a_run_does_not_wait_forever_for_a_store_that_is_away(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])
    s3.stop()
    write_checkpoint(run, 2)
    assert not uploads.finish(threading.Event(), grace=0.0, patience=1.0)
    failed = [event["sentence"] for event in kinds(run, "upload-failed")]
    assert any("are incomplete. Start the head again" in sentence for sentence in failed)
    s3.start()


def test_a_head_that_is_stopped_waits_only_its_grace(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    s3.stop()
    write_checkpoint(run, 1)
    stop, began = threading.Event(), time.monotonic()
    stop.set()
    uploads.finish(stop, grace=0.5, patience=PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    s3.start()


def test_a_later_head_ends_the_uploads_of_an_earlier_one(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])
    s3.put(".owner", b"a head on another machine")
    write_checkpoint(run, 2)
    until(lambda: bool(kinds(run, "upload-failed")))
    finish(uploads)
    assert "a later head uses" in kinds(run, "upload-failed")[0]["sentence"]
    assert Store(s3.url).checkpoints() == {1: True}


def test_a_store_of_another_run_takes_no_uploads_also_if_it_was_away_at_the_start(
    tmp_path: Path, run: RunFiles, s3: S3
) -> None:
    restore.claim(Store(s3.url), begun(tmp_path / "other", s3.url))
    write_checkpoint(run, 1)
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
        finish(uploads)
    assert "give ROLLCALL_STORAGE another prefix" in kinds(run, "upload-failed")[0]["sentence"]
    assert Store(s3.url).checkpoints() == {}


def test_a_checkpoint_that_is_deleted_meanwhile_ends_nothing(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch, uploads: Uploads
) -> None:
    put, gone, one_at_a_time = Store.upload, threading.Event(), threading.Lock()

    def slow(store: Store, name: str, file: Any) -> None:
        with one_at_a_time:
            if "global_step_1/" in name and not gone.is_set():
                shutil.rmtree(checkpoint_path(run.checkpoints, 1))
                gone.set()
        put(store, name, file)

    monkeypatch.setattr(Store, "upload", slow)
    write_checkpoint(run, 1)
    until(gone.is_set)
    until(lambda: uploaded(run) == [1])
    write_checkpoint(run, 2)
    finish(uploads)
    assert uploaded(run) == [1, 2]


def test_a_store_that_is_read_but_takes_nothing_does_not_hold_the_end_up(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Store, name: str, file: Any) -> None:
        file.read(PART_BYTES)
        raise StoreError("the bucket is full")

    monkeypatch.setattr(Store, "upload", refuses)
    write_checkpoint(run, 1)
    began = time.monotonic()
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
        assert not uploads.finish(threading.Event(), grace=0.0, patience=1.0)
    assert time.monotonic() - began < PATIENCE / 2


def test_a_corrupt_checkpoint_gets_no_manifest_and_the_one_before_it_stays(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])
    write_checkpoint(RunFiles(run.root / "aside"), 2)
    flip_a_bit(checkpoint_path(RunFiles(run.root / "aside").checkpoints, 2) / "policy.pt")
    shutil.move(checkpoint_path(RunFiles(run.root / "aside").checkpoints, 2), run.checkpoints)
    until(lambda: bool(kinds(run, "upload-failed")))
    (failed,) = kinds(run, "upload-failed")
    assert "Checkpoint 2 is not uploaded: policy.pt does not have" in failed["sentence"]
    write_checkpoint(run, 3)
    finish(uploads)
    steps = Store(s3.url).checkpoints()
    assert [step for step, whole in steps.items() if whole] == [1, 3]


def test_a_checkpoint_that_is_written_again_is_uploaded_again(
    run: RunFiles, s3: S3, uploads: Uploads
) -> None:
    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])
    shutil.rmtree(checkpoint_path(run.checkpoints, 1))
    write_checkpoint(run, 1, b"other weights")
    finish(uploads)
    assert uploaded(run) == [1, 1]
    manifest = (checkpoint_path(run.checkpoints, 1) / MANIFEST).read_bytes()
    assert Store(s3.url).read(f"checkpoints/global_step_1/{MANIFEST}") == manifest
    assert s3.names()["checkpoints/global_step_1/policy.pt"] == len(b"other weights")


def test_a_head_that_another_one_replaces_during_an_upload_completes_and_deletes_nothing(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch, uploads: Uploads
) -> None:
    put = Store.upload

    def replaced(store: Store, name: str, file: Any) -> None:
        put(store, name, file)
        if "global_step_2/" in name:
            s3.put(".owner", b"a head on another machine")
            s3.put("checkpoints/global_step_0/MANIFEST.json", b'{"step": 0, "files": {}}')

    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])
    monkeypatch.setattr(Store, "upload", replaced)
    write_checkpoint(run, 2)
    until(lambda: bool(kinds(run, "upload-failed")))
    assert not uploads.finish(threading.Event(), grace=0.0, patience=PATIENCE)
    steps = Store(s3.url).checkpoints()
    assert (steps[0], steps[1], steps[2]) == (True, True, False)


@pytest.mark.parametrize(("mark", "stays"), [(BROKEN, True), (LEFT, False)])
def test_a_later_checkpoint_in_the_store_goes_only_if_the_run_has_gone_back_before_it(
    run: RunFiles, s3: S3, uploads: Uploads, mark: str, stays: bool
) -> None:
    write_checkpoint(run, 9)
    until(lambda: uploaded(run) == [9])
    aside = checkpoint_path(run.checkpoints, 9)
    (aside / MANIFEST).rename(aside / mark)
    write_checkpoint(run, 5)
    until(lambda: uploaded(run) == [9, 5])
    finish(uploads)
    assert Store(s3.url).checkpoints() == ({5: True, 9: True} if stays else {5: True})


def test_that_the_run_has_finished_is_uploaded_after_its_models(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a new machine would take the run for finished, without its model."""
    put = Store.upload

    def loses_models(store: Store, name: str, file: Any) -> None:
        if name.startswith("hf/"):
            raise StoreError("the machine is gone")
        put(store, name, file)

    monkeypatch.setattr(Store, "upload", loses_models)
    write_checkpoint(run, 1)
    run.exported.mkdir()
    (run.exported / "model.safetensors").write_bytes(b"a model")
    Journal(run.journal, "head").write("outcome", "finished", outcome="finished", exit_code=0)
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
        until(lambda: uploaded(run) == [1])
        assert not uploads.finish(threading.Event(), grace=0.0, patience=1.0)
    assert newest_in(s3) == 1
    assert "journal.jsonl" not in s3.names()
    monkeypatch.setattr(Store, "upload", put)
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
        assert uploads.finish(threading.Event(), grace=0.0, patience=PATIENCE)
    assert {"journal.jsonl", "hf/model.safetensors"} <= s3.names().keys()


def test_a_model_that_is_uploaded_again_has_no_manifest_meanwhile(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, seen = Store.upload, []

    def watched(store: Store, name: str, file: Any) -> None:
        if name.startswith("hf/"):
            seen.append(f"hf/{MANIFEST}" in s3.names())
        put(store, name, file)

    monkeypatch.setattr(Store, "upload", watched)
    run.exported.mkdir()
    for content in (b"a model", b"another one"):
        (run.exported / "model.safetensors").write_bytes(content)
        with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
            finish(uploads)
    assert seen == [False, False]
    assert f"hf/{MANIFEST}" in s3.names()


class Breaks:
    """A file that cannot be read after its first parts."""

    def __init__(self, parts: int) -> None:
        self._left = parts

    def read(self, size: int = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EIO, "the disk is broken")
        return bytes(size)


@pytest.mark.parametrize("parts", [0, 2])
def test_an_upload_that_fails_leaves_no_shorter_file_and_no_parts(
    s3: S3, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 << 20)
    store = Store(s3.url)
    with pytest.raises(StoreError, match="the disk is broken"):
        store.upload("checkpoints/global_step_1/policy.pt", Breaks(parts))
    gc.collect()
    assert not s3.names()
    assert not unfinished(s3)


def unfinished(s3: S3) -> list[str]:
    listed = boto3.client("s3").list_multipart_uploads(Bucket=s3.bucket)
    return [row["Key"] for row in listed.get("Uploads", [])]


def test_parts_that_a_killed_head_left_are_deleted_and_those_of_others_stay(
    run: RunFiles, s3: S3
) -> None:
    ours, other = "runs/one/checkpoints/global_step_1/policy.pt", "runs/other/hf/model"
    for key in (ours, other):
        boto3.client("s3").create_multipart_upload(Bucket=s3.bucket, Key=key)
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as uploads:
        finish(uploads)
    assert unfinished(s3) == [other]


def test_several_files_are_uploaded_at_once(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch, uploads: Uploads
) -> None:
    put, together = Store.upload, threading.Barrier(2)

    def meets(store: Store, name: str, file: Any) -> None:
        if name.startswith("checkpoints/"):  # the history goes up by itself
            together.wait(PATIENCE)
        put(store, name, file)

    monkeypatch.setattr(Store, "upload", meets)
    write_checkpoint(run, 1)
    until(lambda: uploaded(run) == [1])


def test_a_store_error_has_one_line(s3: S3) -> None:
    s3.stop()
    with pytest.raises(StoreError) as error:
        Store(s3.url).read("run.json")
    assert "\n" not in str(error.value)
    s3.start()
