from __future__ import annotations

import json
import math
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from contract import manifest
from contract.journal import read_events
from contract.manifest import (
    MANIFEST,
    WrittenFile,
    checkpoint_path,
    fault_of,
    newest_checkpoint,
    sha256,
    steps_on_disk,
    write_manifest,
)
from tests.support.saved_states import flip_a_bit
from tests.support.tiny_run import Tiny, dying_at, events, metric_rows, train
from trainer.checkpoint import checkpointer, retention, state
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.retention import OnDisk, Retention
from trainer.config.config import Config
from trainer.models import hf_export

ON_DISK = st.dictionaries(st.integers(1, 30), st.builds(OnDisk, st.booleans(), st.integers(1, 9)))


@given(ON_DISK, st.integers(1, 5), st.sampled_from([4, 12, math.inf]))
def test_retention_keeps_the_newest_whole_ones_that_have_room_and_nothing_older(
    found: dict[int, OnDisk], count: int, room: float
) -> None:
    deleted = retention.superfluous(found, Retention(count, room))
    left = set(found) - set(deleted)
    newest = sorted((step for step in found if found[step].whole), reverse=True)
    kept = [step for step in newest if step in left]
    assert kept == newest[: len(kept)]
    assert len(kept) == 1 or sum(found[step].bytes for step in kept) <= room
    assert len(kept) <= count
    if newest:
        assert kept  # the newest one, however large
        # A torn one stays only where it is newer than every whole one.
        assert all(found[step].whole or step > newest[0] for step in left)
    else:
        assert not deleted
    if 0 < len(kept) < min(count, len(newest)):
        assert sum(found[step].bytes for step in newest[: len(kept) + 1]) > room


def write_steps(checkpoints: Path, *steps: int) -> None:
    for step in steps:
        directory = checkpoint_path(checkpoints, step)
        directory.mkdir()
        (directory / "policy.pt").write_text("weights")
        write_manifest(directory, step)


@pytest.mark.parametrize("rule", [Retention(1), Retention(9, bytes=1)])
def test_the_checkpoint_just_written_stays_whatever_later_one_seems_whole(
    tmp_path: Path, rule: Retention
) -> None:
    write_steps(tmp_path, 1, 2, 3)
    retention.apply(tmp_path, rule, newest=2)
    assert steps_on_disk(tmp_path) == [3, 2]


def test_a_checkpoint_that_is_being_deleted_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_steps(tmp_path, 1, 2)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed right there
    retention.apply(tmp_path, Retention(1), newest=2)
    assert fault_of(checkpoint_path(tmp_path, 1)) == "no manifest: it was never finished"
    assert newest_checkpoint(tmp_path) == 2


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = tiny.config(
        tmp_path_factory.mktemp("trained") / "run",
        max_steps=4,
        save_steps=1,
        max_ckpt_num=3,
        save_hf_ckpt=True,
        eval_dataset=tiny.held_out,
    )
    train(config)
    return config


def test_as_many_whole_checkpoints_stay_as_are_wanted(trained: Config) -> None:
    assert steps_on_disk(trained.checkpoints) == [4, 3, 2]
    assert [fault_of(checkpoint_path(trained.checkpoints, s)) for s in (4, 3, 2)] == [None] * 3


def test_a_checkpoint_holds_the_exported_model_where_wanted(trained: Config) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for directory in (trained.exported, checkpoint_path(trained.checkpoints, 4) / "hf"):
        AutoModelForCausalLM.from_pretrained(directory)
        assert AutoTokenizer.from_pretrained(directory)("1+1=")["input_ids"]


def test_starting_afresh_over_checkpoints_is_refused(tiny: Tiny, trained: Config) -> None:
    with pytest.raises(ResumeError, match="--load_checkpoint"):
        train(tiny.config(trained.files.root, load_checkpoint=False))


