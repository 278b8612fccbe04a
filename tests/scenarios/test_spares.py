"""A scripted run with a spare: who works in the next attempt, and who is told to have been lost."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest

from contract.launch.places import MOVED, VARIABLE
from entrypoint.job.ray_jobs import JobInfo
from tests.support.world import DIED, FINISHED, Act, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")

ADDRESSES = {"a": "127.0.0.3", "b": "127.0.0.4", "c": "127.0.0.5"}


def loses(worker: str, then: Act) -> Act:
    def act(world: World) -> JobInfo:
        with world.control._registry._lock:
            world.control._registry._entries[worker].hung_up = True
        world.nodes.discard(ADDRESSES[worker])
        return then(world)

    return act


def with_a_spare(root: Path, *acts: Act, names: str = "abc") -> World:
    world = World(root, *acts, workers=2, minimum=2, ROLLCALL_SPARE_WORKERS="1")
    for name in names:
        world.later(0.05, partial(world.check_in, name, ADDRESSES[name]))
    return world


def test_a_spare_takes_the_place_of_a_lost_worker_in_the_next_attempt_at_once(
    tmp_path: Path,
) -> None:
    world = with_a_spare(tmp_path)
    seen: list[str] = []

    def fails(world: World) -> JobInfo:
        seen.extend(world.control.roll().present)
        return loses(seen[0], ends(DIED, at_step=5))(world)

    world.jobs._acts = [fails, ends(FINISHED, at_step=9)]
    assert world.lives().name == "finished"
    first, second = (roll["details"]["present"] for roll in world.journal.events("roll"))
    spare = (set("abc") - set(first)).pop()
    assert world.sentences("roll")[0] == "2 of 2 workers and 1 spare are there"
    assert sorted(second) == sorted([first[1], spare])
    (failure,) = world.journal.events("failure")
    assert failure["details"]["failure"] == "node_lost"
    assert seen[0] in failure["details"]["lost_nodes"][0]
    (moved,) = world.journal.events(MOVED)
    assert (moved["details"]["lost"], moved["details"]["node"]) == (seen[0], spare)
    assert world.dead == [seen[0]]
    told = [json.loads(env[VARIABLE]) for env in world.jobs.submitted]
    head = world.settings.node_name
    assert told == [[head, *first], [head, *second]]


def test_work_that_the_job_has_moved_to_the_spare_is_no_loss_of_the_attempt(
    tmp_path: Path,
) -> None:
    def moves(world: World) -> JobInfo:
        first = world.control.roll()
        lost, spare = first.present[0], first.spares[0]
        world.journal.write(MOVED, f"{spare} goes on", lost=lost, node=spare)
        loses(lost, lambda world: DIED)(world)
        deadline = time.monotonic() + 10
        while not world.control.roll().complete and time.monotonic() < deadline:
            time.sleep(0.05)
        return ends(DIED, at_step=6)(world)

    world = with_a_spare(tmp_path, moves, ends(FINISHED, at_step=9))
    assert world.lives().name == "finished"
    (failure,) = world.journal.events("failure")
    assert (failure["details"]["failure"], failure["details"]["lost_nodes"]) == ("unknown", [])
    assert len(list(world.journal.events(MOVED))) == 1


def test_each_move_of_the_work_counts_once_whoever_comes_back_meanwhile(tmp_path: Path) -> None:
    """A spare takes the first place; who had it comes back as the spare, and takes the other."""
    placed: list[tuple[str, ...]] = []

    def has_moved(world: World, lost: str, to: str) -> None:
        world.journal.write(MOVED, f"{to} goes on", lost=lost, node=to)
        deadline = time.monotonic() + 10
        while to not in world.control.roll().present:
            assert time.monotonic() < deadline, world.control.roll()
            time.sleep(0.02)

    def moves(world: World) -> JobInfo:
        roll = world.control.roll()
        (first, second), (spare,) = roll.present, roll.spares
        has_moved(world, first, spare)
        has_moved(world, second, first)
        loses(second, lambda world: DIED)(world)
        time.sleep(1.5)  # some looks at a roll that lacks the spare
        placed.append((*sorted(world.control.roll().present), spare, first))
        world.check_in(second, ADDRESSES[second])
        return ends(FINISHED, at_step=6)(world)

    world = with_a_spare(tmp_path, moves)
    assert world.lives().name == "finished"
    ((*present, spare, first),) = placed
    assert present == sorted([spare, first])


def test_the_roll_does_not_wait_long_for_a_spare_that_does_not_come(tmp_path: Path) -> None:
    world = with_a_spare(tmp_path, ends(FINISHED), names="ab")
    assert world.lives().name == "finished"
    assert world.sentences("roll") == ["2 of 2 workers and 0 of 1 spares are there"]


def test_a_node_too_many_is_a_spare_where_a_program_brings_nodes(tmp_path: Path) -> None:
    """The platform has started the lost node again, too."""
    given = {"ROLLCALL_REPLACE_COMMAND": "true"}
    world = World(tmp_path, ends(FINISHED), workers=2, minimum=2, **given)

    def all_come() -> None:
        for name in "abc":
            world.check_in(name, ADDRESSES[name])

    world.later(0.05, all_come)
    assert world.lives().name == "finished"
    assert world.sentences("roll") == ["2 of 2 workers and 1 spare are there"]
