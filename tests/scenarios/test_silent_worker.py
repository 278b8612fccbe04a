"""A worker that falls silent is told of while the job lives on, and so is its return."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from entrypoint.job.attempt import TICK_SECONDS
from entrypoint.job.ray_jobs import JobInfo
from tests.support.control import Head, asking, head, node_info
from tests.support.waiting import eventually
from tests.support.world import DIED, FINISHED, World, ends

__all__ = ["head"]

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_worker_that_falls_silent_and_comes_back_is_in_the_journal_once_each(
    tmp_path: Path,
) -> None:
    def falls_silent(world: World) -> JobInfo:
        entry = world.control._registry._entries["a"]
        entry.hung_up = True
        eventually(lambda: world.sentences("node-lost") != [])
        eventually(lambda: world.control.silent() == {"a"})
        entry.hung_up = False
        eventually(lambda: world.sentences("node-back") != [])
        return ends(FINISHED)(world)

    world = World(tmp_path, falls_silent, workers=1)
    world.later(0.05, lambda: world.check_in("a", "127.0.0.3"))
    world.lives()
    assert world.kinds() == ["roll", "attempt", "node-lost", "node-back"]
    assert world.sentences("node-lost") == ["a is silent: look at its machine and its network"]
    assert world.sentences("node-back") == ["a is heard again"]


def test_a_worker_in_whose_place_another_has_come_is_told_of_once(tmp_path: Path) -> None:
    """No later attempt tells of it again, unless it comes back."""

    def is_replaced(world: World) -> JobInfo:
        world.control._registry._entries["a"].hung_up = True
        eventually(lambda: world.sentences("node-lost") != [])
        world.check_in("b", "127.0.0.4")
        return ends(DIED)(world)

    def goes_on(world: World) -> JobInfo:
        time.sleep(4 * TICK_SECONDS)
        world.check_in("a", "127.0.0.3")
        eventually(lambda: world.sentences("node-back") != [])
        return ends(FINISHED)(world)

    world = World(tmp_path, is_replaced, goes_on, workers=1)
    world.later(0.05, lambda: world.check_in("a", "127.0.0.3"))
    world.lives()
    assert world.sentences("node-lost") == ["a is silent: look at its machine and its network"]
    assert world.sentences("node-back") == ["a is heard again"]


def test_a_worker_that_leaves_or_is_replaced_is_not_silent(head: Head) -> None:
    registry = head.control._registry
    for name in ("stays", "leaves"):
        head.client().check_in(node_info(name), joined=True)
        with asking(head, name):
            pass
    eventually(lambda: head.control.silent() == {"stays", "leaves"})
    registry.leaves("leaves")
    assert head.control.silent() == {"stays"}
    registry.release_leaving()
    assert head.control.silent() == {"stays"}