def test_a_run_goes_on_from_a_step_that_is_named_as_if_no_later_one_had_been(
    tiny: Tiny, run_dir: Path
) -> None:
    flags = {"save_steps": 1, "max_ckpt_num": 9, "init_kl_coef": 0, "advantage_estimator": "rloo"}
    config = tiny.config(run_dir, **flags)
    train(config)

    def weights() -> list[str]:
        paths = [checkpoint_path(config.checkpoints, step) / MANIFEST for step in (3, 4)]
        manifests = [json.loads(path.read_text()) for path in paths]
        return [one["files"]["policy.pt"]["sha256"] for one in manifests]

    before = weights()
    with pytest.raises(
        ResumeError, match="global_step_7 is not a complete checkpoint: no manifest"
    ):
        train(tiny.config(run_dir, **flags, load_step=7))
    assert train(tiny.config(run_dir, **flags, load_step=2)).step == 4
    assert weights() == before
    train(tiny.config(run_dir, **flags, max_steps=5))  # from the newest, where none is named
    assert [one["details"]["step"] for one in events(config, "resume")] == [0, 2, 4]
    skipped = [one["details"]["step"] for one in events(config, "checkpoint-skipped")]
    assert skipped == [4, 3]


def test_a_checkpoint_that_a_named_step_has_left_is_not_called_broken(
    tiny: Tiny, run_dir: Path
) -> None:
    flags = {"save_steps": 1, "max_ckpt_num": 9, "init_kl_coef": 0, "advantage_estimator": "rloo"}
    config = tiny.config(run_dir, **flags)
    train(config)
    checkpoint_path(config.checkpoints, 9).mkdir()
    with pytest.raises(RuntimeError, match="dies"):
        train(tiny.config(run_dir, **flags, load_step=2), dying_at(1))
    skipped = [one["details"]["step"] for one in events(config, "checkpoint-skipped")]
    assert skipped == [4, 3]  # that of step 9 never was one
    again = "2 steps are repeated, because --load_step asks for it."
    assert events(config, "resume")[-1]["sentence"].endswith(again)
    back = tiny.config(run_dir, **flags, load_step=4)
    with pytest.raises(ResumeError, match="it was put aside when --load_step went back"):
        train(back)
    left = checkpoint_path(config.checkpoints, 4)
    (left / "MANIFEST.left.json").rename(left / MANIFEST)
    assert train(back).step == 4


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda d: (d / MANIFEST).unlink(), "no manifest"),
        (lambda d: (d / MANIFEST).write_text('{"step": 4, "fil'), "manifest is damaged"),
        (lambda d: (d / "critic.pt").unlink(), "critic.pt is missing"),
        (lambda d: (d / "policy.pt").write_bytes(b"short"), "policy.pt has 5 bytes"),
        (lambda d: flip_a_bit(d / "policy.pt"), "policy.pt does not have the checksum"),
    ],
)
def test_a_broken_checkpoint_is_named_and_skipped(
    tiny: Tiny, run_dir: Path, damage: Callable[[Path], object], fault: str
) -> None:
    train(tiny.config(run_dir, max_steps=2, save_steps=1))
    damage(checkpoint_path(run_dir / "checkpoints", 2))
    config = tiny.config(run_dir, max_steps=2, load_checkpoint=True)
    train(config)
    skipped = events(config, "checkpoint-skipped")
    assert [event["details"]["step"] for event in skipped] == [2]
    assert fault in skipped[0]["sentence"]
    assert events(config, "resume")[-1]["details"]["step"] == 1
    assert fault_of(checkpoint_path(config.checkpoints, 2)) is None
    # The curve has each step once, though step 2 was made twice.
    assert [row["step"] for row in metric_rows(config) if "train/reward" in row] == [1, 2]


@pytest.mark.parametrize("writable", [True, False])
def test_what_is_written_after_a_broken_checkpoint_was_passed_over_is_kept(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, *, writable: bool
) -> None:
    if not writable:  # the broken one stays as it is
        monkeypatch.setattr(manifest, "BROKEN", "no/such/directory")
    flags = {"max_ckpt_num": 1, "advantage_estimator": "group_norm", "init_kl_coef": 0}
    train(tiny.config(run_dir, **flags, max_steps=3))
    broken = checkpoint_path(run_dir / "checkpoints", 3)
    flip_a_bit(broken / "policy.pt")
    config = tiny.config(run_dir, **flags, max_steps=3, save_steps=1, load_checkpoint=True)
    with pytest.raises(RuntimeError, match="dies"):
        train(config, dying_at(3))
    assert newest_checkpoint(config.checkpoints) == 2
    assert (fault_of(broken, checksums=False) is None) is not writable


