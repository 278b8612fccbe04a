"""What an engine holds of the GPUs that it sits on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster import rescheduling
from trainer.cluster.bin_packing import pack
from trainer.cluster.placement import Placement
from trainer.cluster.rescheduling import Rescheduler
from trainer.config import layout
from trainer.config.config import Config

GPUS = [NodeResources(name="here", cpus=32, gpus=8)]
NUCLEUS = {"top_p": 0.9, "temperature": 0.8}


def gpus_of_the_actor(config: Config) -> float:
    planned = Placement(pack(layout.of(config), GPUS), None, {})
    held: float = Rescheduler(planned).options("engine", 0)["num_gpus"]
    return held


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescheduling, "PlacementGroupSchedulingStrategy", lambda *_, **__: None)


@pytest.mark.parametrize("flags", [{"rollout_engine": "hf"}, NUCLEUS])
def test_a_transformers_engine_holds_a_gpu_whatever_vllm_s_ranks_would_be(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any]
) -> None:
    config = tiny.config(run_dir, vllm_tensor_parallel_size=2, **flags)
    assert gpus_of_the_actor(config) > 0
    assert any("--vllm_tensor_parallel_size" in said for said in config.warnings)


def test_the_parent_of_vllm_s_ranks_holds_none(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, vllm_tensor_parallel_size=2, rollout_engine="vllm")
    assert gpus_of_the_actor(config) == 0
