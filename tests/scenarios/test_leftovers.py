"""A daemon that a job leaves on the head: it is ended before the next attempt, and told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil

from entrypoint.job.ray_jobs import JobInfo
from entrypoint.processes.process import marks
from tests.support.world import DIED, FINISHED, World, ends


def test_what_a_job_leaves_behind_is_ended_and_told_before_the_next_attempt(
    tmp_path: Path,
) -> None:
    daemons: list[subprocess.Popen[bytes]] = []

    def leaves(world: World) -> JobInfo:
        env = {**os.environ, **marks(world.settings.node_mark), "ROLLCALL_ATTEMPT": "1"}
        daemons.append(subprocess.Popen(["sleep", "60"], env=env, start_new_session=True))
        return DIED

    world = World(tmp_path, leaves, ends(FINISHED))
    assert world.lives().name == "finished"
    (left,) = world.sentences("left-over")
    assert left == (
        f"the job, which has ended, has left 1 process ({daemons[0].pid}: sleep 60) on this node: "
        "ended"
    )
    assert world.kinds().index("left-over") < world.kinds().index("failure")
    assert not psutil.pid_exists(daemons[0].pid)