def test_a_finished_run_resumes_to_its_end_and_changes_nothing(tiny: Tiny, trained: Config) -> None:
    before = (checkpoint_path(trained.checkpoints, 4) / "policy.pt").read_bytes()
    again = tiny.config(
        trained.files.root, max_steps=4, load_checkpoint=True, eval_dataset=tiny.held_out
    )
    state = train(again)
    assert state.step == 4
    assert state.eval_before is not None
    assert (checkpoint_path(trained.checkpoints, 4) / "policy.pt").read_bytes() == before
    assert json.loads(trained.files.progress.read_text())["step"] == 4


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
def test_a_run_that_has_more_steps_than_its_flags_ask_for_is_finished(
    tiny: Tiny, run_dir: Path, ahead: bool
) -> None:
    way = {"async_train": True} if ahead else {}
    train(tiny.config(run_dir, max_steps=2, **way))
    fewer = tiny.config(run_dir, max_steps=1, eval_dataset=tiny.held_out, **way)
    state = train(fewer, dying_at(9))
    assert (state.step, state.evaluated) == (2, 2)
    assert steps_on_disk(fewer.checkpoints) == [2]
    told = [event["sentence"] for event in events(fewer, "resume")]
    assert told[-1] == "No step is left: the run has 2, and its flags ask for 1."


def test_a_step_waits_for_the_copy_alone_and_the_next_checkpoint_for_the_one_before(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits, save = threading.Event(), state.save

    def slowly(*arguments: Any) -> WrittenFile:
        assert waits.wait(60)
        return save(*arguments)

    def say(words: str, **options: Any) -> None:
        print(words, **options)
        if words.startswith("The next checkpoint waits until that of step 2 "):
            waits.set()

    monkeypatch.setattr(state, "save", slowly)
    monkeypatch.setattr(checkpointer, "print", say, raising=False)
    flags = {"advantage_estimator": "group_norm", "init_kl_coef": 0}
    config = tiny.config(run_dir, max_steps=5, save_steps=2, max_ckpt_num=9, **flags)
    train(config)
    told = [
        (event["kind"], event["details"]["step"])
        for event in read_events(config.files.journal)
        if event["kind"] in ("step", "checkpoint")
    ]
    assert told.index(("step", 3)) < told.index(("checkpoint", 2)) < told.index(("checkpoint", 4))
    assert [step for kind, step in told if kind == "checkpoint"] == [2, 4, 5]
    assert [fault_of(checkpoint_path(config.checkpoints, s)) for s in (2, 4, 5)] == [None] * 3
    assert capsys.readouterr().out.count("The next checkpoint waits until") == 1
    first = events(config, "checkpoint")[0]["details"]
    assert first["stall_seconds"] < first["seconds"] / 2


@pytest.mark.parametrize("alone", [False, True])
def test_training_goes_on_while_the_exported_model_of_its_own_step_is_written(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    flags = {"advantage_estimator": "group_norm", "init_kl_coef": 0, "save_hf_ckpt": True}
    config = tiny.config(run_dir, max_steps=3, save_steps=2, disable_ds_ckpt=alone, **flags)
    made: list[int] = []

    def slowly(model: Any, tokenizer: Any, directory: Path, **weights: Any) -> list[WrittenFile]:
        if directory != config.exported:
            time.sleep(1.5)
            assert newest_checkpoint(config.checkpoints) in (None, 2), "it is confirmed last"
            assert not directory.exists()
            made.append(len(events(config, "step")))
        return write(model, tokenizer, directory, **weights)

    write = hf_export.write
    monkeypatch.setattr(hf_export, "write", slowly)
    train(config)
    assert made == [3, 3]
    if alone:
        assert load_file(config.checkpoints / "global_step_2_hf/model.safetensors")
        return
    directory = checkpoint_path(config.checkpoints, 2)
    assert all(e["details"]["stall_seconds"] < 1.2 for e in events(config, "checkpoint"))
    listed = json.loads((directory / MANIFEST).read_text())["files"]
    model = directory / "hf" / "model.safetensors"
    assert listed["hf/model.safetensors"]["sha256"] == sha256(model)
    trained = torch.load(directory / "policy.pt", weights_only=True)["model"]
    for name, tensor in load_file(model).items():
        assert torch.equal(tensor, trained[name])


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_the_next_step(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut a library's file
    config = tiny.config(run_dir, max_steps=6, save_steps=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, before[1]))  # as if the disk were full
    try:
        with pytest.raises(OSError, match="File too large"):
            train(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert events(config, "step")[-1]["details"]["step"] in (2, 3, 4)
    assert newest_checkpoint(config.checkpoints) is None
    assert events(config, "checkpoint") == []
