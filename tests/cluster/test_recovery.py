"""Processes of a run are killed and stopped; it repairs itself, and ends as if never touched."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract.exit_codes import ExitCode
from contract.journal import read_events
from entrypoint.processes.process import kill
from env.registry import reward_function
from tests.support.ray_nodes import cluster_at, workers_of
from tests.support.saved_states import leaves_of
from tests.support.tiny_run import Tiny, events, to_argv, train
from tests.support.trainer_program import Begin, flags_of, wait_until, worker_of
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.replica_client import load
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.writer import DriverState
from trainer.cluster import placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.stop import StopRequest
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.rollout import prompts as data
from trainer.training import loop
from trainer.training.inputs import TrainingInputs
from trainer.types import LostWorkerError
from trainer.workers import groups

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

STEPS = 40
SLOW = """
import pathlib, time

def reward_func(queries, prompts, labels):
    if pathlib.Path({path!r}).exists():
        time.sleep(3)
    return [float(len(query) % 3) for query in queries]
"""
"""Rewards that keep a run from its end for as long as a file is there: for longer than Ray takes to
start a process anew."""


@pytest.fixture
def flags(tiny: Tiny, run_dir: Path) -> dict[str, Any]:
    return flags_of(tiny, run_dir, max_steps=STEPS, save_steps=1)


@pytest.mark.faults
def test_a_run_that_loses_processes_and_a_node_ends_as_if_never_touched(
    flags: dict[str, Any], begin: Begin, tmp_path: Path
) -> None:
    slow, flags = slowly(flags, tmp_path)
    config = parse(to_argv(flags))
    with cluster_at(*[{"num_cpus": 4, "node_name": f"node-{n}"} for n in range(3)]) as cluster:
        running = begin(flags, cluster.address)
        for victim, repair in (("policy-0", "rank-replaced"), ("engine-1", "engine-replaced")):
            kill([worker_of(victim, running)])
            wait_until(partial(happened, config, repair), running)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        at = made(config)
        wait_until(lambda: made(config) >= at + 3, running)
        slow.unlink()
        finish(running)
    sentence = events(config, "rank-replaced")[0]["sentence"]
    assert sentence.startswith("The policy lost a process (its process ended): policy ")
    alone = parse(to_argv(flags | {"run_dir": tmp_path / "alone"}))
    train(alone, reward_function(str(flags["remote_rm_url"])))
    assert_the_same(config, alone)


@pytest.mark.parametrize("lost_in", [pytest.param("copy", marks=pytest.mark.faults), "hand-over"])
def test_a_rank_that_is_killed_before_its_step_is_held_costs_that_step_alone(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_in: str
) -> None:
    flags |= {"save_steps": STEPS, "advantage_estimator": "group_norm", "init_kl_coef": 0}
    config = parse(to_argv(flags | {"max_steps": 12}))
    copy, begin = Checkpointer._copy, Replicator.replicate

    def strike(step: int) -> None:
        if step == 7 and not events(config, "rank-replaced"):
            deadline = time.monotonic() + 30
            while not (found := workers_of("policy-0")):
                assert time.monotonic() < deadline
            kill(found)
            psutil.wait_procs(found, 10)

    def copies(keeping: Checkpointer, step: int) -> float:
        strike(step)
        return copy(keeping, step)

    def hands_over(peers: Replicator, driver: DriverState, learners: Any) -> None:
        begin(peers, driver, learners)
        under[driver.run.step] = peers._attempt
        if lost_in == "hand-over":
            strike(driver.run.step)

    under: dict[int, str] = {}
    if lost_in == "copy":
        monkeypatch.setattr(Checkpointer, "_copy", copies)
    monkeypatch.setattr(Replicator, "replicate", hands_over)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with cluster_at(*[{"num_cpus": 2, "node_name": f"node-{n}"} for n in range(2)]):
        train_on_ray(config)
    (repaired,) = events(config, "rank-replaced")
    assert repaired["details"]["step"] in ((6,) if lost_in == "copy" else (6, 7))
    assert "from the nodes' memory" in repaired["sentence"]
    again = repaired["details"]["step"] == 6
    assert (under[6] != under[8]) is again, "no share of the lost step meets one of the new"
    finished = [event["details"]["step"] for event in events(config, "step")]
    assert finished == list(range(1, 13)), "none that was finished is made again"
    journaled = [event for event in read_events(config.files.journal) if event["kind"] == "step"]
    before = [event for event in journaled if event["at"] <= repaired["at"]]
    assert before[-1]["details"]["step"] == repaired["details"]["step"], "what is held comes first"
    alone = parse(to_argv(flags | {"max_steps": 12, "run_dir": tmp_path / "alone"}))
    train(alone, reward_function(str(flags["remote_rm_url"])))
    assert leaves_of(config, 12) == leaves_of(alone, 12)


@pytest.mark.faults
def test_a_step_that_was_returned_to_is_not_overwritten_by_the_copy_of_the_step_after_it(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy's last answer is lost with it. The critic has the step in a buffer that its node's
    store maps, and lives on."""
    config = parse(to_argv(flags | {"max_steps": 9, "save_steps": STEPS, "vllm_num_engines": 1}))
    copy, wait = Checkpointer._copy, Replicator.wait
    peers: list[Replicator] = []
    checked: list[str] = []

    def answer_is_lost(replicator: Replicator) -> None:
        if replicator._step == 7 and not peers:
            for pending in replicator._pending:
                assert all(receipt.fault is None for receipt in pending.result())
            peers.append(replicator)
            found = workers_of("policy-0")
            kill(found)
            psutil.wait_procs(found, 10)
            raise LostWorkerError("policy-0 is lost", "policy", "its process ended")
        wait(replicator)

    def copies(keeping: Checkpointer, step: int) -> float:
        seconds = copy(keeping, step)
        if step == 8:
            snapshot = peers[0].newest(7)
            assert snapshot is not None
            for place in (0, 1):
                shards = tuple((shard, (places[place],)) for shard, places in snapshot.shards)
                for role in ("policy", "critic"):
                    load(replace(snapshot, shards=shards), role)
                    checked.append(role)
        return seconds

    monkeypatch.setattr(Replicator, "wait", answer_is_lost)
    monkeypatch.setattr(Checkpointer, "_copy", copies)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with cluster_at(*[{"num_cpus": 2, "node_name": f"node-{n}"} for n in range(2)]):
        train_on_ray(config)
    assert checked == ["policy", "critic"] * 2
    assert [event["details"]["step"] for event in events(config, "rank-replaced")] == [7]


