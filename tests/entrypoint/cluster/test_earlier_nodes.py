"""Who was in the cluster of the heads before this one, by the journal."""

from __future__ import annotations

from pathlib import Path

from contract.launch.places import MOVED
from entrypoint.cluster import earlier_nodes
from entrypoint.cluster.earlier_nodes import CHECK_IN, KINDS, ROLL, START
from entrypoint.run.journal import Journal


def test_the_last_head_and_who_had_a_place_under_it_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    head = Journal(path, "head-1")
    head.record(START, "this is the head", address="10.0.0.1")
    for number, name in enumerate("abcd", start=2):
        head.record(CHECK_IN, name, node=name, address=f"10.0.0.{number}", rank=number)
    head.record(CHECK_IN, "an older head's", node="d")
    head.record(ROLL, "all are there", present=["a", "b"])
    head.record(MOVED, "c goes on", lost="a", node="c")
    head.record(ROLL, "all are there", present=["b", "c"])
    head.record(MOVED, "d goes on", lost="c", node="d")
    heir = Journal(path, "b")
    heir.record(START, "this is the head", address="10.0.0.3")
    events = list(heir.landmarks(*KINDS))
    assert earlier_nodes.workers(events) == ("b", "d")
    members = earlier_nodes.members(events, "b")
    assert [(one.node, one.address, one.rank) for one in members] == [
        ("head-1", "10.0.0.1", None),
        ("d", "", None),
    ]
    assert earlier_nodes.members([], "b") == []
    assert earlier_nodes.members(events[:1], "head-1") == [], "it was started again"


def test_a_lost_head_holds_no_place_for_work_that_had_moved_to_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "head")
    journal.record(START, "this is the head")
    journal.record(ROLL, "all are there", present=["worker-1", "worker-2"])
    journal.record(MOVED, "goes on at head", lost="worker-1", node="head")
    assert earlier_nodes.workers(journal.landmarks(*KINDS)) == ("worker-2",)
