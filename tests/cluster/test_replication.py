"""One run on two nodes, killed in every way; what the nodes hold in memory is gone on from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from contract.exit_codes import ExitCode
from contract.manifest import checkpoint_path
from tests.support.ray_nodes import cluster_at, workers_of
from tests.support.tiny_run import GRPO, Tiny, events, to_argv, train
from trainer.checkpoint import replica_ring
from trainer.checkpoint.protocol import StoreName
from trainer.checkpoint.replication import LOOK_SECONDS, Replicator
from trainer.config.config import Config
from trainer.config.parse import parse

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

STEPS, SAVE_STEPS = 90, 40
WORKER = {"num_cpus": 2}


@dataclass
class Run:
    flags: dict[str, Any]
    cluster: Cluster
    attempts: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return parse(to_argv(self.flags))

    def start(self, **changes: Any) -> subprocess.Popen[str]:
        self.flags |= changes
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "WANDB_"))}
        own = {"RAY_ADDRESS": self.cluster.address, "OMP_NUM_THREADS": "1"}
        own["ROLLCALL_ATTEMPT"] = str(len(self.attempts) + 1)
        self.attempts.append(
            subprocess.Popen(
                [sys.executable, "-m", "trainer", *to_argv(self.flags)],
                env=environment | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.attempts[-1]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the newest attempt."""
        number = len(self.attempts)
        return [e for e in events(self.config, kind) if e["attempt"] == number]

    def step(self) -> int:
        """The newest that the newest attempt has made; 0 before its first."""
        made = self.events("step")
        return int(made[-1]["details"]["step"]) if made else 0

    def reaches(self, step: int) -> None:
        until(lambda: self.step() >= step, self.attempts[-1])

    def kill(self) -> None:
        """The driver alone; its ranks follow it, and hand over until then what they were at."""
        ranks: list[psutil.Process] = []

        def found() -> bool:
            ranks[:] = workers_of("policy")
            return len(ranks) == int(self.flags["actor_num_nodes"])

        until(found, self.attempts[-1])
        self.attempts[-1].send_signal(signal.SIGKILL)
        self.attempts[-1].communicate()
        _, alive = psutil.wait_procs(ranks, 60)
        assert not alive

    def resumed_at(self) -> int:
        until(lambda: bool(self.events("resume")), self.attempts[-1])
        at: int = self.events("resume")[-1]["details"]["step"]
        return at


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    flags = {
        **tiny.needed(tmp_path_factory.mktemp("peers") / "run"),
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "train_batch_size": 4,
        "micro_train_batch_size": 2,
        "generate_max_len": 3,
        **GRPO,
        "actor_learning_rate": 1e-3,
        "actor_num_nodes": 2,
        "max_steps": STEPS,
        "save_steps": SAVE_STEPS,
        "load_checkpoint": True,
    }
    with cluster_at({"num_cpus": 2}, WORKER) as cluster:
        found = Run(flags, cluster)
        yield found
        for attempt in found.attempts:
            if attempt.poll() is None:
                attempt.kill()
            attempt.wait()


def test_a_killed_driver_costs_no_finished_step(run: Run) -> None:
    run.start()
    run.reaches(6)
    run.kill()
    finished = run.step()
    assert finished < SAVE_STEPS, "there is no checkpoint yet"
    (told,) = run.events("peers")
    assert "of each step lie on two of 2 nodes; a node holds" in told["sentence"]

    run.start()
    assert run.resumed_at() in (finished, finished + 1), "the next may have arrived untold"
    (restored,) = run.events("restore")
    assert "the nodes' memory" in restored["sentence"]


@pytest.mark.faults
def test_a_torn_snapshot_is_refused_and_the_run_goes_on_from_disk(run: Run) -> None:
    run.reaches(SAVE_STEPS + 5)
    until(lambda: bool(run.events("checkpoint")), run.attempts[-1])  # written in the background
    run.kill()
    assert events(run.config, "checkpoint")[-1]["details"]["step"] == SAVE_STEPS
    peers = Replicator(run.config)
    snapshot = peers.newest()
    assert snapshot is not None
    assert snapshot.step > SAVE_STEPS
    assert_a_silent_holder_is_not_waited_for(peers, held=snapshot.step - 1)
    while snapshot:  # the one before may be held, too
        sheet, holders = snapshot.shards[0]
        for holder in holders:
            assert isinstance(holder, StoreName)
            store = replica_ring.handle(holder)
            flip_a_bit(Path(ray.get(store.address.remote(sheet.key)).path))
        snapshot = peers.newest(snapshot.step - 1)

    run.start()
    assert run.resumed_at() == SAVE_STEPS
    for skipped in run.events("snapshot-skipped"):
        assert "its checksum differs" in skipped["sentence"]
    assert run.events("snapshot-skipped")


def assert_a_silent_holder_is_not_waited_for(peers: Replicator, held: int) -> None:
    """Where the others have all of the newest step that this attempt knows to be held: the one
    before that which was being handed over as the driver was killed."""
    peers.complete = held
    while not (holders := workers_of("ReplicaStore")):
        time.sleep(0.05)
    silent = holders[0]
    silent.suspend()
    try:
        begun = time.monotonic()
        snapshot = peers.newest()
        assert snapshot is not None
        assert snapshot.step in (held, held + 1)
        assert time.monotonic() - begun < LOOK_SECONDS / 2
    finally:
        silent.resume()


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


def test_the_loss_of_a_node_costs_no_finished_step(run: Run) -> None:
    run.reaches(SAVE_STEPS + 10)
    (worker,) = run.cluster.worker_nodes
    run.cluster.remove_node(worker, allow_graceful=False)
    run.attempts[-1].communicate(timeout=120)
    finished = run.step()

    last = run.start(actor_num_nodes=1)
    assert run.resumed_at() in (finished, finished + 1), "the next may have arrived untold"
    said, _ = last.communicate(timeout=100)
    assert last.returncode == ExitCode.FINISHED, said
    assert "Peer snapshots are off: there is no other node." in said


def test_a_finished_run_is_what_an_undisturbed_one_would_be_and_leaves_no_holder(
    run: Run, tmp_path: Path
) -> None:
    from env.registry import reward_function

    deadline = time.monotonic() + 30
    while left := ray.util.list_named_actors(all_namespaces=True):  # Ray lets go of them one by one
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    alone = parse(to_argv(run.flags | {"run_dir": tmp_path / "alone"}))
    train(alone, reward_function("arithmetic"))
    expected = weights_of(alone)
    for name, value in weights_of(run.config).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-4)
    told = [*events(run.config, "step"), *events(run.config, "step-found")]
    assert {event["details"]["step"] for event in told} == set(range(1, STEPS + 1))


def weights_of(config: Config) -> dict[str, torch.Tensor]:
    path = checkpoint_path(config.checkpoints, STEPS) / "policy.pt"
    model: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return model
