"""Real nodes whose job is a stand-in for verl, in an environment that only its Python has."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.node_cluster import HEAD, Cluster, result
from tests.support.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]

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


def test_a_crash_of_the_supervised_trainer_costs_the_steps_since_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    python = environment(tmp_path / "verl")
    (site,) = (tmp_path / "verl").glob("lib/python3*/site-packages")
    stand_in = ROOT / "tests/support/verl_sft_stand_in.py"
    (site / "verl/trainer/sft_trainer.py").write_text(stand_in.read_text())
    launcher = str(python.with_name("torchrun"))
    words = ("--standalone", "--nproc_per_node=1", "-m", "verl.trainer.sft_trainer")
    nodes = Cluster(
        tmp_path / "run",
        workers=1,
        job=(launcher, *words, "trainer.save_freq=2"),
        ROLLCALL_RECIPE="",  # the words choose it
        ROLLCALL_NUM_GPUS="1",  # which only Ray believes in
        ROLLCALL_PREFLIGHT_SKIP="gpu.count",
    )
    try:
        nodes.start(HEAD, 1)
        assert nodes.exit_codes(within=350) == {HEAD: 0, 1: 0}, nodes.consoles()
    finally:
        nodes.close()
    assert (result(nodes)["outcome"], result(nodes)["steps"]) == ("finished", 10)
    attempts = [event["details"]["resume_from"] for event in nodes.events("attempt")]
    assert attempts == [0, 6]
    log = (nodes.run.logs / "attempt-2.log").read_text()
    assert "step:7 - train/loss:" in log
    assert "step:6 - " not in log
