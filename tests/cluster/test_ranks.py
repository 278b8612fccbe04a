"""Several ranks train one model as one would: sharding does not matter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
import ray
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from contract.manifest import write_manifest
from tests.support.benches import Benches
from tests.support.ragged import together
from tests.support.ranks import (
    ADAPTERS,
    ROLES,
    Said,
    Workbench,
    experience,
    saved_in,
    settings,
    taught,
    whole,
)
from trainer.algorithms import batching
from trainer.checkpoint.head_file_store import FileStore
from trainer.checkpoint.protocol import HeadDirectory
from trainer.checkpoint.state import State
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings
from trainer.types import SilentRankError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def same(one: State, other: State, tolerance: float = 1e-5) -> None:
    assert one.model.keys() == other.model.keys()
    assert one.adam.keys() == other.adam.keys()
    for name, tensor in one.model.items():
        torch.testing.assert_close(tensor, other.model[name], rtol=0, atol=tolerance)
    for name, held in one.adam.items():
        for key, value in held.items():
            torch.testing.assert_close(value, other.adam[name][key], rtol=1e-3, atol=tolerance)
    assert one.scheduler == other.scheduler


def alike(one: Said, other: Said, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(one.before, other.before, atol=tolerance)
    np.testing.assert_allclose(one.after, other.after, atol=10 * tolerance)
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        for name in (name for name in mine if not name.endswith(batching.PEAK)):
            assert mine[name] == pytest.approx(theirs[name], rel=10 * tolerance, abs=tolerance), (
                name
            )


@pytest.fixture(scope="module")
def alone(
    benches: Benches, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Said, State]]:
    """The same lesson on one rank that shares nothing."""
    root = tmp_path_factory.mktemp("alone")
    made = settings(model, Sharding())
    return {role: taught(benches[1], role, root / role, made) for role in ROLES}


Alone = Callable[..., tuple[Said, State]]


@pytest.fixture(scope="module")
def policy_alone(benches: Benches, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What a policy learns on one rank that shares nothing, by the changes to its settings."""
    known: dict[str, tuple[Said, State]] = {}

    def learned(**changes: Any) -> tuple[Said, State]:
        if (key := str(changes)) not in known:
            made = settings(model, Sharding(), **changes)
            root = tmp_path_factory.mktemp("alone") / "policy"
            known[key] = taught(benches[1], "policy", root, made)
        return known[key]

    return learned


@pytest.mark.parametrize(
    ("count", "stage", "role"),
    [
        *((2, 1, "critic"), (2, 2, "policy"), (2, 3, "policy"), (4, 0, "critic")),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (
                *((1, 1, "policy"), (1, 3, "critic"), (2, 0, "policy")),
                *((4, 1, "policy"), (4, 2, "critic"), (4, 3, "critic")),
            )
        ),
    ],
)
def test_sharding_does_not_matter(
    benches: Benches,
    model: Path,
    alone: dict[str, tuple[Said, State]],
    tmp_path: Path,
    count: int,
    stage: int,
    role: str,
) -> None:
    made = settings(model, Sharding(zero_stage=stage))
    said, saved = taught(benches[count], role, tmp_path / "saved", made)
    expected, state_alone = alone[role]
    same(saved, state_alone)
    alike(said, expected)
    assert all(
        step["grad_norm" if role == "policy" else "critic_grad_norm"] > 0.3 for step in said.metrics
    )


def test_zero_stage_1_reduces_gradients_once_an_update_and_stage_2_after_every_pass(
    benches: Benches, model: Path
) -> None:
    """A step has two updates, each of three passes on a rank: six samples of two ranks."""
    of_stage = {}
    for stage in (1, 2):
        benches[2].call_ranks(
            Workbench.build, "policy", settings(model, Sharding(zero_stage=stage))
        ).result()
        of_stage[stage] = benches[2].call_ranks(Workbench.reduced, 1).result()[0]
    assert of_stage == {1: pytest.approx(2, abs=0.1), 2: pytest.approx(6, abs=0.1)}


