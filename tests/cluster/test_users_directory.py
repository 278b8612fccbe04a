"""A run in a user's directory that has folders of the product's own names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from entrypoint.net.port_block import PortBlock
from tests.support.node_cluster import HEAD, Cluster, result
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

BROKEN = "raise RuntimeError('the user\\'s own package was imported')\n"
REWARD = """
from helper import WORTH


def reward_func(queries, prompts, labels):
    return [WORTH] * len(queries)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "users"
    for name in ("contract", "entrypoint", "env", "trainer"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text(BROKEN)
    (here / "helper.py").write_text("WORTH = 0.25\n")
    (here / "reward.py").write_text(REWARD)
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def cluster(tmp_path: Path, directory: Path) -> Iterator[Cluster]:
    """One node without the tests' fork server: each process searches the path for itself."""
    job = tiny_job(tmp_path, 2)
    job[job.index("arithmetic")] = "reward.py"
    with PortBlock() as port:
        server = f"{sys.executable} -m env.server --task arithmetic --host 127.0.0.2 --port {port}"
        env = {
            "ROLLCALL_RECIPE": "builtin",
            "ROLLCALL_REWARD_URL": f"http://127.0.0.2:{port}/get_reward",
            "ROLLCALL_REWARD_COMMAND": server,
        }
        with closing(Cluster(tmp_path / "run", workers=0, job=job, **env)) as cluster:
            cluster.plain = True
            yield cluster


def test_node_service_driver_and_workers_of_ray_are_the_products_own(cluster: Cluster) -> None:
    cluster.start(HEAD)
    assert cluster.exit_codes(within=300) == {HEAD: 0}, cluster.consoles()
    told = result(cluster)
    assert (told["outcome"], told["steps"], told["attempts"]) == ("finished", 2, 1)
    assert told["reward_last"] == 0.25
    assert "on 127.0.0.2 port" in (cluster.run.logs / "reward.log").read_text()
