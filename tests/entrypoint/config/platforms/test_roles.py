"""One head in every cluster of every platform, and a fault in words where variables leave it open.

The clusters are in tests/support/platforms.py, Slurm's variables beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contract.options import ConfigError
from entrypoint.commands import plan
from entrypoint.config import role
from entrypoint.config.platforms import aws
from entrypoint.config.platforms.detect import detect
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker, decide
from tests.support import platforms
from tests.support import slurm_variables as slurm
from tests.support.platforms import CLUSTERS, OPEN_MPI, POD, Recorded
from tests.support.slurm_variables import Environ

NAMED = {"ROLLCALL_NODE_NAME": "here"}


def played(environ: Environ) -> Head | Worker | ConfigError:
    try:
        return decide(read_settings(environ | NAMED))
    except ConfigError as error:
        return error


def faults(environ: Environ) -> str:
    error = played(environ)
    assert isinstance(error, ConfigError), error
    return str(error)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_a_cluster_has_one_head_which_all_others_find(cluster: Recorded) -> None:
    for number, environ in enumerate(cluster.environs()):
        node = played(environ)
        if number == cluster.head:
            assert isinstance(node, Head), node
            assert node.expected_workers == len(cluster.nodes) - 1
        else:
            assert isinstance(node, Worker), node
            assert node.head_address == cluster.address
        assert f"({cluster.platform})" in node.why


@pytest.mark.parametrize("cluster", [one for one in CLUSTERS if one.user], ids=str)
def test_what_the_user_must_set_is_named_if_it_is_missing(cluster: Recorded) -> None:
    for missing in cluster.user:
        told = [
            played({k: v for k, v in one.items() if k != missing}) for one in cluster.environs()
        ]
        open_roles = [node for node in told if isinstance(node, ConfigError)]
        assert open_roles, missing
        assert all(missing in str(error) for error in open_roles)
        assert sum(isinstance(node, Head) for node in told) <= 1


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_an_explicit_role_beats_the_platform(cluster: Recorded) -> None:
    for environ in cluster.environs():
        assert isinstance(played(environ | {"RAY_WORKER": "0"}), Head)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (slurm.SLURM_BATCH, ("SLURM_JOB_ID", "srun")),
        (slurm.SLURM_INTERACTIVE, ("SLURM_JOB_ID", "srun")),
        (slurm.SLURM_SALLOC, ("SLURM_JOB_ID", "srun")),
        ({"SLURM_NODEID": "1"}, ("SLURM_NODEID", "srun")),
        *((task, ("SLURM_STEP_TASKS_PER_NODE", "--ntasks=2")) for task in slurm.SLURM_TWO_TASKS),
        (slurm.SLURM_HET_FIRST_ONLY, ("SLURM_STEP_NUM_NODES", "--het-group=0-1")),
        (
            slurm.SLURM_HET_STEP[0] | {"SLURMD_NODENAME": "gn1"},
            ("SLURM_NODEID='0'", "gn3"),
        ),
        (
            slurm.SLURM_HET_STEP[1] | {"SLURMD_NODENAME": "gn3"},
            ("SLURM_NODEID='1'", "gn3"),
        ),
        ({"DSTACK_NODES_NUM": "2"}, ("DSTACK_NODES_NUM", "DSTACK_NODE_RANK")),
        ({"SKYPILOT_NUM_NODES": "2"}, ("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK")),
        ({"PRIMARY_ADDR": "10.65.0.2"}, ("PRIMARY_ADDR", "NODE_RANK")),
        (
            {"LWS_LEADER_ADDRESS": "a-0.a.default", "LWS_GROUP_SIZE": "2"},
            ("LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"),
        ),
        ({"PET_NNODES": "1:3", "PET_RDZV_ENDPOINT": "job-worker-0:23456"}, ("PET_NODE_RANK",)),
        ({"JOB_COMPLETION_INDEX": "0"}, ("JOB_COMPLETION_INDEX", "ROLLCALL_HEAD_ADDRESS")),
        (POD | {"HOSTNAME": "train-6c9fd-x2x4z"}, ("KUBERNETES_SERVICE_HOST", "RAY_WORKER")),
        (
            POD | {"HOSTNAME": "train-1", "ROLLCALL_HEAD_ADDRESS": "the-head.default"},
            ("ROLLCALL_HEAD_ADDRESS", "RAY_WORKER"),
        ),
        ({"VC_TASK_INDEX": "0"}, ("VC_TASK_INDEX", "ROLLCALL_HEAD_ADDRESS")),
        (
            platforms.VOLCANO_WORKERS | {"VC_TASK_INDEX": "0", "HOSTNAME": "train-other-0"},
            ("VC_TASK_INDEX", "ROLLCALL_HEAD_ADDRESS"),
        ),
        ({"KUBERAY_GEN_RAY_START_CMD": "ray start --head"}, ("KubeRay", "ROLLCALL_RAY_ADDRESS")),
        (platforms.AWS_BATCH, ("AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX")),
        (
            {"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_NUM_NODES": "2"},
            ("AWS_BATCH_JOB_MAIN_NODE_INDEX",),
        ),
        (
            platforms.AWS_BATCH | {"AWS_BATCH_JOB_NODE_INDEX": "1"},
            ("ROLLCALL_HEAD_ADDRESS", "aws-batch"),
        ),
        ({"TRAINING_JOB_ARN": "arn:aws:sagemaker:x"}, ("TRAINING_JOB_ARN", "SM_RESOURCE_CONFIG")),
        (platforms.sagemaker("algo-3"), ("SM_RESOURCE_CONFIG", "RAY_WORKER")),
        ({"SM_RESOURCE_CONFIG": "{"}, ("SM_RESOURCE_CONFIG", "RAY_WORKER")),
        (platforms.vertex("workerpool1", 2), ("CLUSTER_SPEC", "RAY_WORKER")),
        ({"CLUSTER_SPEC": '{"cluster": {"workerpool0": []}}'}, ("CLUSTER_SPEC", "RAY_WORKER")),
        (platforms.AZURE_BATCH, ("AZ_BATCH_MASTER_NODE", "RAY_WORKER")),
        (platforms.AZURE_ML, ("AZ_BATCH_MASTER_NODE", "RAY_WORKER")),
        (OPEN_MPI, ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "ppr:1:node"),
        ),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "1"}, ("ROLLCALL_HEAD_ADDRESS", "rank 0")),
        (
            {"PMI_RANK": "4", "PMI_SIZE": "5", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"},
            ("MPI_LOCALNRANKS", "-ppn 1"),
        ),
        ({"PMIX_NAMESPACE": "prterun-gn1-7@1"}, ("PMIX_NAMESPACE", "PMIX_RANK")),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "7"}, ("ROLLCALL_HEAD_ADDRESS", "rank 0")),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "7"}, ("EXPECTED_WORKERS", "pmix")),
        ({"MASTER_ADDR": "dlc1abc-master-0", "WORLD_SIZE": "2"}, ("MASTER_ADDR", "RANK")),
        ({"MASTER_ADDR": "a", "RANK": "3", "WORLD_SIZE": "32"}, ("RANK='3'", "NODE_RANK")),
        (
            {"MASTER_ADDR": "a", "GROUP_RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"},
            ("LOCAL_WORLD_SIZE", "--nproc_per_node=1"),
        ),
        ({"MASTER_ADDR": "a", "NODE_RANK": "0"}, ("EXPECTED_WORKERS", "torchrun")),
        ({"NODE_RANK": "1", "NNODES": "2"}, ("ROLLCALL_HEAD_ADDRESS", "torchrun")),
        ({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, ("MASTER_ADDR='node0'", "NODE_RANK")),
    ],
)
def test_variables_that_leave_the_role_open_are_a_fault_with_what_to_set(
    environ: Environ, named: tuple[str, ...]
) -> None:
    sentence = faults(environ)
    assert all(name in sentence for name in named), sentence


@pytest.mark.parametrize(
    "environ",
    [
        slurm.SLURM_BATCH | {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"},
        {"DSTACK_NODES_NUM": "1"},
        {"AWS_BATCH_JOB_NUM_NODES": "1"},
        {"AZUREML_NODE_COUNT": "1", "AZ_BATCHAI_MPI_MASTER_NODE": "localhost"},
        POD | {"HOSTNAME": "notebook", "EXPECTED_WORKERS": "0"},
        slurm.SLURM_HET_FIRST_ONLY | {"EXPECTED_WORKERS": "0"},
    ],
)
def test_a_cluster_of_one_node_needs_no_role(environ: Environ) -> None:
    head = played(environ)
    assert isinstance(head, Head), head
    assert head.expected_workers == 0


OF_SEVERAL_NODES = {
    "DSTACK_MASTER_NODE_IP": "172.31.0.5",
    "DSTACK_NODES_IPS": "172.31.0.5\n172.31.0.6",
    "SLURM_PROCID": "1",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "gn[1-2]",
    "SLURM_NODELIST": "gn[1-2]",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gn[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
    "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
    "PMI_LOCAL_RANK": "0",
    "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
}


@pytest.mark.parametrize("variable", OF_SEVERAL_NODES)
def test_a_variable_that_a_platform_of_several_nodes_sets_makes_no_head_alone(
    variable: str,
) -> None:
    """As in a container that a task starts and gives some of the variables."""
    sentence = faults({variable: OF_SEVERAL_NODES[variable]})
    assert variable in sentence
    assert ": set " in sentence or ": pass " in sentence or ": start " in sentence


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "::1", "[::1]"])
def test_a_master_on_this_machine_alone_shows_no_platform(address: str) -> None:
    """Many shells and images set it so."""
    assert detect({"MASTER_ADDR": address, "MASTER_PORT": "29500"}).name is None


@pytest.mark.parametrize("named", ["Train-0.train", "TRAIN-0", "train-0.Train.default"])
def test_the_heads_name_in_upper_case_is_the_same_pod(named: str) -> None:
    """Otherwise all pods would be workers and look for a head in vain."""
    pod = POD | {"ROLLCALL_HEAD_ADDRESS": named, "EXPECTED_WORKERS": "1"}
    assert isinstance(played(pod | {"HOSTNAME": "train-0"}), Head)
    assert isinstance(played(pod | {"HOSTNAME": "train-1"}), Worker)


def test_without_the_toolkits_variables_sagemakers_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "resourceconfig.json"
    file.write_text(platforms.sagemaker("algo-2")["SM_RESOURCE_CONFIG"])
    monkeypatch.setattr(aws, "RESOURCE_FILE", file)
    worker = played({"TRAINING_JOB_ARN": "arn:aws:sagemaker:x"})
    assert isinstance(worker, Worker)
    assert worker.head_address == "algo-1"


NAMES = sorted({name for cluster in CLUSTERS for one in cluster.environs() for name in one})
VALUES = sorted({raw for cluster in CLUSTERS for one in cluster.environs() for raw in one.values()})
JUNK = (
    "",
    " ",
    "0",
    "1",
    "2",
    "7",
    "-1",
    "x",
    "[",
    "{}",
    "1(x2)",
    "2(x2)",
    "a,b",
    "true",
    "ß",
    "∞",
)
WRONG = st.one_of(st.none(), st.sampled_from(("", "x", "{}", "-1")))


def with_changes(cluster: Recorded) -> st.SearchStrategy[tuple[Recorded, dict[str, str | None]]]:
    names = sorted({name for environ in cluster.environs() for name in environ})
    return st.tuples(st.just(cluster), st.dictionaries(st.sampled_from(names), WRONG))


def changed(environ: Environ, changes: dict[str, str | None]) -> Environ:
    """`environ` with some of its variables unset (None) or with another value."""
    kept = {name: changes.get(name, raw) for name, raw in environ.items()}
    return {name: raw for name, raw in kept.items() if raw is not None}


def is_guess(environ: Environ) -> bool:
    """Whether a head is one though its platform, which may have several nodes, does not say so."""
    if not isinstance(played(environ), Head):
        return False
    platform = detect(environ)
    by_hand = platform.name in (None, "runpod") or environ.get("RAY_WORKER")
    return not (by_hand or platform.is_head or platform.nodes == 1)


def test_without_a_role_the_plan_has_none_and_the_head_can_be_asked() -> None:
    batch = read_settings(slurm.SLURM_BATCH)
    assert plan.plan(batch)["role"] is None
    assert role.host_to_ask(batch) == "gn1"


@given(st.sampled_from(CLUSTERS).flatmap(with_changes))
def test_unset_empty_and_wrong_variables_never_make_two_heads(
    cluster_and_changes: tuple[Recorded, dict[str, str | None]],
) -> None:
    cluster, changes = cluster_and_changes
    environs = [changed(environ, changes) for environ in cluster.environs()]
    assume(all(detect(one).name not in (None, "runpod") for one in environs))
    assert not any(map(is_guess, environs))
    heads = [one for one in environs if isinstance(played(one), Head) and detect(one).nodes != 1]
    assert len(heads) <= 1


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*VALUES, *JUNK]), max_size=12))
def test_any_variables_give_a_role_or_faults_and_no_guess(environ: Environ) -> None:
    environ.pop("EXPECTED_WORKERS", None)
    assert not is_guess(environ)


GENERIC = ("alibaba-dlc", "kubernetes", "pmix", "torchrun")
WITH_NAMES_OF_THEIR_OWN = [one for one in CLUSTERS if one.platform not in GENERIC]


@given(
    st.sampled_from(WITH_NAMES_OF_THEIR_OWN), st.sampled_from(WITH_NAMES_OF_THEIR_OWN), st.data()
)
def test_two_platforms_that_contradict_each_other_are_a_fault(
    first: Recorded, second: Recorded, data: st.DataObject
) -> None:
    one = data.draw(st.sampled_from(first.environs()))
    other = data.draw(st.sampled_from(second.environs()))
    assume({first.platform, second.platform} != {"slurm", "open-mpi"})  # mpirun's word counts
    assume(not set(one) & set(other))
    assume(detect(one).is_head is not detect(other).is_head)
    assert isinstance(played(one | other), ConfigError)
