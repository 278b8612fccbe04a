"""What platforms' variables say: a rank, an address, a size; and never a size from WORLD_SIZE."""

from __future__ import annotations

import pytest

from contract.options import ConfigError
from entrypoint.commands import plan
from entrypoint.config.platforms.detect import detect
from entrypoint.config.platforms.slurm import first_host
from entrypoint.config.read import read_settings

RUNPOD_POD = {"RUNPOD_POD_ID": "xyz789", "RUNPOD_GPU_COUNT": "8", "RUNPOD_DC_ID": "EU-RO-1"}
INSTANT_CLUSTER = {
    "RUNPOD_POD_ID": "xyz789",
    "PRIMARY_ADDR": "10.65.0.2",
    "PRIMARY_PORT": "29400",
    "MASTER_ADDR": "10.65.0.2",
    "MASTER_PORT": "29400",
    "NODE_ADDR": "10.65.0.3",
    "NODE_RANK": "1",
    "NUM_NODES": "4",
    "NUM_TRAINERS": "8",
    "HOST_NODE_ADDR": "10.65.0.2:29400",
    "WORLD_SIZE": "32",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_NODEID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NODELIST": "gnode[10,20-25]",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURMD_NODENAME": "gnode21",
}
DSTACK = {
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_MASTER_NODE_IP": "172.31.0.5",
    "DSTACK_NODES_IPS": "172.31.0.5\n172.31.0.6",
    "DSTACK_GPUS_PER_NODE": "8",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "1",
}
TORCHRUN = {"MASTER_ADDR": "node0", "NODE_RANK": "1", "NNODES": "2", "WORLD_SIZE": "16"}


SLURM_STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_JOB_NODELIST": "gn[1-4]",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gn[3-4]",
}
"""`srun -N2 -r2`: a step on the last two of the job's nodes."""


def test_nothing_is_recognised_in_an_empty_environment() -> None:
    facts = detect({})
    assert (facts.name, facts.rank, facts.nodes, facts.head_address) == (None, None, None, None)


def test_a_single_runpod_pod_knows_its_name_and_its_gpus_but_no_rank() -> None:
    facts = detect(RUNPOD_POD)
    assert (facts.name, facts.node_name, facts.gpus_per_node) == ("runpod", "xyz789", 8)
    assert (facts.rank, facts.nodes, facts.head_address) == (None, None, None)


def test_a_runpod_head_is_named_by_its_own_id_and_a_worker_by_none() -> None:
    row = plan.plan(read_settings(RUNPOD_POD))
    assert (row["role"], row["head_address"]) == ("head", "xyz789.runpod.internal")
    assert row["sources"]["head_address"] == "RUNPOD_POD_ID"
    assert row["faults"] == []
    (fault,) = plan.plan(read_settings(RUNPOD_POD | {"RAY_WORKER": "1"}))["faults"]
    assert fault["variable"] == "HEAD_POD_ID"
    other = RUNPOD_POD | {"ROLLCALL_HEAD_ADDRESS": "10.0.0.1"}
    assert plan.plan(read_settings(other))["head_address"] == "10.0.0.1"


def test_a_runpod_instant_cluster_says_everything_and_which_variable_said_it() -> None:
    facts = detect(INSTANT_CLUSTER)
    assert facts.name == "runpod-instant-cluster"
    assert (facts.rank, facts.nodes, facts.gpus_per_node) == (1, 4, 8)
    assert (facts.head_address, facts.node_address) == ("10.65.0.2", "10.65.0.3")
    assert facts.sources == {
        "node_name": "RUNPOD_POD_ID",
        "rank": "NODE_RANK",
        "nodes": "NUM_NODES",
        "gpus_per_node": "NUM_TRAINERS",
        "node_address": "NODE_ADDR",
        "head_address": "PRIMARY_ADDR",
    }
    assert not facts.faults


@pytest.mark.parametrize(
    ("environ", "name", "rank", "nodes", "head"),
    [
        (SLURM, "slurm", 2, 3, "gnode10"),
        (DSTACK, "dstack", 1, 2, "172.31.0.5"),
        (SKYPILOT, "skypilot", 0, 2, "10.0.0.1"),
        (TORCHRUN, "torchrun", 1, 2, "node0"),
    ],
)
def test_a_platform_says_rank_size_and_head(
    environ: dict[str, str], name: str, rank: int, nodes: int, head: str
) -> None:
    facts = detect(environ)
    assert (facts.name, facts.rank, facts.nodes, facts.head_address) == (name, rank, nodes, head)
    assert not facts.faults


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_slurm_step_on_some_of_the_jobs_nodes_is_a_cluster_of_those_alone(rank: str) -> None:
    row = plan.plan(read_settings(SLURM_STEP | {"SLURM_NODEID": rank}))
    assert (row["head_address"], row["faults"]) == ("gn3", [])
    assert row["sources"]["head_address"] == "SLURM_STEP_NODELIST"
    assert row["expected_workers"] == (1 if rank == "0" else None)


