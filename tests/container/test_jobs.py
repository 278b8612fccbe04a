"""A container that waits for jobs, and what a user types in its shell."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.container.cluster import Cluster
from tests.support.podman import IMAGE, run_once

pytestmark = [pytest.mark.container, pytest.mark.timeout(300)]


def test_jobs_and_rays_own_commands_need_no_flags_in_a_shell_of_the_head(
    tmp_path: Path, data: Path
) -> None:
    with Cluster(tmp_path / "cluster", data) as cluster:
        port = {"ROLLCALL_CONTROL_PORT": "9267"}  # no default, so that commands must know it
        head = cluster.head(workers=0, ROLLCALL_WAIT_FOR_JOBS="1", **port)
        takes = "the cluster takes jobs"
        cluster.watch.until(lambda: takes in head.said, "head that takes jobs", within=120)
        done = head.execute("rollcall", "submit", "--", "python", "-c", "print(6 * 7)")
        assert done.returncode == 0, done.stderr
        assert "42" in done.stdout.splitlines()
        status = partial(head.execute, "ray", "status")  # of every few seconds
        cluster.watch.until(lambda: "Resources" in status().stdout, "Ray's status", within=60)
        assert "job-1-1" in head.execute("ray", "job", "list").stdout
        ssh = partial(head.execute, "bash", "-c")  # a login by SSH has nothing of the template
        assert "as a login by SSH does" in ssh('env -i PATH="$PATH" rollcall plan').stderr
        assert "job-1 " in ssh('env -i PATH="$PATH" rollcall list').stdout
        assert ssh('env -i PATH="$PATH" rollcall stop').returncode == 0
        assert head.exit_code(within=60) == 143


def test_a_ray_that_is_started_past_the_entrypoint_needs_no_token() -> None:
    """As pyxis and `docker run --entrypoint bash` do; nothing of Rollcall runs there."""
    ray = "ray start --head --num-cpus 1 --include-dashboard false && ray status"
    program = "import ray; ray.init(address='auto'); print(ray.cluster_resources()['CPU'])"
    words = ("--entrypoint", "bash", IMAGE, "-c", f'{ray} && python -c "{program}"')
    done = run_once(*words, within=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1.0" in done.stdout.splitlines()
