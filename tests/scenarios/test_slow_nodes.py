"""A scripted run in which a node is slow, and ROLLCALL_STRAGGLERS=replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract.launch.places import MOVED
from contract.launch.rank_times import RankTime, as_row
from contract.metrics.json_lines import JsonLines
from entrypoint.cluster.client import RefusedError
from entrypoint.cluster.slow_ranks import WINDOWS
from entrypoint.job import slow_nodes
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes.command.recipe import AnyCommand
from entrypoint.machine.gpus.use import Condition, GpuUse
from entrypoint.preflight.changes import Change, HealthKind
from entrypoint.run.flight_record.time_accounting import SLOW_LEFT
from tests.support.world import FINISHED, STOPPED, Act, World, ends

pytestmark = [pytest.mark.usefixtures("no_pauses", "tells_times")]

HEAD = "127.0.0.2"
ADDRESSES = {"a": "127.0.0.3", "b": "127.0.0.4", "c": "127.0.0.5", "d": "127.0.0.6"}


@pytest.fixture
def tells_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnyCommand, "tells_phases", True)


def cluster(root: Path, *acts: Act, names: str = "abcd", **env: str) -> World:
    given = {"ROLLCALL_SPARE_WORKERS": "1", "ROLLCALL_STRAGGLERS": "replace", **env}
    world = World(root, *acts, workers=3, minimum=2, **given)
    for name in names:
        world.later(0.05, partial(world.check_in, name, ADDRESSES[name]))
    return world


def told(world: World, kind: str) -> list[dict[str, Any]]:
    return list(world.journal.events(kind))


def slow_at(address: str, until: Callable[[World], object], then: JobInfo = STOPPED) -> Act:
    """A job whose rank at the address computes twice as long as the others', until something is."""

    def act(world: World) -> JobInfo:
        ends(FINISHED, at_step=WINDOWS[0])(world)
        nodes = [HEAD, *(ADDRESSES[name] for name in world.control.roll().present)]
        lines = JsonLines(world.run.rank_times, 0)
        for step in range(1, WINDOWS[0] + 1):
            seconds = {at: 2.0 if at == address else 1.0 for at in nodes}
            ranks = [RankTime(n, at, "H100", "", seconds[at], 1.0) for n, at in enumerate(nodes)]
            lines.log(step, as_row({"policy": ranks}))
        deadline = time.monotonic() + 20
        while not until(world):
            assert time.monotonic() < deadline, world.kinds()
            time.sleep(0.02)
        if then is STOPPED:  # the node is evicted, and its Ray ends
            world.nodes.discard(address)
        return then

    return act


def stops(world: World) -> bool:
    return world.jobs.stopped.is_set()


def stays(world: World) -> bool:
    return bool(told(world, slow_nodes.STAYS))


def test_a_slow_node_leaves_for_the_spare_after_the_job_has_saved(tmp_path: Path) -> None:
    world = cluster(tmp_path)
    chosen: list[str] = []

    def slow(world: World) -> JobInfo:
        chosen.append(world.control.roll().present[1])
        return slow_at(ADDRESSES[chosen[0]], stops)(world)

    def comes_back(world: World) -> JobInfo:
        with pytest.raises(RefusedError, match=r"computes 2.00 times .* may be back in "):
            world.check_in(chosen[0], ADDRESSES[chosen[0]])
        assert "rollcall_slow_nodes_replaced_total 1" in world.control._scraped()
        return ends(FINISHED, at_step=30)(world)

    world.jobs._acts = [slow, comes_back]
    assert world.lives().name == "finished"
    first, second = (roll["details"]["present"] for roll in told(world, "roll"))
    spare = (set("abcd") - set(first)).pop()
    assert sorted(second) == sorted({*first, spare} - set(chosen))
    (left,), (moved,), (decision,) = (
        told(world, SLOW_LEFT),
        told(world, MOVED),
        told(world, "decision"),
    )
    assert left["details"]["node"] == chosen[0]
    assert left["details"]["address"] == ADDRESSES[chosen[0]]
    assert "computes 2.00 times as long as its peers" in left["sentence"]
    assert (moved["details"]["lost"], moved["details"]["node"]) == (chosen[0], spare)
    assert decision["details"]["answer"] == "swap"
    assert not told(world, "failure")
    kinds = world.kinds()
    assert kinds.index("straggler") < kinds.index("stop") < kinds.index(SLOW_LEFT)


