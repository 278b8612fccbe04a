"""In what the nodes of one roll differ, and who differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from entrypoint.cluster import reported_differences
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.roll import RegisteredNode
from entrypoint.config.read import read_settings

VERSIONS = {"python": "3.12.4", "ray": "2.55.0", "torch": "2.13.0", "nccl": "2.28.3"}


def node(name: str, *, skew: float = 0.0, source: str = "", **changes: Any) -> RegisteredNode:
    info = NodeInfo(
        node=name,
        address="10.0.0.2",
        versions=VERSIONS | {"gpu": "NVIDIA H100 80GB HBM3"},
        inventory={"gpus": 8, "mtu": 9000},
        environment={"NCCL_IB_HCA": "mlx5"},
    )
    return RegisteredNode(replace(info, **changes), source=source, skew=skew)


def told(*changed: RegisteredNode, skipped_checks: frozenset[str] = frozenset()) -> list[str]:
    """The differences of a head, two workers like it, and `changed`."""
    return reported_differences.differences(
        [node("head"), node("a"), node("b"), *changed], skipped_checks
    )


def test_nodes_that_are_alike_give_no_sentence() -> None:
    assert told(node("c")) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"versions": VERSIONS | {"gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.27.0"}},
            "nodes.software: c: nccl is 2.27.0, on 3 of 4 nodes 2.28.3",
        ),
        (
            {"versions": VERSIONS | {"gpu": "NVIDIA A100-SXM4-80GB"}},
            "nodes.gpus: c: the GPU is NVIDIA A100-SXM4-80GB, "
            "on 3 of 4 nodes NVIDIA H100 80GB HBM3",
        ),
        (
            {"inventory": {"gpus": 7, "mtu": 9000}},
            "nodes.gpus: c: the number of GPUs is 7, on 3 of 4 nodes 8",
        ),
        (
            {"inventory": {"gpus": 8, "mtu": 1500}},
            "nodes.mtu: c: the MTU is 1500, on 3 of 4 nodes 9000",
        ),
        (
            {"environment": {}},
            "nodes.environment: c: NCCL_IB_HCA is not there, on 3 of 4 nodes mlx5",
        ),
    ],
)
def test_a_difference_names_who_differs_from_the_majority(
    changes: dict[str, Any], sentence: str
) -> None:
    assert told(node("c", **changes)) == [sentence]


def test_the_head_itself_may_be_the_one_that_differs() -> None:
    other = VERSIONS | {"torch": "2.12.0", "gpu": "NVIDIA H100 80GB HBM3"}
    seen = [node("head", versions=other), node("a"), node("b")]
    assert reported_differences.differences(seen) == [
        "nodes.software: head: torch is 2.12.0, on 2 of 3 nodes 2.13.0"
    ]


def test_nodes_on_one_machine_that_share_its_gpus_are_told() -> None:
    first, others = ("GPU-0", "GPU-1"), ("GPU-2",)
    seen = [
        node("head", gpu_ids=first),
        node("a", gpu_ids=others),
        node("b", gpu_ids=(*first, "GPU-3")),
    ]
    (sentence,) = reported_differences.differences(seen)
    assert sentence.startswith("nodes.gpus: head, b: they share 2 GPUs (GPU-0, GPU-1); start each")


def test_of_two_that_differ_the_head_counts_as_right() -> None:
    assert reported_differences.minority("torch", {"head": "1", "a": "2"}) == [
        "a: torch is 2, on 1 of 2 nodes 1"
    ]


def test_many_that_differ_are_counted() -> None:
    values = {f"n{number}": "1" for number in range(20)}
    values |= {f"n{number}": "2" for number in range(7)}
    (sentence,) = reported_differences.minority("torch", values)
    assert sentence.startswith("n0, n1, n2, n3, n4 and 2 more: torch is 2")


def test_a_clock_and_an_address_that_differ_are_told() -> None:
    (late,) = told(node("c", skew=-5.0))
    assert late.startswith("nodes.clock: c: its clock is 5.0 s behind the head's")
    (wrong,) = told(node("d", source="10.0.0.9"))
    assert "d says 10.0.0.2, and the head sees 10.0.0.9" in wrong


def test_a_check_between_nodes_can_be_left_out() -> None:
    assert told(node("c", skew=-5.0), skipped_checks=frozenset({"nodes.clock"})) == []


@pytest.mark.parametrize(
    ("environ", "skipped_checks"),
    [
        ({}, set()),
        ({"ROLLCALL_PREFLIGHT_SKIP": "nodes.clock"}, {"nodes.clock"}),
        ({"ROLLCALL_PREFLIGHT": "warn"}, set(reported_differences.CHECKS)),
        ({"ROLLCALL_PREFLIGHT": "off"}, set(reported_differences.CHECKS)),
    ],
)
def test_the_head_asks_what_its_settings_leave_in(
    environ: dict[str, str], skipped_checks: set[str]
) -> None:
    assert reported_differences.skipped_checks(read_settings(environ)) == skipped_checks
