"""What the nodes hold in memory is gone on from, under the supervisor's eyes."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.process import kill
from tests.cluster.harness import HEAD, Cluster
from tests.cluster.tiny import tiny_job
from tests.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEPS = 60


def test_a_killed_driver_goes_on_from_the_last_finished_step_with_no_checkpoint_on_disk(
    tmp_path: Path,
) -> None:
    job = tiny_job(tmp_path, STEPS)
    cluster = Cluster(tmp_path / "run", workers=1, job=job, ROLLCALL_RECIPE="builtin")
    try:
        cluster.start(HEAD, 1)
        cluster.until(lambda: cluster.step >= 4, "step 4", within=120)
        (driver,) = cluster.named(HEAD, "trainer")
        kill([driver])
        assert cluster.exit_codes(within=120) == {HEAD: 0, 1: 0}, cluster.consoles()
    finally:
        cluster.close()
    assert_no_step_is_lost_or_done_twice(cluster.run)
    first, second = cluster.events("resume")
    killed_at = max(e["details"]["step"] for e in cluster.events("step") if e["attempt"] == 1)
    assert first["details"]["step"] == 0
    # One more may have arrived before the driver could tell of it.
    assert second["details"]["step"] in (killed_at, killed_at + 1)
    assert [e["details"]["step"] for e in cluster.events("checkpoint")] == [STEPS]