def test_without_a_free_spare_a_slow_node_stays_until_one_is_there(tmp_path: Path) -> None:
    def slow(world: World) -> JobInfo:
        def late(world: World) -> bool:
            if stays(world) and "d" not in world.control.roll().spares:
                assert not stops(world)
                world.check_in("d", ADDRESSES["d"])
            return stops(world)

        return slow_at(ADDRESSES["b"], late)(world)

    world = cluster(tmp_path, slow, ends(FINISHED, at_step=30), names="abc")
    assert world.lives().name == "finished"
    (stayed,) = told(world, slow_nodes.STAYS)
    assert stayed["details"] == {"node": "b", "why": "no-spare"}
    assert [one["details"]["node"] for one in told(world, SLOW_LEFT)] == ["b"]
    assert told(world, "roll")[-1]["details"]["present"] == ["a", "c", "d"]


def test_a_slow_node_leaves_the_spare_to_a_worker_that_is_lost(tmp_path: Path) -> None:
    looked: list[float] = []

    def slow(world: World) -> JobInfo:
        lost, slow, _ = world.control.roll().present
        with world.control._registry._lock:
            world.control._registry._entries[lost].hung_up = True

        def told_for_a_while(world: World) -> bool:
            if told(world, "straggler"):
                looked.append(time.monotonic())
            return bool(looked) and looked[-1] - looked[0] > 1.5

        ended = slow_at(ADDRESSES[slow], told_for_a_while, FINISHED)(world)
        assert not stops(world)
        return ended

    world = cluster(tmp_path, slow)
    assert world.lives().name == "finished"
    assert not {SLOW_LEFT, slow_nodes.STAYS, "stop"} & set(world.kinds())


def test_a_spare_whose_parts_have_become_worse_takes_no_place(tmp_path: Path) -> None:
    def slow(world: World) -> JobInfo:
        (spare,) = world.control.roll().spares
        world.control.health.add(spare, [Change(HealthKind.PCIE_WIDTH, "GPU 0", "PCIe has x1")])
        return slow_at(ADDRESSES[world.control.roll().present[0]], stays, FINISHED)(world)

    world = cluster(tmp_path, slow)
    assert world.lives().name == "finished"
    assert told(world, slow_nodes.STAYS)[0]["details"]["why"] == "no-spare"
    assert told(world, "node-change")[0]["details"]["kind"] == HealthKind.PCIE_WIDTH
    assert not told(world, SLOW_LEFT)


def test_a_slow_head_stays_and_its_page_says_so(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    scraped: list[str] = []

    def seen(world: World) -> bool:
        shown[:] = world.control.state()["slow_nodes"]
        scraped.append(world.control._scraped())
        return stays(world) and bool(shown)

    world = cluster(tmp_path, slow_at(HEAD, seen, FINISHED))
    assert world.lives().name == "finished"
    assert [(one["node"], one["why"]) for one in shown] == [("head", "head")]
    assert 'rollcall_slow_node_stays{node="head",why="head"} 1' in scraped[-1]
    assert not told(world, SLOW_LEFT)


def test_with_warn_a_slow_node_is_named_and_stays(tmp_path: Path) -> None:
    hot = Condition(clock=1200, watts=350, degrees=86, held_by=("the power limit",))

    def named(world: World) -> JobInfo:
        world.control._registry._entries["a"].gpus = [GpuUse(0.9, 1, 2, hot)]
        seen = slow_at(ADDRESSES["a"], lambda world: told(world, "straggler"), FINISHED)
        return seen(world)

    world = cluster(tmp_path, named, names="abc", ROLLCALL_STRAGGLERS="warn")
    assert world.lives().name == "finished"
    (event,) = told(world, "straggler")
    assert "its slowest GPU now: 1200 MHz, 350 W, 86 °C; its clocks" in event["sentence"]
    assert event["details"]["evidence"].endswith("held down by the power limit")
    assert not {SLOW_LEFT, slow_nodes.STAYS, "stop"} & set(world.kinds())


def test_a_later_head_refuses_the_node_too_and_counts_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first = cluster(tmp_path / "run", names="")
    why = "policy-0 on a computes 2.00 times as long as its peers"
    first.journal.record(SLOW_LEFT, why, node="a", address=ADDRESSES["a"], why=why)

    def slow(world: World) -> JobInfo:
        with pytest.raises(RefusedError, match="may be back in"):
            world.check_in("a", ADDRESSES["a"])
        return slow_at(ADDRESSES["b"], stays, FINISHED)(world)

    world = cluster(tmp_path / "run", slow, names="", ROLLCALL_SPARE_WORKERS="0")
    for name in "bcd":
        world.later(0.3, partial(world.check_in, name, ADDRESSES[name]))
    assert world.lives().name == "finished"
    assert told(world, slow_nodes.STAYS)[0]["details"] == {"node": "b", "why": "too-often"}