@pytest.mark.parametrize(("stage", "adam_offload"), [(2, True), (3, False)])
def test_a_model_that_sleeps_between_two_calls_learns_the_same_and_is_saved_whole(
    benches: Benches,
    model: Path,
    alone: dict[str, tuple[Said, State]],
    tmp_path: Path,
    stage: int,
    adam_offload: bool,
) -> None:
    """DeepSpeed goes the way here that it goes on a GPU, though nothing gets far."""
    bench, sharding = benches[2], Sharding(zero_stage=stage, adam_offload=adam_offload)
    bench.call_ranks(Workbench.build, "policy", settings(model, sharding)).result()
    bench.call_ranks(Workbench.sleep_between_calls).result()
    for step in (1, 2):
        bench.call_ranks(Workbench.lesson, [step]).result()
        (tmp_path / str(step)).mkdir()
        bench.call_ranks(Workbench.save, tmp_path / str(step)).result()
    same(saved_in(tmp_path / "2", "policy"), alone["policy"][1])


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.faults), 3])
def test_a_model_with_adapters_sleeps_too(
    benches: Benches, model: Path, policy_alone: Alone, tmp_path: Path, stage: int
) -> None:
    """Most of its weights are frozen, and no part of what DeepSpeed counts."""
    sleeping = settings(model, Sharding(zero_stage=stage), lora=ADAPTERS)
    expected = policy_alone(lora=ADAPTERS)
    bench = benches[2]
    bench.call_ranks(Workbench.build, "policy", sleeping).result()
    bench.call_ranks(Workbench.sleep_between_calls).result()
    said = whole(bench.call_ranks(Workbench.lesson, [1, 2]).result())
    assert bench.call_ranks(Workbench.stays_awake).result() == [[], []]
    (tmp_path / "saved").mkdir()
    bench.call_ranks(Workbench.save, tmp_path / "saved").result()
    same(saved_in(tmp_path / "saved", "policy"), expected[1])
    alike(said, expected[0])


WAYS: dict[str, tuple[int, Sharding, dict[str, Any]]] = {
    **{
        f"optimizer on the CPU, stage {stage}": (
            2,
            Sharding(zero_stage=stage, adam_offload=True),
            {},
        )
        for stage in (2, 3)
    },
    "communication while computing, stage 2": (2, Sharding(zero_stage=2, overlap_comm=True), {}),
    "communication while computing, stage 3": (2, Sharding(zero_stage=3, overlap_comm=True), {}),
    "weights in groups of two ranks": (4, Sharding(zero_stage=3, zpg=2), {}),
    "several samples in a pass": (2, Sharding(zero_stage=3), {"micro_train_batch_size": 3}),
    "passes under a budget of tokens": (
        2,
        Sharding(zero_stage=3),
        {"use_dynamic_batch": True, "train_max_tokens_per_gpu": 14},
    ),
    "gradient checkpointing, stage 3": (
        2,
        Sharding(zero_stage=3),
        {"gradient_checkpointing": True},
    ),
    "adapters, stage 1": (2, Sharding(zero_stage=1), {"lora": ADAPTERS}),
    "adapters, stage 3": (2, Sharding(zero_stage=3), {"lora": ADAPTERS}),
    "moving average, whole": (2, Sharding(), {"enable_ema": True, "ema_beta": 0.9}),
    "moving average, stage 2": (2, Sharding(zero_stage=2), {"enable_ema": True, "ema_beta": 0.9}),
}


COVERED = (
    "optimizer on the CPU, stage 2",
    "communication while computing, stage 3",
    "several samples in a pass",
    "adapters, stage 3",
)
"""Another way or test tries the same at another stage, or more at this one."""


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=pytest.mark.faults) if way in COVERED else way for way in WAYS],
)
def test_a_way_to_train_changes_nothing_that_is_learned(
    benches: Benches, model: Path, policy_alone: Alone, tmp_path: Path, way: str
) -> None:
    count, sharding, changes = WAYS[way]
    expected = policy_alone(**changes)
    said, saved = taught(
        benches[count], "policy", tmp_path / "saved", settings(model, sharding, **changes)
    )
    same(saved, expected[1])
    alike(said, expected[0])


