"""Clusters as platforms show them: the variables of every node, and what the user sets.

The values are those of the platforms' own documentation or source. The docstring of each module in
entrypoint/config/platforms/ names its source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.slurm_variables import (
    SLURM_BATCH,
    SLURM_HET_STEP,
    SLURM_JOB,
    Environ,
    slurm_step,
)


@dataclass(frozen=True)
class Recorded:
    """The nodes of one cluster."""

    name: str
    platform: str
    nodes: tuple[Environ, ...]
    head: int = 0
    """The position in `nodes` of the node that must be the head."""
    address: str | None = None
    """The head's address as the workers must find it."""
    user: Mapping[str, str] = field(default_factory=dict)
    """What the user sets on every node."""

    def environs(self) -> list[Environ]:
        return [node | dict(self.user) for node in self.nodes]

    def __str__(self) -> str:
        return self.name


def numbered(count: int, shared: Mapping[str, str], **own: str) -> tuple[Environ, ...]:
    """`count` nodes with `shared`; `{n}` in the values of `own` is the node's number."""
    return tuple(
        dict(shared) | {name: value.format(n=n) for name, value in own.items()}
        for n in range(count)
    )


VERTEX_CLUSTER = {
    "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
}


def vertex(pool: str, index: int) -> Environ:
    task = {"type": pool, "index": index, "trial": "TRIAL_ID"}
    spec = {"cluster": VERTEX_CLUSTER, "environment": "cloud", "task": task, "job": {}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


def sagemaker(host: str) -> Environ:
    hosts = ["algo-1", "algo-2"]
    config = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0"}
    return {
        "SM_RESOURCE_CONFIG": json.dumps(config),
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": host,
        "SM_NUM_GPUS": "8",
    }


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
AWS_BATCH = {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "3"}
AWS_BATCH_CHILD = AWS_BATCH | {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.4"}
AWS_BATCH_NODES = (
    AWS_BATCH | {"AWS_BATCH_JOB_NODE_INDEX": "0"},
    AWS_BATCH_CHILD | {"AWS_BATCH_JOB_NODE_INDEX": "1"},
    AWS_BATCH_CHILD | {"AWS_BATCH_JOB_NODE_INDEX": "2"},
)
AZURE_BATCH = {
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
    "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
    "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
    "CCP_NODES": "2 10.0.0.4 1 10.0.0.5 1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_UNIVERSE_SIZE": "2",
}
AZURE_ML = {"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000", "AZUREML_NODE_COUNT": "2"}
VOLCANO_WORKERS = POD | {
    "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
    "VC_WORKER_NUM": "2",
}
VOLCANO_TWO_TASKS = VOLCANO_WORKERS | {
    "VC_MASTER_HOSTS": "train-master-0.train",
    "VC_MASTER_NUM": "1",
}


def volcano_pod(pod: str) -> Environ:
    index = pod.rpartition("-")[2]
    return VOLCANO_TWO_TASKS | {"HOSTNAME": pod, "VC_TASK_INDEX": index, "VK_TASK_INDEX": index}


def jobset_pod(pod: str) -> Environ:
    return POD | {"HOSTNAME": pod, "JOB_COMPLETION_INDEX": pod.rpartition("-")[2]}


CLUSTERS = (
    Recorded(
        "runpod-instant-cluster",
        "runpod-instant-cluster",
        numbered(
            4,
            {
                "PRIMARY_ADDR": "10.65.0.2",
                "PRIMARY_PORT": "29400",
                "MASTER_ADDR": "10.65.0.2",
                "MASTER_PORT": "29400",
                "NUM_NODES": "4",
                "NUM_TRAINERS": "8",
                "HOST_NODE_ADDR": "10.65.0.2:29400",
                "WORLD_SIZE": "32",
            },
            RUNPOD_POD_ID="xyz{n}",
            NODE_ADDR="10.65.0.1{n}",
            NODE_RANK="{n}",
        ),
        address="10.65.0.2",
    ),
    Recorded(
        "dstack",
        "dstack",
        numbered(
            2,
            {
                "DSTACK_RUN_NAME": "ray-cluster",
                "DSTACK_NODES_NUM": "2",
                "DSTACK_MASTER_NODE_IP": "172.31.0.5",
                "DSTACK_NODES_IPS": "172.31.0.5\n172.31.0.6",
                "DSTACK_GPUS_PER_NODE": "8",
                "DSTACK_GPUS_NUM": "16",
            },
            DSTACK_NODE_RANK="{n}",
        ),
        address="172.31.0.5",
    ),
    Recorded(
        "skypilot",
        "skypilot",
        numbered(
            2,
            {
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NUM_GPUS_PER_NODE": "8",
            },
            SKYPILOT_NODE_RANK="{n}",
        ),
        address="10.0.0.1",
    ),
    Recorded(
        "slurm",
        "slurm",
        tuple(SLURM_JOB | slurm_step(n, f"gn{n + 1}", 3, "gn[1-3]") for n in range(3)),
        address="gn1",
    ),
    Recorded(
        "slurm: a step on the last two of the job's nodes",
        "slurm",
        tuple(SLURM_JOB | slurm_step(n, f"gn{n + 2}", 2, "gn[2-3]") for n in range(2)),
        address="gn2",
    ),
    Recorded("slurm: all components", "slurm", SLURM_HET_STEP, address="gn3"),
    Recorded(
        "slurm: mpirun in a batch job",
        "open-mpi",
        (
            SLURM_BATCH | OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"},
            SLURM_JOB | slurm_step(0, "gn2", 1, "gn2") | OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "1"},
        ),
        address="gn1",
        user={"ROLLCALL_HEAD_ADDRESS": "gn1"},
    ),
    Recorded(
        "leaderworkerset",
        "leaderworkerset",
        numbered(
            3,
            POD | {"LWS_LEADER_ADDRESS": "train-0.train.default", "LWS_GROUP_SIZE": "3"},
            LWS_WORKER_INDEX="{n}",
            HOSTNAME="train-0-{n}",
        ),
        address="train-0.train.default",
    ),
    Recorded(
        "kubeflow",
        "kubeflow",
        numbered(
            2,
            POD
            | {
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "auto",
                "PET_MASTER_ADDR": "job-node-0-0.job",
                "PET_MASTER_PORT": "29400",
            },
            PET_NODE_RANK="{n}",
            JOB_COMPLETION_INDEX="{n}",
            HOSTNAME="job-node-0-{n}",
        ),
        address="job-node-0-0.job",
    ),
    Recorded(
        "indexed job",
        "kubernetes",
        numbered(3, POD, JOB_COMPLETION_INDEX="{n}", HOSTNAME="example-job-{n}"),
        address="example-job-0.headless-svc",
        user={"ROLLCALL_HEAD_ADDRESS": "example-job-0.headless-svc", "EXPECTED_WORKERS": "2"},
    ),
    Recorded(
        "jobset",
        "kubernetes",
        tuple(map(jobset_pod, ("js-leader-0-0", "js-workers-0-0", "js-workers-0-1"))),
        address="js-leader-0-0.js",
        user={"ROLLCALL_HEAD_ADDRESS": "js-leader-0-0.js", "EXPECTED_WORKERS": "2"},
    ),
    Recorded(
        "statefulset",
        "kubernetes",
        numbered(3, POD, HOSTNAME="trainer-{n}"),
        address="trainer-0.trainer.default.svc.cluster.local",
        user={
            "ROLLCALL_HEAD_ADDRESS": "trainer-0.trainer.default.svc.cluster.local",
            "EXPECTED_WORKERS": "2",
        },
    ),
    Recorded(
        "volcano: one task",
        "volcano",
        numbered(
            2,
            VOLCANO_WORKERS,
            VC_TASK_INDEX="{n}",
            VK_TASK_INDEX="{n}",
            HOSTNAME="train-worker-{n}",
        ),
        address="train-worker-0.train",
    ),
    Recorded(
        "volcano: two tasks",
        "volcano",
        tuple(map(volcano_pod, ("train-worker-0", "train-worker-1", "train-master-0"))),
        head=2,
        address="train-master-0.train",
        user={"ROLLCALL_HEAD_ADDRESS": "train-master-0.train", "EXPECTED_WORKERS": "2"},
    ),
    Recorded("aws batch", "aws-batch", AWS_BATCH_NODES, address="10.0.0.4"),
    Recorded(
        "aws batch: the main node is the last",
        "aws-batch",
        tuple(
            node | {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "2", "AWS_BATCH_JOB_NODE_INDEX": str(n)}
            for n, node in enumerate((AWS_BATCH_CHILD, AWS_BATCH_CHILD, AWS_BATCH))
        ),
        head=2,
        address="10.0.0.4",
    ),
    Recorded(
        "sagemaker", "sagemaker", tuple(map(sagemaker, ("algo-1", "algo-2"))), address="algo-1"
    ),
    Recorded(
        "vertex",
        "vertex",
        (vertex("workerpool0", 0), vertex("workerpool1", 0), vertex("workerpool1", 1)),
        address="cmle-training-workerpool0-ab-0",
    ),
    Recorded(
        "azure batch",
        "azure",
        (
            AZURE_BATCH | {"AZ_BATCH_IS_CURRENT_NODE_MASTER": "true"},
            AZURE_BATCH | {"AZ_BATCH_IS_CURRENT_NODE_MASTER": "false"},
        ),
        address="10.0.0.4",
    ),
    Recorded(
        "azure ml: MPI job",
        "open-mpi",
        numbered(2, AZURE_ML | OPEN_MPI, OMPI_COMM_WORLD_RANK="{n}"),
        address="10.0.0.4",
    ),
    Recorded(
        "azure ml: PyTorch job",
        "torchrun",
        numbered(
            2,
            AZURE_ML | {"MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105", "LOCAL_RANK": "0"},
            NODE_RANK="{n}",
            RANK="{n}",
            WORLD_SIZE="2",
        ),
        address="10.0.0.4",
    ),
    Recorded(
        "open mpi",
        "open-mpi",
        numbered(2, OPEN_MPI, OMPI_COMM_WORLD_RANK="{n}"),
        address="node0",
        user={"ROLLCALL_HEAD_ADDRESS": "node0"},
    ),
    Recorded(
        "intel mpi",
        "pmi",
        numbered(
            3,
            {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"},
            PMI_RANK="{n}",
        ),
        address="node0",
        user={"ROLLCALL_HEAD_ADDRESS": "node0"},
    ),
    Recorded(
        "prrte: prterun without Open MPI",
        "pmix",
        numbered(2, {"PMIX_NAMESPACE": "prterun-node0-7@1"}, PMIX_RANK="{n}"),
        address="node0",
        user={"ROLLCALL_HEAD_ADDRESS": "node0", "EXPECTED_WORKERS": "1"},
    ),
    Recorded(
        "alibaba dlc",
        "alibaba-dlc",
        numbered(
            3,
            {
                "MASTER_ADDR": "dlc18isgeaydabcd-master-0",
                "MASTER_PORT": "23456",
                "WORLD_SIZE": "3",
                "NPROC_PER_NODE": "8",
            },
            RANK="{n}",
        ),
        address="dlc18isgeaydabcd-master-0",
    ),
    Recorded(
        "torchrun",
        "torchrun",
        numbered(
            2,
            {"MASTER_ADDR": "node0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "NNODES": "2"},
            GROUP_RANK="{n}",
            RANK="{n}",
            WORLD_SIZE="2",
        ),
        address="node0",
    ),
)
