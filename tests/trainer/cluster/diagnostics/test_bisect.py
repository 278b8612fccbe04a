"""A slow or silent node, or link, is named among many in few rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from trainer.cluster.diagnostics.bisect import RETRIES, Pair, find


class Network:
    """Nodes that reach 10 GB/s with each other, but for some."""

    def __init__(
        self, slow: set[str], links: set[frozenset[str]], speed: float | None = 1.0
    ) -> None:
        self.slow, self.links, self.speed = slow, links, speed
        self.rounds = 0

    def probe(self, pairs: Sequence[Pair]) -> list[float | None]:
        self.rounds += 1
        busy = [node for pair in pairs for node in pair]
        assert len(set(busy)) == len(busy)  # all pairs of a round run at the same time
        return [
            self.speed if self.slow & set(pair) or frozenset(pair) in self.links else 10.0
            for pair in pairs
        ]


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 16])
def test_nodes_that_are_alike_give_no_fault(count: int) -> None:
    network = Network(set(), set())
    assert find(names(count), network.probe) == []
    one_more = count == 3  # each of three with each, one pair at a time
    assert network.rounds == math.ceil(math.log2(max(1, count))) + one_more


@pytest.mark.parametrize("speed", [1.0, None], ids=["slow", "silent"])
@pytest.mark.parametrize("count", [3, 4, 5, 8, 13, 64])
def test_any_one_node_is_named_within_log_n_rounds_and_the_tries(
    count: int, speed: float | None
) -> None:
    for guilty in names(count):
        network = Network({guilty}, set(), speed)
        (fault,) = find(names(count), network.probe)
        assert fault.nodes == (guilty,)
        assert f"{guilty} is at fault" in fault.sentence
        assert fault.silent is (speed is None)
        tries = RETRIES if speed else 1
        # Pairs of three nodes share one, and so are tried in turn.
        shared = 3 if count == 3 else 1
        assert network.rounds <= math.ceil(math.log2(count)) + (1 + 2 * tries) * shared


@pytest.mark.parametrize("slow_for", [1, 2, 3])
def test_a_pair_that_is_slow_at_times_is_no_fault(slow_for: int) -> None:
    network = Network({"n1"}, set())

    def probe(pairs: Sequence[Pair]) -> list[float | None]:
        speeds = network.probe(pairs)
        if network.rounds == slow_for:
            network.slow.clear()
        return speeds

    assert find(names(8), probe) == []


def test_pairs_of_a_busy_machine_that_reach_a_third_of_the_others_are_no_fault() -> None:
    assert find(names(8), Network({"n1", "n6"}, set(), 3.3).probe) == []


def test_one_pair_on_a_far_better_line_does_not_blame_the_others() -> None:
    assert find(names(16), Network(set(), {frozenset(("n4", "n5"))}, 300.0).probe) == []


def test_a_link_is_told_apart_from_its_two_nodes() -> None:
    network = Network(set(), {frozenset(("n2", "n3"))})
    (fault,) = find(names(8), network.probe)
    assert fault.nodes == ("n2", "n3")
    assert fault.sentence == "between n2 and n3: 1 GB/s; at fault is their link"


def test_several_slow_nodes_are_each_named() -> None:
    network = Network({"n1", "n6"}, set())
    faults = find(names(16), network.probe)
    assert {fault.nodes for fault in faults} == {("n1",), ("n6",)}


def test_of_two_nodes_alone_none_can_be_told_from_the_other() -> None:
    (fault,) = find(names(2), Network({"n0"}, set(), None).probe)
    assert fault.nodes == ("n0", "n1")
    assert "one of them, or their link" in fault.sentence


def test_nodes_that_are_all_too_slow_are_measured_against_what_is_asked() -> None:
    network = Network(set(names(4)), set(), 5.0)
    assert find(names(4), network.probe) == []
    assert len(find(names(4), network.probe, least=8.0)) == 2