@pytest.mark.parametrize(
    ("stage", "grad_accum_dtype"),
    [
        *((1, "fp32"), (2, ""), (3, "fp32")),
        *(pytest.param(*case, marks=pytest.mark.faults) for case in ((0, ""), (2, "fp32"))),
    ],
)
def test_bf16_learns_what_one_rank_learns_in_bf16(
    benches: Benches,
    model: Path,
    policy_alone: Alone,
    tmp_path: Path,
    stage: int,
    grad_accum_dtype: str,
) -> None:
    sharding = Sharding(zero_stage=stage, grad_accum_dtype=grad_accum_dtype)
    expected = policy_alone(mixed_precision=True)
    said, saved = taught(
        benches[2], "policy", tmp_path / "saved", settings(model, sharding, mixed_precision=True)
    )
    assert all(tensor.dtype is torch.float32 for tensor in saved.model.values())
    learnt = np.abs(np.subtract(expected[0].after, expected[0].before)).max()
    np.testing.assert_allclose(said.after, expected[0].after, atol=learnt / 10)
    for mine, theirs in zip(said.metrics, expected[0].metrics, strict=True):
        assert mine["policy_loss"] == pytest.approx(theirs["policy_loss"], abs=1e-3)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.01)
        assert mine["actor_lr"] == theirs["actor_lr"]


@pytest.mark.parametrize(
    ("stage", "adapters"),
    [
        *((1, LoRASettings()), (2, ADAPTERS), (3, ADAPTERS)),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in ((0, ADAPTERS), (3, LoRASettings()))
        ),
    ],
)
def test_in_bf16_a_policy_that_has_learnt_nothing_has_no_kl_to_its_reference(
    benches: Benches, model: Path, stage: int, adapters: LoRASettings
) -> None:
    made = settings(model, Sharding(zero_stage=stage), mixed_precision=True, lora=adapters)
    scores = []
    for role in ("policy", "reference"):
        benches[2].call_ranks(Workbench.build, role, made).result()
        scores.append(np.concatenate(benches[2].call_ranks(Workbench.scores).result()))
    assert np.array_equal(*scores)
    assert scores[0].any()


@pytest.mark.parametrize("role", ["policy", pytest.param("critic", marks=pytest.mark.faults)])
def test_training_goes_on_at_another_number_of_ranks_and_another_stage(
    benches: Benches,
    model: Path,
    alone: dict[str, tuple[Said, State]],
    tmp_path: Path,
    role: str,
) -> None:
    """From 4 ranks and ZeRO-3 to 2 and ZeRO-1, back, to one alone, to 2 that share nothing."""
    plain = settings(model, Sharding())
    benches[1].call_ranks(Workbench.build, role, plain).result()
    benches[1].call_ranks(Workbench.lesson, [1, 2]).result()
    uninterrupted = whole(benches[1].call_ranks(Workbench.lesson, [3, 4, 5, 6, 7]).result())

    taught(benches[4], role, tmp_path / "0", settings(model, Sharding(zero_stage=3)))
    losses = []
    for number, (count, stage) in enumerate([(2, 1), (4, 3), (1, 0), (2, 0), (4, 2)], 1):
        bench = benches[count]
        made = settings(model, Sharding(zero_stage=stage))
        bench.call_ranks(Workbench.build, role, made).result()
        bench.call_ranks(Workbench.restore, tmp_path / str(number - 1)).result()
        losses += whole(bench.call_ranks(Workbench.lesson, [2 + number]).result()).metrics
        (tmp_path / str(number)).mkdir()
        bench.call_ranks(Workbench.save, tmp_path / str(number)).result()
    for mine, theirs in zip(losses, uninterrupted.metrics, strict=True):
        for name in (
            ("policy_loss", "actor_lr") if role == "policy" else ("critic_loss", "critic_lr")
        ):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-5), name


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        *((0, {"lora": ADAPTERS}), (2, {"mixed_precision": True})),
        pytest.param(2, {}, marks=pytest.mark.faults),
    ],
)
def test_an_average_that_was_not_kept_begins_at_the_weights_that_are_restored(
    benches: Benches, model: Path, tmp_path: Path, changes: dict[str, Any], stage: int
) -> None:
    bench, made = benches[2], settings(model, Sharding(zero_stage=stage), **changes)
    taught(bench, "policy", tmp_path / "saved", made)
    keeping = replace(made, train=replace(made.train, enable_ema=True, ema_beta=0.9))
    bench.call_ranks(Workbench.build, "policy", keeping).result()
    bench.call_ranks(Workbench.restore, tmp_path / "saved").result()
    trained = bench.call_ranks(Workbench.weights).result()[0]
    bench.call_ranks(Workbench.export, tmp_path / "exported").result()
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported
    for name, averaged in exported.items():
        expected = torch.from_numpy(trained[name])
        rounded = expected.dtype is torch.int16  # the bits of bf16; the average is kept in fp32
        expected = expected.view(torch.bfloat16).float() if rounded else expected
        torch.testing.assert_close(
            torch.from_numpy(averaged), expected, rtol=2**-8 if rounded else 0, atol=1e-6
        )


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.faults), 4])
def test_sharded_weights_are_whole_where_they_leave(
    benches: Benches, model: Path, tmp_path: Path, count: int
) -> None:
    made = settings(model, Sharding(zero_stage=3), lora=ADAPTERS)
    _, saved = taught(benches[count], "policy", tmp_path / "saved", made)
    first, *others = benches[count].call_ranks(Workbench.weights).result()
    assert others == [{}] * (count - 1)
    for of_rank in benches[count].call_ranks(Workbench.in_parts, 1000).result():
        assert [*of_rank] == [*first]
        for name, array in of_rank.items():
            np.testing.assert_array_equal(array, first[name])
    benches[count].call_ranks(Workbench.export, tmp_path / "exported").result()
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported.keys() == first.keys() == load_file(model / "model.safetensors").keys()
    for name, array in exported.items():
        np.testing.assert_array_equal(array, first[name])
    query = "model.layers.0.self_attn.q_proj"
    a, b = (saved.model[f"{query}.{name}"].numpy() for name in ("lora_a", "lora_b"))
    start = load_file(model / "model.safetensors")[f"{query}.weight"]
    assert np.abs(b).max() > 0
    merged: NDArray[Any] = first[f"{query}.weight"]
    np.testing.assert_allclose(merged, start + 2 * b @ a, atol=1e-6)


