"""Which slow node leaves for a spare, and why others stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.cluster.slow_nodes import (
    HOUR,
    OUT_SECONDS,
    Leaves,
    Scene,
    Stays,
    Why,
    decide,
    most_a_run,
    most_an_hour,
)
from entrypoint.cluster.slow_ranks import Against, SlowRank, Speed

SCENE = Scene(head="head", workers=("a", "b", "c", "d"), computing=5, spares=("e",), left=())


def slow(node: str, times: float = 1.3, against: Against = Against.PEERS) -> SlowRank:
    speed = Speed(
        role="policy",
        rank=0,
        address=node,
        gpu="",
        against=against,
        times=times,
        sure=9.0,
        window=64,
        first=1,
        last=64,
    )
    return SlowRank(speed, node)


def test_the_slowest_node_alone_leaves_for_the_spare() -> None:
    (leaves,) = decide([slow("a"), slow("b", 1.5), slow("b", 1.2)], SCENE)
    assert isinstance(leaves, Leaves)
    assert leaves.node == "b"
    assert "computes 1.50 times as long" in leaves.sentence


@pytest.mark.parametrize(
    ("one", "scene", "why", "words"),
    [
        (slow("head"), SCENE, Why.HEAD, "it is the head"),
        (slow("a", against=Against.PAST), SCENE, Why.NO_PEERS, "no rank like it"),
        (slow("a"), replace(SCENE, spares=()), Why.NO_SPARE, "no spare is there"),
        (slow("a"), replace(SCENE, left=(HOUR - 60,)), Why.TOO_OFTEN, "The next one may in 1 min"),
        (slow("a"), replace(SCENE, left=(2 * HOUR,) * 3), Why.TOO_OFTEN, "3 have left this run"),
    ],
)
def test_a_slow_node_stays_and_it_is_said_why(
    one: SlowRank, scene: Scene, why: Why, words: str
) -> None:
    (stays,) = decide([one], scene)
    assert isinstance(stays, Stays)
    assert (stays.node, stays.why) == (one.node, why)
    assert stays.sentence.startswith(f"{one.sentence}, and stays: ")
    assert words in stays.sentence


@pytest.mark.parametrize("computing", [1, 2, 3])
def test_one_node_alone_leaves_however_few_are_compared(computing: int) -> None:
    """With one node, its ranks have each other as peers."""
    (leaves,) = decide([slow("a")], replace(SCENE, computing=computing))
    assert isinstance(leaves, Leaves)
    told = decide([slow("a"), slow("b")], replace(SCENE, computing=computing))
    assert [one.why for one in told if isinstance(one, Stays)] == [Why.MANY] * 2


def test_a_lone_rank_of_a_slow_node_hides_nothing_of_what_its_peers_show() -> None:
    """As a critic on one node, beside the ranks of a policy on two."""
    alone = [slow(node, 3.0, Against.PAST) for node in ("a", "head")]
    told = decide([*alone, slow("a")], replace(SCENE, computing=2))
    assert {one.node: type(one) for one in told} == {"a": Leaves, "head": Stays}


def test_while_half_of_the_nodes_are_slow_none_leaves() -> None:
    some = [slow(node) for node in "ab"]
    assert isinstance(decide(some, SCENE)[0], Leaves)
    told = decide([*some, slow("c")], SCENE)
    assert [one.why for one in told if isinstance(one, Stays)] == [Why.MANY] * 3


def test_a_slow_head_does_not_keep_a_slow_worker() -> None:
    told = decide([slow("head", 2.0), slow("a")], SCENE)
    assert {one.node: type(one) for one in told} == {"head": Stays, "a": Leaves}


def test_a_node_that_is_a_worker_no_more_is_passed_over() -> None:
    assert decide([slow("gone")], SCENE) == []


def test_so_few_may_leave_that_a_wrong_measurement_empties_no_cluster() -> None:
    assert [most_an_hour(nodes) for nodes in (3, 199, 2048)] == [1, 1, 20]
    assert [most_a_run(nodes) for nodes in (3, 128, 2048)] == [3, 12, 204]
    assert OUT_SECONDS > HOUR


@given(
    ranks=st.lists(
        st.tuples(
            st.sampled_from(["head", "a", "b", "c", "gone"]),
            st.floats(1.08, 4.0),
            st.sampled_from(list(Against)),
        )
    ),
    computing=st.integers(1, 5),
    spares=st.sampled_from([(), ("e",), ("e", "f")]),
    left=st.lists(st.floats(0.0, 3 * HOUR), max_size=4),
)
def test_one_worker_at_most_leaves_and_of_each_other_slow_node_it_is_said_why_it_stays(
    ranks: list[tuple[str, float, Against]],
    computing: int,
    spares: tuple[str, ...],
    left: list[float],
) -> None:
    scene = replace(SCENE, computing=computing, spares=spares, left=left)
    told = decide([slow(*rank) for rank in ranks], scene)
    leaving = [one for one in told if isinstance(one, Leaves)]
    nodes = {node for node, _, _ in ranks if node != "gone"}
    assert len(leaving) <= 1
    assert len(told) == len({one.node for one in told})
    assert {one.node for one in told} <= nodes
    assert leaving or {one.node for one in told} == nodes
    for one in leaving:
        assert one.node != "head"
        assert spares
        compared = {n for n, _, against in ranks if n != "gone" and against is Against.PEERS}
        assert one.node in compared
        assert len(compared) == 1 or 2 * len(compared) < computing
        assert sum(away < HOUR for away in left) < most_an_hour(5)
        assert len(left) < most_a_run(5)
