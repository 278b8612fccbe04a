"""Which part a node plays: explicit before platform, and every contradiction by its names."""

from __future__ import annotations

import pytest

from contract.options import ConfigError
from entrypoint.config import role
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker, decide

WORKER = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123"}
RANK_0 = {
    "PRIMARY_ADDR": "10.65.0.2",
    "NODE_ADDR": "10.65.0.2",
    "NODE_RANK": "0",
    "NUM_NODES": "4",
}
SPARES = {"ROLLCALL_SPARE_WORKERS": "2"}
SIZED = (
    (
        "slurm",
        "SLURM_STEP_NUM_NODES",
        {"SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "3"},
    ),
    ("torchrun", "NNODES", {"NODE_RANK": "0", "NNODES": "3"}),
    ("leaderworkerset", "LWS_GROUP_SIZE", {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "3"}),
    ("kubeflow", "PET_NNODES", {"PET_NODE_RANK": "0", "PET_NNODES": "3"}),
    ("dstack", "DSTACK_NODES_NUM", {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "3"}),
    ("skypilot", "SKYPILOT_NUM_NODES", {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "3"}),
)
"""Platforms, the variable of their size, and the variables of the head of three nodes."""
RANK_1 = RANK_0 | {"NODE_ADDR": "10.65.0.3", "NODE_RANK": "1"}


def decided(environ: dict[str, str]) -> Head | Worker:
    return decide(read_settings(environ))


def faults(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        decided(environ)
    return str(caught.value)


@pytest.mark.parametrize("environ", [{}, {"RAY_WORKER": "0"}, {"RAY_WORKER": ""}])
def test_a_node_that_is_told_nothing_is_a_head_that_waits_for_one_worker(
    environ: dict[str, str],
) -> None:
    head = decided(environ)
    assert isinstance(head, Head)
    assert (head.expected_workers, head.min_workers) == (1, 1)


def test_a_worker_finds_the_head_by_its_pod_id() -> None:
    worker = decided(WORKER)
    assert isinstance(worker, Worker)
    assert worker.head_address == "abc123.runpod.internal"
    assert "RAY_WORKER=1" in worker.why
    assert "HEAD_POD_ID" in worker.why


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        (WORKER | {"ROLLCALL_HEAD_ADDRESS": "10.0.0.1"}, "10.0.0.1"),
        (WORKER | RANK_1, "abc123.runpod.internal"),
        (RANK_1, "10.65.0.2"),
        ({"RAY_WORKER": "1"} | RANK_1, "10.65.0.2"),
    ],
)
def test_the_most_explicit_source_names_the_head(environ: dict[str, str], address: str) -> None:
    worker = decided(environ)
    assert isinstance(worker, Worker)
    assert worker.head_address == address


def test_the_platforms_rank_decides_where_ray_worker_does_not() -> None:
    head = decided(RANK_0)
    assert head == Head(3, 3, "NODE_RANK=0 (runpod-instant-cluster)")
    worker = decided(RANK_1)
    why = "NODE_RANK=1 (runpod-instant-cluster); the head is named by PRIMARY_ADDR"
    assert worker == Worker("10.65.0.2", why)


def test_an_explicit_role_beats_the_platforms_rank() -> None:
    head = decided(RANK_1 | {"RAY_WORKER": "0"})
    assert isinstance(head, Head)
    assert head.why == "RAY_WORKER=0"
    other = {"RAY_WORKER": "1", "ROLLCALL_HEAD_ADDRESS": "10.65.0.5"}
    worker = decided(RANK_0 | other)
    assert isinstance(worker, Worker)
    assert (worker.head_address, "RAY_WORKER=1" in worker.why) == ("10.65.0.5", True)