def test_weights_that_are_gathered_together_have_all_arrived(benches: Benches, model: Path) -> None:
    """DeepSpeed before 0.19.8 waited for the last of them alone, as if gloo kept an order."""
    made = settings(model, Sharding(zero_stage=3))
    benches[4].call_ranks(Workbench.build, "policy", made).result()
    assert benches[4].call_ranks(Workbench.torn, 100).result() == [0] * 4


@pytest.mark.parametrize("mixed_precision", [True, pytest.param(False, marks=pytest.mark.faults)])
def test_ranks_of_a_node_without_the_run_directory_read_their_own_parts_alone(
    benches: Benches, model: Path, tmp_path: Path, mixed_precision: bool
) -> None:
    made = settings(model, Sharding(zero_stage=3), mixed_precision=mixed_precision)
    said, saved = taught(benches[2], "policy", tmp_path / "saved", made)
    write_manifest(tmp_path / "saved", 1)
    store = ray.remote(FileStore).remote()
    there = HeadDirectory(tmp_path / "saved", store, node="another")
    benches[2].call_ranks(Workbench.build, "policy", made).result()
    benches[2].call_ranks(Workbench.restore, there).result()
    scores = benches[2].call_ranks(Workbench.scores).result()
    np.testing.assert_array_equal(together(scores, experience(0).sequences), said.after)
    (tmp_path / "again").mkdir()
    benches[2].call_ranks(Workbench.save, tmp_path / "again").result()
    same(saved_in(tmp_path / "again", "policy"), saved, tolerance=0)
    tensors = [*saved.model.values(), *(t for held in saved.adam.values() for t in held.values())]
    whole = sum(tensor.nbytes for tensor in tensors)
    assert 0.9 * whole < ray.get(store.sent.remote()) < 1.1 * whole


@pytest.mark.faults
def test_a_rank_that_is_stopped_is_named_within_the_timeout(
    benches: Benches, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of these ranks: one of them never comes back."""
    bench, timeout = benches[2], 60.0
    monkeypatch.setattr(cast(Any, bench)._heartbeat, "_timeout", timeout)
    bench.call_ranks(Workbench.build, "policy", settings(model, Sharding(zero_stage=2))).result()
    _, stopped = bench.call_ranks(Workbench.process).result()
    process = psutil.Process(stopped)
    os.kill(stopped, signal.SIGSTOP)
    try:
        since = time.monotonic()
        with pytest.raises(SilentRankError, match=f"rank critic-1 .*process {stopped}.* answer"):
            bench.call_ranks(Workbench.lesson, [1, 2]).result()
        assert time.monotonic() - since < timeout
        gone, _ = psutil.wait_procs([process], 10)
        assert gone, "it would keep its GPU"
    finally:
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGKILL)
