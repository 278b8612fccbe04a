"""Who is there and who is missing."""

from dataclasses import replace
from typing import Any

import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.roll import (
    SILENT_SECONDS,
    MissingWorker,
    Places,
    RegisteredNode,
    question_seconds,
    roll_state,
)

VERSIONS = {"python": "3.12.4", "ray": "2.55.0", "image": "sha256:1"}


def node_info(node: str = "worker-1", **changes: Any) -> NodeInfo:
    info = NodeInfo(node=node, address="10.0.0.2", versions=VERSIONS, joined=True)
    return replace(info, **changes)


def test_the_roll_is_complete_once_every_expected_worker_has_joined() -> None:
    entries = {name: RegisteredNode(node_info(name), 10.0) for name in ("a", "b")}
    state = roll_state(entries, Places(2), now=10.0, began=0.0)
    assert state.complete
    assert state.present == ("a", "b")
    assert state.missing == ()


def test_a_worker_that_never_came_is_counted_with_the_time_waited() -> None:
    state = roll_state({}, Places(2), now=42.0, began=0.0)
    assert not state.complete
    assert "2 workers not checked in yet, 42 s so far" in str(state)


def test_a_silent_worker_is_named_with_its_silence() -> None:
    entries = {"a": RegisteredNode(node_info("a"), 0.0)}
    state = roll_state(entries, Places(1), now=SILENT_SECONDS + 1, began=0.0)
    assert list(map(str, state.missing)) == ["a has been silent for 9 s"]


def test_an_open_question_keeps_a_worker_present_however_long_it_takes() -> None:
    entries = {"a": RegisteredNode(node_info("a"), 0.0, asking=1)}
    assert roll_state(entries, Places(1), now=1e6, began=0.0).complete


def test_a_worker_that_is_starting_ray_is_not_there_yet() -> None:
    entries = {"a": RegisteredNode(node_info("a", joined=False), 0.0)}
    state = roll_state(entries, Places(1), now=1.0, began=0.0)
    assert list(map(str, state.missing)) == ["a has checked in and is starting Ray"]
    assert [lost.as_lost for lost in state.lost(["a"])] == ["a was restarted"], "an attempt's end"


def test_a_late_extra_worker_stands_in_for_a_lost_one() -> None:
    entries = {"a": RegisteredNode(node_info("a"), 0.0), "b": RegisteredNode(node_info("b"), 99.0)}
    assert roll_state(entries, Places(1), now=100.0, began=0.0).complete


def test_a_cluster_of_one_node_says_so() -> None:
    state = roll_state({}, Places(0), now=0.0, began=0.0)
    assert state.complete
    assert "EXPECTED_WORKERS is 0" in str(state)


def test_who_has_joined_and_asks_to_join_has_lost_what_it_had_of_ray() -> None:
    registry = NodeRegistry(node_info("head", storage="lease"), expected=1, incarnation="first")

    def again(joined: bool) -> bool:
        return registry.check_in(node_info(joined=joined, storage="lease"), "").had_joined

    assert [again(joined) for joined in (False, False, True, True)] == [False] * 4
    assert again(False)
    assert not again(False)


def test_a_silent_worker_is_shown_until_another_one_has_come_in_its_place() -> None:
    registry = NodeRegistry(node_info("head"), expected=1, incarnation="first")
    registry.check_in(node_info("pod-a"), "")
    registry._entries["pod-a"].hung_up = True
    shown = [(node["node"], node["present"]) for node in registry.state()["nodes"]]
    assert shown == [("pod-a", False)]
    registry.check_in(node_info("pod-b", address="10.0.0.3"), "")
    for brief in (True, False):
        state = registry.state(brief=brief)
        assert state["present"] == 1
        assert [node["node"] for node in state["nodes"]] == ([] if brief else ["pod-b"])


def test_a_worker_that_left_or_is_to_join_again_is_named_until_it_is_back() -> None:
    head = node_info("head", storage="lease")
    registry = NodeRegistry(head, expected=2, incarnation="first")

    def joins(name: str) -> None:
        registry.check_in(node_info(name, storage="lease"), "")

    joins("a")
    joins("b")
    registry.leaves("a")
    registry.release_leaving()
    (missing,) = registry.roll_state().missing
    assert str(missing).startswith("a has not come back for 0")
    joins("c")
    assert registry.roll_state().missing == ()
    registry.new_incarnation()  # of those before, the two that were there last are missing
    assert [worker.node for worker in registry.roll_state().missing] == ["b", "c"]
    joins("b")
    (missing,) = registry.roll_state().missing
    assert str(missing).startswith("c has not come back for ")


def test_nothing_depends_on_the_words_about_a_missing_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs read the fields; the sentence is for people."""
    registry = NodeRegistry(node_info("head", storage="lease"), expected=5, incarnation="first")
    for name in ("left", "silent", "starts"):
        registry.check_in(node_info(name, storage="lease", joined=name != "starts"), "")
    registry.check_in(node_info("other", storage="lease", versions={"ray": "1"}), "")
    registry.leaves("left")
    registry.release_leaving()
    registry._entries["silent"].hung_up = True

    def read() -> tuple[Any, Any]:
        state = registry.roll_state()
        rows = registry.state()["missing"]
        lost = state.lost(["silent", "left", "never-seen"])
        shown = [{key: row[key] for key in ("node", "absence", "workers")} for row in rows]
        return shown, [(worker.node, worker.absence) for worker in lost]

    before = read()
    assert [(row["node"], row["absence"], row["workers"]) for row in before[0]] == [
        ("silent", "silent", 1),
        ("starts", "starting-ray", 1),
        ("other", "refused", 1),
        ("left", "gone", 1),
        (None, "unknown", 1),
    ]
    assert before[1] == [("silent", "silent"), ("left", "gone"), ("never-seen", "gone")]
    monkeypatch.setattr(MissingWorker, "__str__", lambda worker: "so be it")
    assert read() == before


@pytest.mark.parametrize(("workers", "seconds"), [(0, 5), (1_000, 5), (2_000, 8), (10_000, 40)])
def test_the_workers_of_a_large_roll_ask_less_often(workers: int, seconds: float) -> None:
    assert question_seconds(workers) == seconds
