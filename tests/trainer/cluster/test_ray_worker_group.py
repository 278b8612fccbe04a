"""What a worker's start waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster.bin_packing import pack
from trainer.cluster.placement import Placement
from trainer.cluster.ray_worker_group import RayLauncher, RayWorkerGroup
from trainer.config import layout


class Built:
    """Stands for a Ray actor; its `build` returns what it was asked to wait for."""

    load: Any
    build: Any

    def __init__(self, worker: int) -> None:
        self.load = self.build = self
        self._worker = worker

    def remote(self, actor: str, args: tuple[Any, ...] = (), before: Any = None) -> tuple[int, Any]:
        return self._worker, before and before[0]


@pytest.mark.parametrize(
    ("engines", "size", "waits_for"),
    [(4, 1, [None] * 4), (8, 1, [None] * 4 + [0, 1, 2, 3]), (4, 2, [None, None, 0, 1])],
)
def test_engines_that_share_a_gpu_start_one_after_the_other(
    tiny: Tiny,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    engines: int,
    size: int,
    waits_for: list[int | None],
) -> None:
    monkeypatch.setattr(RayWorkerGroup, "_host", lambda self, worker: Built(worker))
    config = tiny.config(
        run_dir,
        colocate_all_models=True,
        actor_num_gpus_per_node=4,
        vllm_num_engines=engines,
        vllm_tensor_parallel_size=size,
        rollout_engine="vllm",
    )
    nodes = [NodeResources(name="here", cpus=32, gpus=4)]
    planned = Placement(pack(layout.of(config), nodes), None, {})
    group = RayLauncher(planned, 60.0).launch("engine", "some:Engine", engines)
    assert isinstance(group, RayWorkerGroup)
    assert [before for _, before in group._built] == waits_for
