"""Why the head refuses a node that checks in, or has it ask again."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from entrypoint.cluster.client import RefusedError
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.refusal import name_taken, other_storage, refusal
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.roll import RegisteredNode
from entrypoint.cluster.storage_proof import StorageProof
from tests.support.control import Head, node_info, shared

VERSIONS = {"python": "3.12.4", "ray": "2.55.0", "image": "sha256:1"}
HEAD = NodeInfo(node="head", address="10.0.0.1", versions=VERSIONS, storage="f00d")


def worker(node: str = "worker-1", **changes: Any) -> NodeInfo:
    info = NodeInfo(node=node, address="10.0.0.2", versions=VERSIONS, joined=True)
    return replace(info, **changes)


@pytest.mark.parametrize("name", ["python", "ray", "image"])
def test_a_differing_version_is_refused_with_both_versions(name: str) -> None:
    other = worker(versions=VERSIONS | {name: "other"})
    reason = refusal(other, worker("head"))
    assert reason is not None
    assert f"{name} other here, {VERSIONS[name]} on the head" in reason


def test_a_version_that_the_head_does_not_know_refuses_nobody() -> None:
    head = worker("head", versions={"python": "3.12.4", "ray": "2.55.0"})
    assert refusal(worker(), head) is None


def test_a_clock_that_is_far_off_is_refused_and_a_near_one_is_not() -> None:
    info = worker("c")
    assert refusal(info, HEAD, skew=30.0) is None
    reason = refusal(info, HEAD, skew=-3600.0)
    assert reason is not None
    assert "1 h 0 min behind the head's" in reason
    assert refusal(info, HEAD, skew=-3600.0, skipped_checks=frozenset({"nodes.clock"})) is None


@pytest.mark.parametrize(
    ("storage", "skipped_checks", "same"),
    [("f00d", "", True), ("", "", False), ("cafe", "", False), ("cafe", "nodes.storage", True)],
)
def test_a_node_must_read_what_the_head_wrote(
    storage: str, skipped_checks: str, same: bool
) -> None:
    reason = other_storage(
        worker("c", joined=False, storage=storage), HEAD, frozenset({skipped_checks})
    )
    assert (reason is None) is same
    assert reason is None or "ROLLCALL_RUN_DIR" in reason


def test_two_living_nodes_cannot_share_a_name() -> None:
    entries = {"worker-1": RegisteredNode(worker(), 0.0, asking=1)}
    taken = name_taken(worker(address="10.0.0.9"), entries, now=1.0)
    assert taken is not None
    assert "ROLLCALL_NODE_NAME" in taken


def test_a_dead_node_gives_its_name_back() -> None:
    entries = {"worker-1": RegisteredNode(worker(), 0.0)}
    assert name_taken(worker(address="10.0.0.9"), entries, now=100.0) is None


def test_a_worker_with_the_heads_own_name_is_refused_each_time_and_never_taken_for_it() -> None:
    registry = NodeRegistry(worker("n1", storage="lease"), expected=1, incarnation="first")
    for joined in (False, True, False):
        answer = registry.check_in(worker("n1", joined=joined, storage="lease"), "")
        assert answer.refusal == (
            "n1 is the head's own name: give this worker another ROLLCALL_NODE_NAME"
        )
        assert not answer.had_joined
    assert registry.roll_state().present == ()


def test_a_second_node_of_a_workers_name_that_its_checks_have_stopped_is_not_that_worker() -> None:
    registry = NodeRegistry(worker("head", storage="lease"), expected=1, incarnation="first")
    registry.check_in(worker(storage="lease"), "")
    unfit = worker(joined=False, unfit=["host.stale_ray: another Rollcall node runs here (pid 7)"])
    answer = registry.check_in(unfit, "")
    assert answer.refusal
    assert not answer.had_joined
    assert registry.roll_state().present == ("worker-1",)


def test_a_refused_worker_hears_the_reason_and_the_head_is_told(head: Head) -> None:
    with pytest.raises(RefusedError, match=r"ray 2\.54\.0 here, 2\.55\.0 on the head"):
        head.client().check_in(node_info("a", ray="2.54.0"))
    ((node, reason),) = head.heard.check_ins
    assert node == "a"
    assert reason
    assert "use one image" in reason
    assert head.control.roll().present == ()


def test_a_worker_whose_clock_is_an_hour_off_is_refused_and_the_roll_says_why(
    strict: Head,
) -> None:
    proof = StorageProof(strict.run.root)
    with pytest.raises(RefusedError, match="1 h 0 min behind the head's"):
        strict.client().check_in(shared("a", clock=time.time() - 3600, storage=proof.show()))
    assert "a was refused: the clock of a is 1 h 0 min behind" in str(strict.control.roll())
    assert "1 worker not checked in yet" in str(strict.control.roll())