def test_what_a_slurm_step_does_not_say_the_job_says() -> None:
    """As one srun says it: the job's number of nodes is the step's, its list of nodes is not."""
    said = SLURM_STEP | {"SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2"}
    del said["SLURM_STEP_NUM_NODES"]
    facts = detect(said)
    assert (facts.nodes, facts.head_address, facts.faults) == (2, "gn3", {})


@pytest.mark.parametrize(
    "environ",
    [
        {"WORLD_SIZE": "32"},
        {"WORLD_SIZE": "32", "RANK": "3", "MASTER_ADDR": "node0"},
        {name: raw for name, raw in INSTANT_CLUSTER.items() if name != "NUM_NODES"},
        {name: raw for name, raw in TORCHRUN.items() if name != "NNODES"},
    ],
)
def test_world_size_alone_is_never_a_node_count(environ: dict[str, str]) -> None:
    assert detect(environ).nodes is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gnode[10,20-25],big1", "gnode10"),
        ("gnode[007-009]", "gnode007"),
        ("rack[1-2]node[3,5]", "rack1node3"),
    ],
)
def test_the_first_host_of_a_slurm_list_is_the_head(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize("nodes", ["gn[10-12", "gn10-12]", "gn[]", "gn[1,big[2]", "gn[1,],big1"])
def test_a_slurm_list_that_was_cut_off_names_no_head(nodes: str) -> None:
    sentence = faults({**SLURM_STEP, "SLURM_STEP_NODELIST": nodes})
    assert f"SLURM_STEP_NODELIST={nodes!r} is no list of nodes" in sentence
    assert "set ROLLCALL_HEAD_ADDRESS" in sentence


def faults(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        read_settings(environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"MASTER_ADDR": "10.65.0.9"}, ("PRIMARY_ADDR", "MASTER_ADDR", "ROLLCALL_HEAD_ADDRESS")),
        ({"NODE_RANK": "4"}, ("NODE_RANK", "NUM_NODES=4", "RAY_WORKER")),
        ({"NODE_RANK": "first"}, ("NODE_RANK", "RAY_WORKER")),
        ({"NUM_NODES": "0"}, ("NUM_NODES", "EXPECTED_WORKERS")),
        ({"SLURM_NODEID": "2", "SLURM_STEP_ID": "0"}, ("NODE_RANK", "SLURM_NODEID", "RAY_WORKER")),
    ],
)
def test_variables_that_disagree_are_both_named_with_what_settles_it(
    change: dict[str, str], named: tuple[str, ...]
) -> None:
    sentence = faults(INSTANT_CLUSTER | change)
    assert all(name in sentence for name in named)


@pytest.mark.parametrize(
    ("change", "explicit"),
    [
        ({"MASTER_ADDR": "10.65.0.9"}, {"ROLLCALL_HEAD_ADDRESS": "10.65.0.2"}),
        ({"MASTER_ADDR": "10.65.0.9"}, {"HEAD_POD_ID": "abc123"}),
        ({"NODE_RANK": "first"}, {"RAY_WORKER": "1"}),
        ({"NUM_NODES": "0"}, {"EXPECTED_WORKERS": "3"}),
        ({"NODE_ADDR": "10.65.0.3/24"}, {"ROLLCALL_NODE_ADDRESS": "10.65.0.3"}),
    ],
)
def test_an_explicit_setting_excuses_what_the_platform_says_wrongly(
    change: dict[str, str], explicit: dict[str, str]
) -> None:
    faults(INSTANT_CLUSTER | change)
    read_settings(INSTANT_CLUSTER | change | explicit)


def test_two_platforms_that_agree_are_one() -> None:
    """SkyPilot on RunPod: the rank is SkyPilot's, the pod's name RunPod's."""
    facts = detect(RUNPOD_POD | SKYPILOT)
    assert (facts.name, facts.rank, facts.node_name) == ("skypilot", 0, "xyz789")
