"""What the kernel kills for want of memory: counted on each node, and told to the head."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.machine import oom_kills
from tests.support.control import Head, asking, node_info
from tests.support.waiting import eventually


def test_the_kernels_kills_are_counted_in_either_kind_of_cgroup(tmp_path: Path) -> None:
    assert oom_kills.count(tmp_path) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\noom_kill 2\n")
    assert oom_kills.count(tmp_path) == 2
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills.count(tmp_path) == 3


def test_what_the_kernel_kills_on_a_worker_is_known_as_soon_as_all_are_heard(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 3
    monkeypatch.setattr(oom_kills, "count", lambda: killed)
    client = head.client()
    client.check_in(replace(node_info("a"), oom_kills=3), joined=True)
    client.watch("a", "first", print)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    assert head.control.oom_kills() == {"a": 0}, "what was before it came is none of the run's"
    killed = 5
    begun = time.monotonic()
    head.control.hear_all(5)
    assert head.control.oom_kills() == {"a": 2}
    assert time.monotonic() - begun < 4, "its question is not waited for"
    client.check_in(node_info("a"), joined=True)  # a new container counts from 0
    client.check_in(replace(node_info("a"), oom_kills=1), joined=True)
    assert head.control.oom_kills() == {"a": 3}
    head.control.announce("finished", 0)


def test_a_worker_that_was_stopped_is_not_waited_for_to_be_heard(head: Head) -> None:
    head.client().check_in(node_info("a"), joined=True)
    with asking(head, "a"):
        begun = time.monotonic()
        head.control.hear_all(0.3)
        assert time.monotonic() - begun < 4
