"""Several ranks train one model as one would: sharding does not matter."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from env.prepare.model import TinyModel, write_model
from tests.trainer.ranks import ROLES, Said, Workbench, experience, settings
from trainer import placement, shares
from trainer.actors.base import Sharding
from trainer.actors.group import Group
from trainer.actors.ray_group import RayLauncher
from trainer.checkpoint import state
from trainer.checkpoint.state import State

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Benches = dict[int, Group[Workbench]]


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    # Ray's socket names must be short: pytest's own directories are too deep.
    directory = Path(tempfile.mkdtemp(prefix="ray-"))
    before = dict(os.environ)
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {"RAY_TMPDIR": str(directory), "OMP_NUM_THREADS": "1"}
    placement.join(7)
    launcher = RayLauncher(placement.reserve(7), timeout=120)
    yield {
        count: launcher.launch_ranks(f"bench{count}", "tests.trainer.ranks:Workbench", count)
        for count in (1, 2, 4)
    }
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its vectors of 10 divide by neither 4 ranks nor a power of them."""
    path = tmp_path_factory.mktemp("model") / "model"
    shape = TinyModel(hidden_size=10, layers=2, heads=1, max_length=32)
    write_model(shape, "0123456789+=", path)
    return path


def taught(bench: Group[Workbench], role: str, directory: Path, made: Any) -> tuple[Said, State]:
    """What all ranks together said in a lesson of two steps, and what they saved after it."""
    directory.mkdir(parents=True)
    bench.together(Workbench.build, role, made).result()
    of_each = bench.together(Workbench.lesson, [1, 2]).result()
    bench.together(Workbench.save, directory).result()
    return whole(of_each), state.load(directory, role)


def whole(of_each: list[Said]) -> Said:
    lengths = experience(0).sequences.lengths
    return Said(
        shares.merged([said.before for said in of_each], lengths),
        [shares.merged_metrics(step) for step in zip(*(s.metrics for s in of_each), strict=True)],
        shares.merged([said.after for said in of_each], lengths),
    )


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
        for name in mine.keys() - {f"{role}{shares.PEAK}" for role in ROLES}:
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


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 4])
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
