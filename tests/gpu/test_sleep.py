"""A learner that leaves a real GPU's memory between two calls."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.ranks import Workbench, settings
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings
from trainer.types import ALONE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
ADAPTERS = LoRASettings(rank=2, alpha=4, dropout=0.0, target_modules=("all-linear",))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "model"
    write_model(TinyModel(hidden_size=512, layers=4, heads=8, max_length=32), "0123456789+=", path)
    return path


def held() -> int:
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("changes", [{}, {"lora": ADAPTERS}, {"mixed_precision": True}])
@pytest.mark.parametrize("adam_offload", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_it_learns_the_same_and_holds_nothing_meanwhile(
    model: Path, stage: int, adam_offload: bool, changes: dict[str, Any]
) -> None:
    said = []
    for sleeps in (False, True):
        before = held()
        sharding = Sharding(zero_stage=stage, adam_offload=adam_offload, sleep=sleeps)
        bench = Workbench(ALONE)
        bench.build("policy", settings(model, sharding, **changes))
        said.append(bench.lesson([1, 2]))
        asleep = held() - before
        with bench._actor._engine.onloaded():
            awake = held() - before
        assert asleep < awake / 5 if sleeps else asleep == awake
        del bench
    np.testing.assert_allclose(said[0].after, said[1].after, atol=1e-3)
