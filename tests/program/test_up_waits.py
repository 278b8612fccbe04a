"""What a living node leaves for others: its worker ports, and the report of its preflight."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from entrypoint.net import node_claims
from entrypoint.net.port_block import PortBlock
from tests.support.waiting_worker import NAME, worker_that_waits


def test_a_living_node_claims_its_worker_ports_until_it_ends(tmp_path: Path) -> None:
    with PortBlock(50) as first:
        other = node_claims.of("another", first + 30, first + 80)
        with worker_that_waits(tmp_path, ROLLCALL_WORKER_PORTS=f"{first}-{first + 49}"):
            assert node_claims.others(other) == [node_claims.of(NAME, first, first + 49)]
            assert list((tmp_path / "logs").glob("preflight-*")) == [], "its preflight is off"
        assert node_claims.others(other) == []


def test_a_node_that_starts_keeps_the_whole_report(tmp_path: Path) -> None:
    with worker_that_waits(tmp_path, ROLLCALL_PREFLIGHT="warn"):
        time, *lines = (tmp_path / "logs" / f"preflight-{NAME}.txt").read_text().splitlines()
    assert datetime.fromisoformat(time).tzinfo is not None
    assert {line.split()[0] for line in lines} <= {"PASS", "WARN", "FAIL", "SKIP"}
    assert any(line.startswith("PASS host.") for line in lines)
