"""The report of a node's preflight is kept in the run directory, for bug reports."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from tests.support.waiting_worker import NAME, worker_that_waits


def test_a_node_that_starts_keeps_the_whole_report(tmp_path: Path) -> None:
    with worker_that_waits(tmp_path, ROLLCALL_PREFLIGHT="warn"):
        time, *lines = (tmp_path / "logs" / f"preflight-{NAME}.txt").read_text().splitlines()
    assert datetime.fromisoformat(time).tzinfo is not None
    assert {line.split()[0] for line in lines} <= {"PASS", "WARN", "FAIL", "SKIP"}
    assert any(line.startswith("PASS host.") for line in lines)


def test_a_node_without_preflight_keeps_none(tmp_path: Path) -> None:
    with worker_that_waits(tmp_path):
        assert list((tmp_path / "logs").glob("preflight-*")) == []
