"""The roll of a scripted run: the job starts once all workers are there and Ray sees them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.resources import NodeResources
from entrypoint.config.settings import Settings
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes.base import PlacedJob
from entrypoint.job.recipes.command.recipe import AnyCommand
from entrypoint.processes.inbox import RayEnded
from tests.support.world import FINISHED, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")


def test_the_job_waits_for_every_worker_and_for_ray_to_see_them(tmp_path: Path) -> None:
    def comes_in_two_steps() -> None:
        world.check_in("b", "127.0.0.4", joined=False)
        world.later(0.4, lambda: world.check_in("b", "127.0.0.4"))

    world = World(tmp_path, ends(FINISHED), workers=2)
    world.later(0.2, lambda: world.check_in("a", "127.0.0.3"))
    world.later(0.4, comes_in_two_steps)
    assert world.lives().name == "finished"
    (roll,) = world.journal.events("roll")
    assert roll["details"]["present"] == ["a", "b"]


def test_a_worker_that_says_it_joined_but_that_ray_does_not_see_is_waited_for(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, ends(FINISHED), workers=1, ROLLCALL_ROLL_TIMEOUT="1s", minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3", seen_by_ray=False))
    began = time.monotonic()
    world.lives()
    assert time.monotonic() - began > 1


def test_where_ray_does_not_see_for_long_who_is_there_it_is_started_anew_on_all_nodes(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, ends(FINISHED), workers=1, ROLLCALL_NODE_TIMEOUT="0.25s")
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3", seen_by_ray=False))

    def revived() -> None:
        world.check_in("a", "127.0.0.3", seen_by_ray=world.revived == 3)

    world.when_revived = revived
    assert world.lives().name == "finished"
    said = [
        re.fullmatch(
            r"Ray sees 1 of 2 nodes, for ([\d.]+) s \(load \d+ on \d+ CPUs\): restarting Ray on "
            r"all nodes; now it has (\d) s, by ROLLCALL_NODE_TIMEOUT",
            sentence,
        )
        for sentence in world.sentences("ray")
    ]
    assert [one and one[2] for one in said] == ["1", "2", "4"]
    waited = [float(one[1]) for one in said if one]
    assert all(later > earlier for earlier, later in pairwise(waited))


def test_an_incomplete_roll_ends_with_69_and_names_who_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path, workers=3, minimum=3, ROLLCALL_ROLL_TIMEOUT="3s")
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    world.later(0.1, lambda: world.check_in("b", "127.0.0.4", joined=False))
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.UNREACHABLE
    assert "1 of 3 workers are there" in outcome.sentence
    assert "after 3 s (ROLLCALL_ROLL_TIMEOUT)" in outcome.sentence
    assert "ROLLCALL_MIN_WORKERS" in outcome.sentence
    assert "b has checked in and is starting Ray" in outcome.sentence
    assert "1 worker not checked in yet" in outcome.sentence
    assert world.jobs.submitted == []


def test_enough_workers_start_the_job_at_the_deadline(tmp_path: Path) -> None:
    world = World(tmp_path, ends(FINISHED), workers=2, minimum=1, ROLLCALL_ROLL_TIMEOUT="3s")
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    assert world.lives().name == "finished"
    assert "1 worker not checked in yet" in world.sentences("roll")[0]


def test_when_ray_dies_under_the_job_it_is_revived_and_the_workers_join_again(
    tmp_path: Path,
) -> None:
    def loses_ray(world: World) -> JobInfo:
        world.inbox.put(RayEnded(1))
        time.sleep(1)
        return JobInfo("RUNNING")

    world = World(tmp_path, loses_ray, ends(FINISHED), workers=1, minimum=1)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))

    world.when_revived = lambda: world.check_in("a", "127.0.0.3")
    assert world.lives().name == "finished"
    assert world.revived == 1
    assert world.control.incarnation != "first"
    assert world.sentences("failure") == ["node_lost: Ray on the head ended"]
    assert world.kinds().count("roll") == 2


def test_nodes_that_cannot_hold_the_job_end_the_run_before_it_is_submitted(tmp_path: Path) -> None:
    class Needy(AnyCommand):
        def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
            lacking = tuple(f"{node.name} has {node.gpus} of 8 GPUs" for node in nodes)
            return PlacedJob(settings=settings, lacking=lacking)

    world = World(tmp_path, workers=1, minimum=1)
    world.context.recipe = Needy()
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.USAGE
    assert outcome.sentence == (
        "the nodes cannot hold the job: head has 0 of 8 GPUs; a has 0 of 8 GPUs"
    )
    assert world.jobs.submitted == []


class NeedsThree(AnyCommand):
    """A job that three nodes can hold, and fewer cannot."""

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        lacking = () if len(nodes) >= 3 else (f"it needs 3 nodes, and there are {len(nodes)}",)
        return PlacedJob(settings=settings, lacking=lacking)


def test_a_job_that_does_not_fit_without_a_lost_node_waits_for_it(tmp_path: Path) -> None:
    def returns() -> None:
        assert world.jobs.submitted == []
        world.check_in("b", "127.0.0.4")

    world = World(tmp_path, ends(FINISHED), workers=2, minimum=1)
    world.context.recipe = NeedsThree()
    world.rendezvous.present = ("a",)  # as of a worker that has taken a lost head's place
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    world.later(1.0, returns)
    assert world.lives().name == "finished"
    assert [event["details"]["present"] for event in world.journal.events("roll")] == [
        ["a"],
        ["a", "b"],
    ]


def test_a_lost_node_that_the_job_needs_is_not_waited_for_longer_than_the_rolls_time(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, workers=2, minimum=1, ROLLCALL_ROLL_TIMEOUT="2s")
    world.context.recipe = NeedsThree()
    world.rendezvous.present = ("a",)
    world.later(0.1, lambda: world.check_in("a", "127.0.0.3"))
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.USAGE
    assert outcome.sentence == "the nodes cannot hold the job: it needs 3 nodes, and there are 2"
