"""Which stores hold the shards of a node."""

from __future__ import annotations

from trainer.checkpoint.protocol import StoreName
from trainer.checkpoint.replica_ring import neighbours


def test_a_node_s_shards_lie_on_it_and_on_the_next_of_the_ring() -> None:
    one, two, three = ring = [StoreName("run", node) for node in ("a", "b", "c")]
    assert neighbours(ring, "a") == (one, two)
    assert neighbours(ring, "c") == (three, one)
    assert neighbours(ring, "d") == (None, one)
    assert neighbours([one], "a") == (one, one)
