"""Passes that ranks repeat: who computes wrongly, and what the data have made."""

from __future__ import annotations

import math

import pytest

from trainer.workers.pass_check import KNOWN, SPIKE, Result, Spikes, judge, worst

GOOD, BAD, NAN = Result(1.0, 2.0), Result(3.0, 2.0), Result(math.nan, 2.0)
OWN = [1.0, 5.0, 9.0, 13.0]
"""What each rank's samples give on a rank that computes rightly."""


def right(owner: int) -> Result:
    return Result(OWN[owner], 2 * OWN[owner])


def computed(world: int, wrong: dict[int, Result]) -> list[list[Result]]:
    """What each rank computes from its own samples and those of the next ranks."""
    opinions = min(3, world)
    return [
        [wrong.get(rank, right((rank + k) % world)) for k in range(opinions)]
        for rank in range(world)
    ]


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("wrong", [BAD, NAN])
def test_of_three_ranks_or_more_the_one_that_computes_something_else_is_named(
    world: int, bad: int, wrong: Result
) -> None:
    again = computed(world, {bad: wrong})
    found = judge([results[0] for results in again], again)
    assert found.bad == (bad,)
    assert found.told.startswith("it computes another loss or gradient from rank ")


def test_of_two_ranks_that_differ_the_one_without_a_finite_loss_is_named_else_both() -> None:
    again = computed(2, {1: NAN})
    assert judge([results[0] for results in again], again).bad == (1,)
    again = computed(2, {1: BAD})
    assert judge([results[0] for results in again], again).bad == (0, 1)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_rank_that_computes_something_else_the_second_time_is_named(world: int) -> None:
    again = computed(world, {})
    first = [results[0] for results in again]
    first[world - 1] = NAN
    found = judge(first, again)
    assert (found.bad, found.told[:29]) == ((world - 1,), "it computes another loss from")


@pytest.mark.parametrize(("world", "on"), [(1, "the same rank"), (2, "another rank")])
def test_what_repeats_is_made_by_the_data(world: int, on: str) -> None:
    again = [[NAN] * min(3, world)] * world
    found = judge([NAN] * world, again)
    assert not found.bad
    assert found.told == f"the data or the learning rate make it: it repeats on {on}"


def test_ranks_that_share_samples_are_compared_with_their_like() -> None:
    """Ranks 0 and 1 have the first samples, 2 and 3 the others: ranks 0 and 2 compute alike."""
    again = [
        [right(rank), right((rank + 2) % 4), right((rank + 4) % 4)][: 3 if rank < 4 else 0]
        for rank in range(4)
    ]
    again[3] = [NAN, NAN]
    again = [results[:2] for results in again]
    assert judge([results[0] for results in again], again, 2).bad == (3,)


def test_results_that_are_rounded_otherwise_are_the_same() -> None:
    again = computed(4, {2: Result(OWN[2] * 1.0005, 2 * OWN[2])})
    again[2][1:] = [right(3), right(0)]
    assert not judge([results[0] for results in again], again).bad


def test_a_spike_is_known_after_some_values_and_is_larger_than_all_of_them() -> None:
    spikes = Spikes()
    assert spikes.has(math.nan)
    assert spikes.has(math.inf)
    assert not any(spikes.has(float(value)) for value in range(1, KNOWN + 1))
    assert not spikes.has(SPIKE * KNOWN)
    assert spikes.has(SPIKE * SPIKE * KNOWN + 1)
    spikes.accept(SPIKE * SPIKE * KNOWN + 1)
    assert not spikes.has(SPIKE * SPIKE * KNOWN + 1), "the data may do so again"


@pytest.mark.parametrize("place", range(3))
def test_a_value_that_is_no_number_is_worse_than_all_wherever_it_is(place: int) -> None:
    values = [1.0, 2.0, 3.0]
    assert worst(values) == 3.0
    values[place] = math.nan
    assert math.isnan(worst(values))