@pytest.mark.parametrize(
    ("environ", "expected", "least"),
    [
        ({"EXPECTED_WORKERS": "0"}, 0, 0),
        ({"EXPECTED_WORKERS": "5", "ROLLCALL_MIN_WORKERS": "2"}, 5, 2),
        (RANK_0 | {"EXPECTED_WORKERS": "1"}, 1, 1),
        (RANK_0 | {"NUM_NODES": "1"}, 0, 0),
        (RANK_0 | SPARES | {"NUM_NODES": "6"}, 3, 3),
        (SPARES | {"EXPECTED_WORKERS": "3"}, 3, 3),
    ],
)
def test_a_head_waits_for_as_many_as_it_is_told_else_for_the_platforms_size(
    environ: dict[str, str], expected: int, least: int
) -> None:
    head = decided(environ)
    assert isinstance(head, Head)
    assert (head.expected_workers, head.min_workers) == (expected, least)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RAY_WORKER": "1"}, ("RAY_WORKER=1", "HEAD_POD_ID", "ROLLCALL_HEAD_ADDRESS")),
        (
            {"RUNPOD_POD_ID": "xyz789", "HEAD_POD_ID": "abc123"},
            ("HEAD_POD_ID='abc123'", "RUNPOD_POD_ID=xyz789", "RAY_WORKER=1"),
        ),
        (WORKER | {"RUNPOD_POD_ID": "ABC123"}, ("HEAD_POD_ID='abc123'", "RUNPOD_POD_ID")),
        (RANK_0 | {"RAY_WORKER": "1"}, ("RAY_WORKER", "NODE_RANK=0", "PRIMARY_ADDR")),
        (RANK_0 | {"ROLLCALL_MIN_WORKERS": "4"}, ("ROLLCALL_MIN_WORKERS", "NUM_NODES")),
        ({"ROLLCALL_MIN_WORKERS": "2"}, ("ROLLCALL_MIN_WORKERS", "EXPECTED_WORKERS")),
        (
            {"EXPECTED_WORKERS": "2", "ROLLCALL_MIN_WORKERS": "3"},
            ("ROLLCALL_MIN_WORKERS", "2 workers", "EXPECTED_WORKERS"),
        ),
        (
            RANK_0 | {"ROLLCALL_SPARE_WORKERS": "3"},
            ("ROLLCALL_SPARE_WORKERS='3'", "4 nodes", "NUM_NODES", "at most 2"),
        ),
        (
            RANK_0 | SPARES | {"NUM_NODES": "5", "EXPECTED_WORKERS": "3"},
            ("ROLLCALL_SPARE_WORKERS='2'", "3 workers of EXPECTED_WORKERS", "4 nodes"),
        ),
        (SPARES | {"EXPECTED_WORKERS": "0"}, ("ROLLCALL_SPARE_WORKERS='2'", "no worker")),
        *(
            (
                platform | {"EXPECTED_WORKERS": "5"},
                (f"EXPECTED_WORKERS='5' is more than {name} has: 2 nodes are there", f"({size}=3)"),
            )
            for name, size, platform in SIZED
        ),
        (RANK_0 | {"EXPECTED_WORKERS": "5", "ROLLCALL_MIN_WORKERS": "4"}, ("at most 3",)),
    ],
)
def test_a_role_that_cannot_be_played_names_what_contradicts_it(
    environ: dict[str, str], named: tuple[str, ...]
) -> None:
    sentence = faults(environ)
    assert all(name in sentence for name in named)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (RANK_0 | {"EXPECTED_WORKERS": "5", "RAY_WORKER": "0"}, "others must come from elsewhere"),
        (RANK_0 | {"EXPECTED_WORKERS": "5", "ROLLCALL_MIN_WORKERS": "3"}, "is more than runpod"),
        (WORKER | {"ROLLCALL_HEAD_ADDRESS": "10.0.0.2"}, "HEAD_POD_ID=abc123 does not count"),
        (WORKER | {"ROLLCALL_HEAD_ADDRESS": "ABC123.runpod.internal"}, ""),
        (RANK_1 | {"EXPECTED_WORKERS": "5"}, ""),
        (RANK_0 | {"EXPECTED_WORKERS": "2"}, ""),
        ({"NNODES": "2", "NUM_NODES": "3", "NODE_RANK": "0", "EXPECTED_WORKERS": "2"}, ""),
    ],
)
def test_what_does_not_count_or_must_come_from_elsewhere_is_a_warning(
    environ: dict[str, str], said: str
) -> None:
    settings = read_settings(environ)
    role.decide(settings)
    told = list(role.warnings(settings))
    assert len(told) == bool(said)
    assert said in "".join(told)


