"""Which ranks are slow: recorded times of a busy machine, and what a slow rank makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from contract.launch.rank_times import RankTime
from entrypoint.cluster.slow_ranks import EQUAL, LASTING, WINDOWS, Against, History, Speed
from tests.support.repository import DATA

Times = list[RankTime]


def timed(seconds: Sequence[float], work: Sequence[float], device: str = "H100") -> Times:
    return [
        RankTime(rank, f"10.0.0.{rank}", device, f"GPU-{rank}", one, amount)
        for rank, (one, amount) in enumerate(zip(seconds, work, strict=True))
    ]


def recorded() -> list[Times]:
    """The steps of three equal ranks."""
    lines = (DATA / "rank_times" / "busy.tsv").read_text().splitlines()
    rows = [[float(text) for text in line.split("\t")] for line in lines]
    return [timed(row[:3], row[3:]) for row in rows]


def slowed(step: Times, rank: int, times: float) -> Times:
    found = [one.seconds * (times if one.rank == rank else 1) for one in step]
    return timed(found, [one.work for one in step])


def calm(steps: int, *, ragged: float = 4.0, noise: float = 0.02) -> Iterator[Times]:
    """Steps of four ranks whose work differs up to `ragged` times, on a calm machine."""
    drawn = random.Random(7)
    for _ in range(steps):
        work = [drawn.uniform(1, ragged) for _ in range(4)]
        yield timed([one * drawn.gauss(1, noise) for one in work], work)


def slow(steps: Sequence[Times], role: str = "policy") -> list[tuple[int, Speed]]:
    """Number of steps → a rank that is slow by then."""
    history, found = History(), []
    for number, times in enumerate(steps, start=1):
        history.add(number, {role: times})
        found += [(number, speed) for speed in history.speeds() if speed.is_slow]
    return found


def test_equal_ranks_of_a_busy_machine_raise_no_alarm() -> None:
    assert slow(recorded()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fewer_than_one_step_in_ten_thousand_has_a_false_alarm() -> None:
    """The recorded steps again and again, 64 in a row, as if each rank was another one."""
    steps, drawn, alarms = recorded(), random.Random(1), 0
    for _ in range(10):
        made: list[Times] = []
        for _ in range(16):
            begin, order = drawn.randrange(len(steps) - 64), drawn.sample(range(3), 3)
            for step in steps[begin : begin + 64]:
                one = [step[rank] for rank in order]
                made.append(timed([t.seconds for t in one], [t.work for t in one]))
        alarms += len({number for number, _ in slow(made)})
    assert alarms <= 1


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(("times", "within"), [(1.3, WINDOWS[-1]), (2.0, 64)])
def test_a_rank_that_becomes_slow_on_a_busy_machine_is_named_and_no_other(
    rank: int, times: float, within: int
) -> None:
    steps = recorded()[: 64 + within]
    found = slow([*steps[:64], *(slowed(step, rank, times) for step in steps[64:])])
    assert {speed.rank for _, speed in found} == {rank}
    assert found[0][0] > 64
    assert found[-1][1].times == pytest.approx(times, rel=0.3)


def test_on_a_calm_machine_the_shortest_window_names_a_rank_whatever_its_samples() -> None:
    steps = [slowed(step, 2, 1.3) for step in calm(WINDOWS[0])]
    ((number, speed),) = slow(steps)
    assert (number, speed.name, speed.against) == (WINDOWS[0], "policy-2", Against.PEERS)
    assert (speed.first, speed.last) == (1, WINDOWS[0])
    assert speed.times == pytest.approx(1.3, rel=0.05)


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.05])
def test_what_equal_gpus_differ_by_is_no_alarm(noise: float) -> None:
    assert slow([slowed(step, 2, EQUAL) for step in calm(600, noise=noise)]) == []


def test_a_rank_that_is_a_tenth_slower_is_named_once_that_lasts() -> None:
    steps = [*calm(50), *(slowed(step, 2, 1.1) for step in calm(WINDOWS[-1]))]
    found = slow(steps)
    assert {speed.name for _, speed in found} == {"policy-2"}
    assert found[0][0] >= 50 + LASTING
    assert found[0][1].window >= LASTING
    passing = [*(slowed(step, 2, 1.1) for step in calm(WINDOWS[1])), *calm(100)]
    assert slow(passing) == []


def test_ranks_on_other_devices_are_no_peers() -> None:
    """Two of each model of GPU: the older ones are not slow, and the slow one of them is."""
    steps = []
    for fast, old in zip(calm(40), calm(40), strict=True):
        older = [one.seconds * 3 for one in old[:2]]
        step = [*fast[:2], *timed(older, [one.work for one in old[:2]], "A100")]
        steps.append(
            [
                RankTime(n, one.address, one.device, one.gpu, one.seconds, one.work)
                for n, one in enumerate(step)
            ]
        )
    assert slow(steps) == []
    slower = [
        [
            RankTime(n, t.address, t.device, t.gpu, t.seconds * (1.5 if n == 3 else 1), t.work)
            for n, t in enumerate(step)
        ]
        for step in steps
    ]
    assert {speed.rank for _, speed in slow(slower)} == {3}


def test_a_rank_without_peers_is_compared_with_its_own_past() -> None:
    alone = [step[:1] for step in calm(120)]
    assert slow(alone) == []
    found = slow([*alone[:60], *(slowed(step, 0, 1.6) for step in alone[60:])])
    assert found[0][1].against is Against.PAST
    assert 60 < found[0][0] <= 60 + WINDOWS[1]


def test_a_rank_that_moves_to_another_node_is_judged_there_anew() -> None:
    steps = [slowed(step, 2, 2.0) for step in calm(WINDOWS[0] - 1)]
    moved = [
        [
            RankTime(one.rank, "10.0.0.9", one.device, one.gpu, one.seconds, one.work)
            if one.rank == 2
            else one
            for one in step
        ]
        for step in calm(WINDOWS[0] - 1)
    ]
    assert slow([*steps, *moved]) == []


def test_a_step_without_samples_for_a_rank_says_nothing_of_it() -> None:
    idle = timed([0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0])
    assert slow([idle] * 100) == []


def test_a_rank_that_moves_leaves_the_others_their_history() -> None:
    steps = [slowed(step, 2, 2.0) for step in calm(WINDOWS[0])]
    elsewhere = RankTime(0, "10.0.0.9", "H100", "GPU-9", 1.0, 1.0)
    moved = [[elsewhere, *step[1:]] for step in steps[10:]]
    found = slow([*steps[:10], *moved])
    assert [(number, speed.rank) for number, speed in found] == [(WINDOWS[0], 2)]
