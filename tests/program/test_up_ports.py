"""A living node says to others on its machine which worker ports it has."""

from __future__ import annotations

from pathlib import Path

from entrypoint.net import node_claims
from entrypoint.net.port_block import PortBlock
from tests.support.waiting_worker import NAME, worker_that_waits


def test_a_living_node_claims_its_worker_ports_until_it_ends(tmp_path: Path) -> None:
    with PortBlock(50) as first:
        other = node_claims.of("another", first + 30, first + 80)
        with worker_that_waits(tmp_path, ROLLCALL_WORKER_PORTS=f"{first}-{first + 49}"):
            assert node_claims.others(other) == [node_claims.of(NAME, first, first + 49)]
        assert node_claims.others(other) == []
