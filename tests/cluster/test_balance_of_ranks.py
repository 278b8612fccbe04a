"""Several ranks balance the experts of a mixture as one would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.benches import Benches
from tests.support.mixtures import write_mixture
from tests.support.ranks import Workbench, settings
from trainer.algorithms import batching
from trainer.checkpoint import state
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import whole_of
from trainer.config.options.parallelism import Sharding
from trainer.types import Metrics

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("role", "stages"), [pytest.param("policy", (0, 3), marks=pytest.mark.faults), ("critic", (2,))]
)
def test_neither_ranks_nor_stages_matter_to_the_balance_of_experts(
    benches: Benches, tmp_path: Path, role: str, stages: tuple[int, ...]
) -> None:
    """Passes of one sample each are the same on any number of ranks."""
    model = write_mixture("qwen3_moe", tmp_path / "model")

    def taught(ranks: int, stage: int) -> tuple[list[Metrics], State]:
        directory = tmp_path / f"{ranks}-{stage}"
        directory.mkdir()
        made = settings(model, Sharding(zero_stage=stage), gradient_checkpointing=stage == 3)
        bench = benches[ranks]
        bench.call_ranks(Workbench.build, role, made).result()
        said = bench.call_ranks(Workbench.lesson, [1, 2]).result()
        bench.call_ranks(Workbench.save, directory).result()
        of_each = zip(*(one.metrics for one in said), strict=True)
        return [batching.combine_metrics(step) for step in of_each], state.load(directory, role)

    expected, alone = taught(1, 0)
    for stage in stages:
        metrics, together = taught(2, stage)
        for mine, theirs in zip(metrics, expected, strict=True):
            balance = mine[f"{role}_aux_loss"]
            assert balance > 1
            assert balance == pytest.approx(theirs[f"{role}_aux_loss"], rel=1e-5)
        for name, tensor in alone.model.items():
            found = whole_of(together.model[name])
            torch.testing.assert_close(found, whole_of(tensor), rtol=0, atol=1e-5)
