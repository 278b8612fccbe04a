"""One real node whose job is of the recipe `verl`, in an environment that only its Python has."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MAIN = """
import sys
import ray

@ray.remote(num_cpus=0)
def runner():
    import verl.workers
    return sys.prefix

given = dict(word.split("=", 1) for word in sys.argv[1:])
python = given.get("ray_kwargs.ray_init.runtime_env.py_executable")
ray.init(runtime_env={"py_executable": python, "working_dir": None})
print("a worker of", ray.get(runner.remote()))
print("step:1 - critic/rewards/mean:0.5")
"""
"""Stands for verl: it calls ray.init as verl 0.9.1 does, and its workers import its own package."""


def environment(root: Path) -> Path:
    """Return the Python of an environment with a package that the nodes' Python lacks."""
    venv.create(root, with_pip=False, symlinks=True)
    (site,) = root.glob("lib/python3*/site-packages")
    (site / "base.pth").write_text(sysconfig.get_paths()["purelib"])
    for package in ("verl", "verl/trainer", "verl/workers"):
        (site / package).mkdir()
        (site / package / "__init__.py").touch()
    (site / "verl/trainer/main_ppo.py").write_text(MAIN)
    return root / "bin" / "python"


def test_workers_of_the_job_run_in_the_environment_of_its_python(tmp_path: Path) -> None:
    python = environment(tmp_path / "verl")
    job = (str(python), "-m", "verl.trainer.main_ppo", "trainer.device=cpu")
    cluster = Cluster(
        tmp_path, workers=0, job=job, ROLLCALL_RECIPE="verl", ROLLCALL_MAX_RESTARTS="0"
    )
    try:
        cluster.start(HEAD)
        assert cluster.nodes[HEAD].wait(120) == 0
        log = (cluster.run.logs / "attempt-1.log").read_text()
        assert f"a worker of {tmp_path}/verl\n" in log
    finally:
        cluster.close()