@pytest.mark.parametrize(
    ("environ", "played"),
    [
        ({"RUNPOD_POD_ID": "abc123", "HEAD_POD_ID": "abc123"}, Head),
        ({"RUNPOD_POD_ID": "xyz789", "HEAD_POD_ID": "abc123", "RAY_WORKER": "0"}, Head),
        ({"RUNPOD_POD_ID": "xyz789", "HEAD_POD_ID": "abc123", "RAY_WORKER": "1"}, Worker),
        (WORKER | {"EXPECTED_WORKERS": "2"}, Worker),
        (WORKER | {"ROLLCALL_RECIPE": "command"}, Worker),
        ({"ROLLCALL_RECIPE": "command"}, Head),
    ],
)
def test_one_set_of_variables_may_serve_head_and_workers(
    environ: dict[str, str], played: type[Head] | type[Worker]
) -> None:
    assert isinstance(decided(environ), played)


def test_the_sources_say_which_variable_decided_each_fact() -> None:
    told = role.sources(read_settings(RANK_0 | {"ROLLCALL_RUN_DIR": "/data"}, ["--seed", "1"]))
    assert told == {
        "role": "NODE_RANK",
        "head_address": "PRIMARY_ADDR",
        "expected_workers": "NUM_NODES",
        "min_workers": "NUM_NODES",
        "node_name": "default",
        "node_address": "NODE_ADDR",
        "recipe": "default",
        "run_dir": "ROLLCALL_RUN_DIR",
        "storage": "default",
        "token": "default",
        "job": "command line",
    }
    worker = role.sources(read_settings(WORKER | {"RUNPOD_POD_ID": "xyz789"}))
    assert (worker["role"], worker["head_address"]) == ("RAY_WORKER", "HEAD_POD_ID")
    assert worker["node_name"] == "RUNPOD_POD_ID"
    assert "expected_workers" not in worker


def test_a_host_name_that_cannot_name_a_log_file_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "-two words-")
    with pytest.raises(ConfigError, match="ROLLCALL_NODE_NAME is not set, and this host's name"):
        read_settings({})
    assert read_settings({"ROLLCALL_NODE_NAME": "a"}).node_name == "a"


REPLACES = {"ROLLCALL_STRAGGLERS": "replace", "EXPECTED_WORKERS": "3"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "for a spare, and there is none"),
        ({"ROLLCALL_SPARE_WORKERS": "1", "ROLLCALL_RECIPE": "torchrun"}, "recipe builtin"),
        ({"ROLLCALL_REPLACE_COMMAND": "bring", "EXPECTED_WORKERS": "0"}, "no worker is expected"),
        (
            {"ROLLCALL_REPLACE_COMMAND": "bring", "ROLLCALL_RAY_ADDRESS": "http://10.0.0.1:8265"},
            "not ours",
        ),
    ],
)
def test_to_replace_slow_nodes_where_none_can_be_replaced_is_refused(
    environ: dict[str, str], words: str
) -> None:
    said = faults(REPLACES | environ)
    assert "ROLLCALL_STRAGGLERS='replace'" in said
    assert words in said


@pytest.mark.parametrize(
    "environ",
    [
        SPARES,
        {"ROLLCALL_REPLACE_COMMAND": "bring {node}"},
        {**SPARES, "ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_RECIPE": "torchrun"},
    ],
)
def test_slow_nodes_may_be_replaced_by_spares_or_by_nodes_that_a_program_brings(
    environ: dict[str, str],
) -> None:
    assert isinstance(decided(REPLACES | environ), Head)


def test_a_worker_leaves_the_policy_of_slow_nodes_to_the_head() -> None:
    assert isinstance(decided(WORKER | REPLACES), Worker)


def test_a_worker_without_a_head_is_told_the_way_of_its_platform_first() -> None:
    for environ, first in (
        ({}, "ROLLCALL_HEAD_ADDRESS"),
        ({"RUNPOD_POD_ID": "xyz789"}, "HEAD_POD_ID"),
    ):
        with pytest.raises(ConfigError) as caught:
            decide(read_settings({"RAY_WORKER": "1", **environ}))
        (fault,) = caught.value.faults
        assert fault.path == first
        assert f"set {first}" in fault.remedy
