"""What ranks say of their time: a rank that waits for a slow one is not slow itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.benches import Benches
from tests.support.ranks import Workbench, settings
from trainer.config.options.parallelism import Sharding

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SLOW_SECONDS = 0.5
"""Far more than a pass of the tiny model, also on a busy machine."""


@pytest.mark.parametrize(
    ("role", "stage"),
    [
        *(("policy", 0), ("policy", 2), ("critic", 3)),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (("critic", 0), ("critic", 1), ("policy", 1), ("critic", 2), ("policy", 3))
        ),
    ],
)
def test_the_wait_for_a_slow_rank_is_not_counted(
    benches: Benches, model: Path, role: str, stage: int
) -> None:
    group = benches[2]
    group.call_ranks(Workbench.build, role, settings(model, Sharding(zero_stage=stage))).result()
    group.call_ranks(Workbench.slow_down, [1], SLOW_SECONDS).result()
    waiting, slow = group.call_ranks(Workbench.times, 1).result()
    assert slow.seconds >= SLOW_SECONDS
    assert waiting.seconds < slow.seconds / 2
    assert (waiting.rank, slow.rank) == (0, 1)
    assert waiting.work > 0
    assert slow.work > 0
    assert waiting.device == slow.device
