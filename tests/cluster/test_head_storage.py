"""Nodes whose run directories are apart: what workers save goes to the head, and comes back."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from contract.files.child_variables import NODE_DIR
from contract.manifest import WrittenFile, checkpoint_path, fault_of, files_of, write_manifest
from entrypoint.processes.process import kill
from tests.support.node_cluster import HEAD, Cluster, command_line
from tests.support.ray_nodes import cluster_of
from tests.support.tiny_job import tiny_job
from tests.support.tiny_run import Tiny
from trainer.checkpoint import head_file_store, head_files, head_state, state
from trainer.checkpoint.protocol import Directory, HeadDirectory
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import part_of
from trainer.types import ALONE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

WORKER = 1
APART = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell that runs a command which has another disk in place of a directory."""
TOKEN = "a-token-that-all-nodes-are-given"
PACED = """
import pathlib, time

def reward_func(queries, prompts, labels):
    if not pathlib.Path({hurry!r}).exists():
        time.sleep(0.5)
    return [float(len(query) % 3) for query in queries]
"""
"""Rewards that keep a run from its end until a file is there."""


class NodesApart(Cluster):
    """The workers' run directory has the head's path, and lies on a disk of their own."""

    def command(self, number: int) -> Sequence[str]:
        command = super().command(number)
        if number == HEAD:
            return command
        return ["unshare", "--mount", "sh", "-c", APART, str(self.run.root), *command]


@pytest.fixture
def can_mount() -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this user may not mount anything")


@pytest.mark.faults
@pytest.mark.usefixtures("can_mount")
@pytest.mark.parametrize("lost", ["rank", "disk"])
def test_a_run_whose_nodes_share_no_storage_goes_on_after_a_loss_on_the_worker(
    tmp_path: Path, lost: str
) -> None:
    steps, hurry = 8, tmp_path / "hurry"
    (tmp_path / "paced.py").write_text(PACED.format(hurry=str(hurry)))
    job = [
        *tiny_job(tmp_path, steps, str(tmp_path / "paced.py")),
        *("--actor_num_nodes", "2", "--actor_num_gpus_per_node", "1"),
        *("--vllm_num_engines", "1", "--save_steps", "2", "--peer_snapshot", "off"),
    ]
    cluster = NodesApart(
        tmp_path / "run",
        workers=1,
        job=job,
        ROLLCALL_RECIPE="builtin",
        ROLLCALL_STORAGE="head",
        ROLLCALL_TOKEN=TOKEN,
    )
    try:
        cluster.start(HEAD, WORKER)
        saved = cluster.event("checkpoint", within=150)["details"]["step"]
        names = {file.name for file in files_of(checkpoint_path(cluster.run.checkpoints, saved))}
        assert {"policy-0-of-2.pt", "policy-1-of-2.pt"} <= names
        if lost == "rank":
            kill(ranks(cluster, WORKER))
        else:
            cluster.kill(WORKER)
            cluster.start(WORKER)
        hurry.touch()
        assert cluster.exit_codes(within=200) == {HEAD: 0, WORKER: 0}, cluster.consoles()
    finally:
        cluster.close()
    assert cluster.step == steps
    went_on = cluster.events("rank-replaced" if lost == "rank" else "restore")
    assert [event["details"]["step"] for event in went_on if event["details"]["step"] >= saved]
    assert "checked in at the head" in (cluster.run.logs / "worker-1.log").read_text()
    assert (cluster.run.logs / "ray-worker-1.log").exists()
    assert fault_of(checkpoint_path(cluster.run.checkpoints, steps)) is None
    assert (cluster.run.exported / "model.safetensors").exists()


def ranks(cluster: Cluster, number: int) -> list[psutil.Process]:
    """The policy's ranks on that node."""
    found = [
        process
        for process in cluster.processes(number)
        if "".join(command_line(process)).startswith("ray::policy")
    ]
    assert found
    return found


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of the node on which no driver runs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nodes = [{"num_cpus": 2, "node_name": name} for name in ("head", "other")]
    with cluster_of(*nodes):
        yield next(row["NodeID"] for row in ray.nodes() if row["NodeName"] == "other")


def on(node: str, function: Any, *arguments: Any) -> Any:
    """What a function returns on that node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.get(ray.remote(function).options(scheduling_strategy=there).remote(*arguments))


@pytest.mark.faults
def test_files_of_another_node_arrive_whole_and_a_checkpoint_is_read_back(
    two_nodes: str, tiny: Tiny, tmp_path: Path
) -> None:
    content = b"".join(hashlib.sha256(bytes([n % 256])).digest() for n in range(300_000))
    step, other = tmp_path / "run" / "global_step_1", str(tmp_path / "other")
    step.mkdir(parents=True)
    config = tiny.config(tmp_path / "run", storage="head")
    directory = head_file_store.place(config, step)

    def write(directory: Directory, names: Sequence[str], replace: bool) -> tuple[str, int]:
        import os

        os.environ[NODE_DIR] = other
        with head_files.writing(directory) as out:
            files = []
            for name in names:
                data = content if name.endswith(".pt") else b""
                (out.path / name).write_bytes(data)
                files.append(WrittenFile(name, len(data), hashlib.sha256(data).hexdigest()))
            out.send(files, replace=replace)
        return str(out.path), sum(path.is_file() for path in Path(other).rglob("*.pt"))

    def read_parts(directory: Directory) -> Tensor:
        assert isinstance(directory, HeadDirectory)
        with head_state.opened(directory, "critic") as found:
            return part_of(found.model["weight"], 3, 500)

    def read(directory: Directory) -> dict[str, bytes]:
        import os

        os.environ[NODE_DIR] = other
        with head_files.reading(directory, lambda name: name == "policy.pt") as place:
            assert str(place).startswith(other)
            return {path.name: path.read_bytes() for path in place.iterdir()}

    place, left = on(two_nodes, write, directory, ["policy.pt"], False)
    assert place.startswith(other)
    assert left == 0
    exported = head_file_store.place(config, step / "hf")
    for names in (["old.pt"], ["model.pt", "empty.txt"]):
        on(two_nodes, write, exported, names, True)
    assert sorted(path.name for path in (step / "hf").iterdir()) == ["empty.txt", "model.pt"]
    assert (step / "policy.pt").read_bytes() == content
    weight = torch.arange(1000.0)
    state.save(step, "critic", State(model={"weight": weight}, adam={}, scheduler={}), ALONE)
    write_manifest(step, 1)
    assert torch.equal(on(two_nodes, read_parts, directory), weight[3:503])
    found = on(two_nodes, read, directory)
    assert found == {"policy.pt": content}
    assert not list(Path(other).rglob("*.pt"))
    (step / "policy.pt").write_bytes(content[:-1] + b"x")  # which the served file shows
    with pytest.raises(OSError, match="the checksum of what arrived differs"):
        on(two_nodes, read, directory)
