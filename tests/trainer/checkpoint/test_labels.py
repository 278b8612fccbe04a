"""What is written of held memory: it comes back as it was, or is left out; nothing in it runs."""

from __future__ import annotations

import json
import logging
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.files import fd_store
from contract.files.fd_store import FdStore
from tests.support.damage import damaged, flipped
from tests.support.sheets import sheet, sheet_of
from trainer.checkpoint import labels
from trainer.checkpoint.labels import LabelError
from trainer.checkpoint.memory_shards import Contents, ShardManifest, newest_complete
from trainer.checkpoint.replica_store import ReplicaStore
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.checkpoint.staging import state_in
from trainer.checkpoint.writer import RunState
from trainer.cluster.shared_memory import Entry, Segment
from trainer.config.options.optimizer import OptimizerSettings
from trainer.types import SnapshotLostError
from trainer.workers.optimizer import scheduler_of

FUZZED = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def full() -> ShardManifest:
    """With all that a sheet may have."""
    entries = (
        Entry("model//embed.weight", "bfloat16", (4, 8), 0),
        Entry("adam/embed.weight/step", "float32", (), 64),
    )
    return replace(
        sheet(3, "policy", 0),
        in_flight=bytes(range(256)),
        contents=Contents(
            entries,
            {"last_epoch": 3, "_last_lr": [1e-6 / 3]},
            68,
            {"embed.weight": (32, (16, 8))},
        ),
        digests=("0" * 32,),
    )


def test_sheets_come_back_as_they_were() -> None:
    sheets = [full(), replace(full(), role="critic", in_flight=None)]
    assert labels.parse(labels.dump(sheets)) == sheets


def test_a_label_of_the_version_before_has_whole_tensors_alone() -> None:
    row = labels._row(full())
    del row["pieces"]
    before = forged(json.dumps([row]).encode()).replace(b"label-2", b"label-1", 1)
    (found,) = labels.parse(before)
    assert found == replace(full(), contents=replace(full().contents, pieces={}))


@pytest.mark.parametrize("name", ["cosine_with_min_lr", "linear", "constant_with_warmup"])
def test_a_schedulers_state_comes_back_to_the_bit(name: str) -> None:
    settings = OptimizerSettings(
        learning_rate=1e-3 / 3,
        lr_scheduler=name,
        lr_warmup_ratio=0.1,
        l2=0.0,
        max_norm=1.0,
    )
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    scheduler = scheduler_of(adam, settings, updates=30)
    for _ in range(7):
        adam.step()
        scheduler.step()
    state = scheduler.state_dict()
    one = replace(full(), contents=replace(full().contents, scheduler=state))
    assert labels.parse(labels.dump([one]))[0].contents.scheduler == state


@FUZZED
@given(st.integers(0, 8 * len(labels.dump([full()])) - 1))
def test_no_flipped_bit_of_a_label_goes_unseen(bit: int) -> None:
    with pytest.raises(LabelError):
        labels.parse(flipped(labels.dump([full()]), bit))


def test_a_label_with_a_data_type_that_is_unknown_is_refused_by_its_name() -> None:
    other = Contents((Entry("model//embed.weight", "float4", (4,), 0),), {}, 68)
    label = labels.dump([replace(full(), contents=other)])
    with pytest.raises(LabelError, match="data type 'float4', which is unknown here"):
        labels.parse(label)


def test_a_copy_in_memory_with_a_data_type_that_is_unknown_is_lost_by_its_name() -> None:
    other = Contents((Entry("model//embed.weight", "float4", (4,), 0),), {}, 68)
    with pytest.raises(SnapshotLostError, match="data type 'float4', which is unknown here"):
        state_in(bytearray(68), other)


def forged(rows: bytes) -> bytes:
    """With the right checksum."""
    return b"%s %s\n%s" % (labels.FORMAT, labels._digest(rows), rows)


@FUZZED
@given(damaged(labels._row(full())), st.booleans())
def test_a_label_of_any_shape_is_read_or_left_out(
    tmp_path_factory: pytest.TempPathFactory, row: bytes, whole: bool
) -> None:
    directory = tmp_path_factory.getbasetemp() / "kept" / "a run"
    directory.mkdir(parents=True, exist_ok=True)
    body = b"[%s]" % row if whole else row
    (directory / f"one{fd_store.LABEL}").write_bytes(forged(body))
    found = SpilledReplicas(directory.parent, "a run")
    for one in found.manifests():
        assert (directory / one.name).parent == directory
        assert RunState.parse(one.run_state).step >= 0
        with pytest.raises(OSError, match="No such file"):
            found.read(one)
    newest_complete(found.manifests())


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_the_run_directory_is_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    went_off, kept = tmp_path / "went off", tmp_path / "a run"
    kept.mkdir()
    (kept / f"one{fd_store.LABEL}").write_bytes(pickle.dumps([Bomb(went_off)]))
    (kept / f"two{fd_store.LABEL}").write_bytes(labels.dump([full()]))
    with caplog.at_level(logging.WARNING):
        assert SpilledReplicas(tmp_path, "a run").manifests() == [full()]
    assert not went_off.exists()
    assert "one.label cannot be read and is ignored: it is of another version" in caplog.text


def test_a_pickle_in_the_fd_store_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    went_off, path = tmp_path / "went off", tmp_path / "fd_store" / "socket"
    monkeypatch.setenv(fd_store.VARIABLE, str(path))
    segment = Segment(9)
    with FdStore(path):
        for label in (
            pickle.dumps([Bomb(went_off)]),
            labels.dump([sheet_of(Segment(99), 1)]),  # more than there is
            labels.dump([]),
        ):
            fd_store.deposit("a run", label, {"one": segment.descriptor})
            caplog.clear()
            assert ReplicaStore(1000, "a run", goes_on=True).manifests() == []
            assert "the shards of the previous Ray are ignored" in caplog.text
    assert not went_off.exists()


def test_a_share_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / full().name).write_bytes(b"short")
    with pytest.raises(OSError, match="fewer than 68 bytes"):
        SpilledReplicas(tmp_path, "a run").read(full())


@FUZZED
@given(damaged(json.loads(RunState(step=3, seed=0, prompts={"epoch": 0}).dump())))
def test_a_state_of_a_run_is_read_or_refused(content: bytes) -> None:
    try:
        state = RunState.parse(content.decode())
    except ValueError:
        return
    assert state.step >= 0
