"""A node that is lost for good: the journal says that another is needed; a program brings it."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.run_dir import RunFiles
from entrypoint.cluster.lost_nodes import Attendance, LostNode
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.node import replacement
from entrypoint.node.replacement import Requests
from entrypoint.run.journal import Journal
from entrypoint.run.lease import Lease
from tests.support.hurried import hurried

API_KEY = "rp-0123456789abcdef"
GONE = LostNode("worker-1", "127.0.0.3", 3, "it has been silent for 20 s")


def info(name: str, *, joined: bool = True) -> NodeInfo:
    return NodeInfo(node=name, address="127.0.0.3", versions={}, joined=joined, rank=3)


class Head:
    """A registry that expects one worker, its journal, and the watch of lost nodes."""

    def __init__(self, root: Path, *command: str, **env: str) -> None:
        given = {"ROLLCALL_RUN_DIR": str(root), "ROLLCALL_NODE_TIMEOUT": "1s", **env}
        if command:
            given["ROLLCALL_REPLACE_COMMAND"] = shlex.join(command)
        environ = {"PATH": os.environ["PATH"], "RUNPOD_API_KEY": API_KEY, **given}
        self.settings = hurried({"ROLLCALL_RECIPE": "command", **environ}, ["true"])
        self.files = RunFiles(root)
        self.files.logs.mkdir(parents=True)
        self.journal = Journal(self.files.journal, "head", secrets=[API_KEY])
        self.registry = NodeRegistry(info("head"), 1, "first")
        self.registry.check_in(info("worker-1"), "")

    @contextmanager
    def watching(self) -> Iterator[None]:
        with replacement.watching(self.settings, self.registry, self.journal):
            yield

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return list(self.journal.events(*kinds))

    def until(self, kind: str, count: int = 1, within: float = 40) -> list[dict[str, Any]]:
        deadline = time.monotonic() + within
        while len(found := self.events(kind)) < count:
            assert time.monotonic() < deadline, [e["sentence"] for e in self.events()]
            time.sleep(0.05)
        return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacement, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(replacement, "AGAIN_SECONDS", 0.05)


def test_a_lost_node_that_nobody_replaces_is_told_once_with_its_address_and_rank(
    tmp_path: Path,
) -> None:
    head = Head(tmp_path)
    with head.watching():
        head.registry.evict("worker-1", "its GPU 3 has fallen off the bus")
        (needed,) = head.until("node-needed")
        time.sleep(0.3)
    assert len(head.events("node-needed")) == 1
    assert "worker-1: its GPU 3 has fallen off the bus" in needed["sentence"]
    assert needed["details"] == {"node": "worker-1", "address": "127.0.0.3", "rank": 3}
    assert not head.events("replace")


def test_the_program_gets_the_lost_node_and_runs_once_for_it(tmp_path: Path) -> None:
    words = "import os, sys; print(sys.argv[1:], os.environ['ROLLCALL_LOST_REASON'])"
    head = Head(tmp_path, sys.executable, "-c", words, "{node}", "{rank}", "x={address}")
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        _, ended = head.until("replace", 2)
        time.sleep(0.3)
    assert "['worker-1', '3', 'x=127.0.0.3'] it is broken" in ended["sentence"]
    assert ended["details"]["exit_code"] == 0
    assert len(head.events("replace")) == 2, "another node is on its way"


def test_a_node_is_brought_for_one_that_is_to_leave_before_it_leaves(tmp_path: Path) -> None:
    head = Head(tmp_path, "true")
    with head.watching():
        head.registry.replace_first({"worker-1": "it is slow"})
        head.until("replace", 2)
        time.sleep(0.3)
        head.registry.check_in(info("worker-2"), "")
        time.sleep(0.3)
    (needed,) = head.events("node-needed")
    assert "in the place of worker-1: it is slow" in needed["sentence"]
    assert len(head.events("replace")) == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((sys.executable, "-c", "raise SystemExit('no capacity')"), ("ended with 1", "capacity")),
        (("/no/such/program",), ("does not start", "No such file")),
        ((sys.executable, "-c", f"print('key {API_KEY}'); exit(2)"), ("ended with 2", "key ****")),
    ],
    ids=["fails", "does not exist", "prints a secret"],
)
def test_a_program_that_fails_is_said_and_tried_as_often_as_the_budget_allows(
    tmp_path: Path, command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    head = Head(tmp_path, *command, ROLLCALL_MAX_RESTARTS="2")
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        first, _, last = head.until("replace-failed", 3)
        time.sleep(0.3)
    assert all(word in first["sentence"] for word in words)
    assert "ROLLCALL_MAX_RESTARTS" in last["sentence"]
    assert len(head.events("replace")) == 2
    kept = (head.files.logs / "replace.log").read_text()
    assert kept.count("--- worker-1") == 2
    assert API_KEY not in kept + head.files.journal.read_text()


def test_a_program_that_hangs_is_killed_with_its_children_and_its_last_line_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "COMMAND_SECONDS", 3.0)
    words = (
        "import subprocess; print('asks the cloud', flush=True); subprocess.run(['sleep', '7773'])"
    )
    head = Head(tmp_path, sys.executable, "-c", words, ROLLCALL_MAX_RESTARTS="1")
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        failed = head.until("replace-failed")[0]
    assert "did not end within 3 s" in failed["sentence"]
    assert failed["sentence"].endswith(": asks the cloud")
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "7773"]
    ]


def test_the_end_of_the_head_ends_the_program(tmp_path: Path) -> None:
    head = Head(tmp_path, "sleep", "7774")
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        head.until("replace")
    deadline = time.monotonic() + 5
    while [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "7774"]]:
        assert time.monotonic() < deadline


def test_a_node_is_asked_for_once_and_again_only_if_none_comes_in_time() -> None:
    requests = Requests(wanted=2, patience=300.0)
    lost = Attendance(frozenset({"worker-2"}), (GONE,))
    assert requests.due(lost, 0.0) == [GONE]
    requests.brought("worker-1", 1.0)
    assert requests.due(lost, 200.0) == []
    assert requests.due(lost, 302.0) == [GONE]
    requests.brought("worker-1", 303.0)
    come = Attendance(frozenset({"worker-2", "worker-9"}), (GONE,))
    assert requests.due(come, 304.0) == []
    other = LostNode("worker-2", "127.0.0.4", None, "it has left")
    lost = Attendance(frozenset({"worker-9"}), (GONE, other))
    assert requests.due(lost, 900.0) == [other], "another has the place of worker-1"


def test_a_node_that_is_silent_for_a_moment_is_not_lacking() -> None:
    requests = Requests(wanted=2, patience=300.0)
    requests.brought("worker-1", 0.0)
    both = frozenset({"worker-2", "worker-9"})
    assert requests.due(Attendance(both, (GONE,)), 1.0) == []
    one, other = map(frozenset, ({"worker-2"}, {"worker-9"}))
    assert requests.due(Attendance(one, (GONE,), away=other), 900.0) == []
    assert requests.due(Attendance(one, (GONE,)), 901.0) == [GONE], "it never joined, and is gone"


NAMES, STATES = tuple("abcdef"), ("heard", "away", "lost")
LOOK = st.tuples(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(STATES)),
    st.booleans(),
    st.floats(0.0, 200.0),
)


@given(looks=st.lists(LOOK, max_size=20), wanted=st.integers(0, 4))
def test_as_many_lost_nodes_are_due_as_are_lacking_and_each_once_while_one_is_on_its_way(
    looks: list[tuple[dict[str, str], bool, float]], wanted: int
) -> None:
    """Whatever nodes do; the program runs for the first of those that are due, or it fails."""
    requests, now, asked = Requests(wanted, patience=300.0), 0.0, dict[str, float]()
    before = set[str]()
    for nodes, brings, seconds in looks:
        now += seconds
        there = {s: frozenset(n for n, state in nodes.items() if state == s) for s in STATES}
        gone = [LostNode(name, "", None, "it has left") for name in sorted(there["lost"])]
        seen = Attendance(there["heard"], tuple(gone), there["away"])
        due = [node.name for node in requests.due(seen, now)]
        lacking = max(0, wanted - len(there["heard"]) - len(there["away"]))
        assert len(requests.open) == min(lacking, len(gone))
        assert set(due) <= requests.open <= there["lost"]
        over = there["heard"] | (there["lost"] - requests.open)
        asked = {n: at for n, at in asked.items() if n not in over and now - at <= 300.0}
        assert set(due) == requests.open - set(asked)
        fresh = there["lost"] - before
        assert len(requests.open & fresh) == min(lacking, len(fresh)), "a new loss is told of"
        before = set(there["lost"])
        if due and brings:
            requests.brought(due[0], now)
            asked[due[0]] = now


def test_no_more_nodes_are_asked_for_than_are_lacking() -> None:
    other = LostNode("worker-2", "127.0.0.4", None, "it has left")
    come = Attendance(frozenset({"worker-3"}), (GONE, other))
    assert len(Requests(wanted=2, patience=300.0).due(come, 0.0)) == 1


def test_a_second_loss_is_told_of_although_the_first_one_is_still_away(tmp_path: Path) -> None:
    head = Head(tmp_path, "true")
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        head.until("replace", 2)
        head.registry.check_in(info("worker-9"), "")
        time.sleep(0.3)
        head.registry.evict("worker-9", "it is broken, too")
        head.until("replace", 4)
    assert [e["details"]["node"] for e in head.events("node-needed")] == ["worker-1", "worker-9"]


def test_a_node_that_comes_back_with_another_image_is_replaced(tmp_path: Path) -> None:
    head = Head(tmp_path)
    with head.watching():
        head.registry.forget("worker-1")
        head.registry.me = replace(info("head"), versions={"ray": "2.2"})
        other = replace(info("worker-1"), versions={"ray": "2.1"})
        assert head.registry.check_in(other, "").refusal
        (needed,) = head.until("node-needed")
    assert "it came back, and was refused: " in needed["sentence"]


def test_a_head_that_was_frozen_hears_its_nodes_before_it_asks_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "FROZEN_SECONDS", -1.0)  # each look comes late
    head = Head(tmp_path)
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        time.sleep(0.5)
    assert not head.events("node-needed")


def test_a_head_that_has_taken_over_asks_for_the_lost_head_and_not_again_for_others(
    tmp_path: Path,
) -> None:
    head = Head(tmp_path, "true")
    head.journal.record("replace", "it ran", node="worker-2", exit_code=0)
    head.registry.expected = 3
    lost = [replace(info(name), address="127.0.0.9", rank=7) for name in ("head-1", "worker-2")]
    head.registry.remember([*lost, info("worker-1")])
    with head.watching():
        head.until("replace", 3)
        time.sleep(0.3)
    (needed,) = head.events("node-needed")
    assert needed["details"] == {"node": "head-1", "address": "127.0.0.9", "rank": 7}
    assert "it has not come back for" in needed["sentence"]
    assert len(head.events("replace")) == 3


def test_a_head_that_is_no_more_asks_for_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    head = Head(tmp_path, "touch", str(tmp_path / "ran"))
    lease = Lease(head.files.leases)
    with lease:
        head.journal.claim = lease.claim
        (head.files.leases / str(lease.claim.epoch + 1)).write_text("{}")
        with head.watching():
            head.registry.evict("worker-1", "it is broken")
            time.sleep(0.5)
    assert not (tmp_path / "ran").exists()
    assert "Traceback" not in capfd.readouterr().err


def test_nodes_that_do_not_join_are_asked_for_as_often_as_the_limit_says_whatever_steps_follow(
    tmp_path: Path,
) -> None:
    """Each that comes is of another image, or cannot start Ray; each costs its hire."""
    given = {"ROLLCALL_MAX_RESTARTS": "2", "ROLLCALL_REPLACE_TIMEOUT": "1s"}
    head = Head(tmp_path, "true", **given)
    with head.watching():
        head.registry.evict("worker-1", "it is broken")
        other_image = replace(info("new-1"), unfit=["nodes.versions: another image"])
        for number, new in enumerate([other_image, info("new-2", joined=False)], start=1):
            head.until("replace", 2 * number)
            head.registry.check_in(new, "")
        (failed,) = head.until("replace-failed")
        time.sleep(1.5)
        assert len(head.events("replace")) == 4
        head.registry.check_in(info("worker-7"), "")
        time.sleep(0.3)
        head.registry.evict("worker-7", "it is broken, too")
        head.until("replace", 6)
    assert "has run 2 times for worker-1, and no node has come" in failed["sentence"]