def train_on_ray(config: Config) -> None:
    """As the program does, with this process as the driver of the cluster that it is in."""
    config.files.root.mkdir(parents=True)
    prompts, wanted = data.load(config), layout.of(config)
    launcher = RayLauncher(placement.reserve(wanted), config.dist_timeout)
    workers = groups.assemble(config, config.total_steps(len(prompts.stream)), launcher)
    peers = Replicator(config)
    reward = reward_function(config.remote_rm_url)
    loop.train(config, workers, TrainingInputs(prompts, reward), StopRequest(), peers)
    peers.end()


def finish(running: subprocess.Popen[str]) -> None:
    said, _ = running.communicate(timeout=200)
    assert running.returncode == ExitCode.FINISHED, said


def slowly(flags: dict[str, Any], tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A file, and flags of a run that is slow as long as the file is there."""
    slow, reward = tmp_path / "slow", tmp_path / "reward.py"
    slow.touch()
    reward.write_text(SLOW.format(path=str(slow)))
    return slow, flags | {"remote_rm_url": reward}


def assert_the_same(config: Config, alone: Config) -> None:
    """To the bit; and in one attempt, in which no finished step is made again."""
    assert [event["details"]["step"] for event in events(config, "resume")] == [0]
    made = 0
    for event in read_events(config.files.journal):
        if event["kind"] == "rank-replaced":
            assert event["details"]["step"] == made
        elif event["kind"] == "step":
            made += 1
            assert event["details"]["step"] == made
    assert made == STEPS
    assert leaves_of(config, STEPS) == leaves_of(alone, STEPS)


def happened(config: Config, kind: str) -> bool:
    return bool(events(config, kind))


def made(config: Config) -> int:
    """Finished steps; -1 before the run has begun."""
    return len(events(config, "step")) if events(config, "resume") else -1
