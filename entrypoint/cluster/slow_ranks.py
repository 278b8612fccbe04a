"""Pure: which ranks compute more slowly than equal ranks beside them, or than they did before.

What is compared is the time for each FLOP, so samples of different lengths make no difference. Its
logarithm against the median of the other ranks is a number a step. Over a window of steps, their
median and its standard error by the MAD (Iglewicz & Hoaglin 1993) say by how much a rank is slower,
and how sure that is. On a calm machine few steps suffice, on a busy one it takes more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any

from contract.launch.rank_times import RankTime

EQUAL = 1.08
"""Times the duration of its peers by which equal GPUs of one cluster differ (Sinha et al. 2022,
"Not All GPUs Are Created Equal"). A rank that is surely slower than that is slow."""
LASTING = 64
"""Steps at least that show so small a difference: what is over sooner is no fault of a node."""
SLOWER = 1.15
"""Times the duration of its peers from which on a rank is slow, if it is surely slower at all."""
SLOWER_THAN_BEFORE = 1 / 0.75
"""The same for a rank without peers: its samples change, too. nvidia-resiliency-ext calls a rank a
straggler from the score 0.75 on."""
SURE = 5.0
"""Standard errors from 0. tests/entrypoint/cluster/test_slow_ranks.py counts false alarms."""
WINDOWS = (16, 32, 64, 128, 256)
"""Steps. The shortest window that is sure decides."""
MOST_STEPS = 2 * WINDOWS[-1]
"""Read at most: a rank without peers is compared with a window before the newest one."""
SIGMA = 1.4826
"""Standard deviations in a MAD of normal values."""
OF_MEDIAN = math.sqrt(math.pi / 2)
"""Standard errors of the median in one of the mean, of normal values."""
FINEST = 0.01
"""Standard deviation at least: clocks and kernels are no finer."""


class Against(StrEnum):
    PEERS = "peers"
    PAST = "past"
    """The rank itself, in the steps before the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How long a rank computes, times the duration of what it is compared to."""

    role: str
    rank: int
    address: str
    gpu: str
    against: Against
    times: float
    sure: float
    """Standard errors between `times` and what equal ranks may take; 0 if it takes no longer."""
    window: int
    """Number of steps that say so."""
    first: int
    last: int
    """The first and the last of them."""

    @property
    def is_slower(self) -> bool:
        """Whether it would be slow if that were sure."""
        return self.times >= (EQUAL if self.against is Against.PEERS else SLOWER_THAN_BEFORE)

    @property
    def is_slow(self) -> bool:
        return self.sure >= SURE

    @property
    def name(self) -> str:
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A slow rank, or one that was slow and is well again."""

    speed: Speed
    node: str
    is_over: bool = False

    @property
    def sentence(self) -> str:
        speed = self.speed
        if self.is_over:
            as_what = "its peers" if speed.against is Against.PEERS else "before"
            return f"{speed.name} on {self.node} is as fast as {as_what} again"
        than = "its peers" if speed.against is Against.PEERS else "before"
        return (
            f"{speed.name} on {self.node} computes {speed.times:.2f} times as long as {than} for "
            f"the same work (steps {speed.first} to {speed.last})"
        )

    def details(self) -> dict[str, Any]:
        """Return what the event of the journal has."""
        speed = self.speed
        told = {"role": speed.role, "rank": speed.rank, "node": self.node}
        return {**told, "times": round(speed.times, 3), "against": speed.against}

    def as_dict(self) -> dict[str, Any]:
        return {**self.details(), "sentence": self.sentence}


@dataclass(slots=True)
class _Series:
    """A rank's numbers, step by step."""

    of: RankTime
    against: Against
    steps: deque[int]
    values: deque[float]


class History:
    """The newest steps of the ranks that compute now."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, int], _Series] = {}

    def add(self, step: int, of_roles: Mapping[str, Sequence[RankTime]]) -> None:
        """Add a step. A rank on another node or GPU than before begins a new history."""
        there = {(role, one.rank): one for role, times in of_roles.items() for one in times}
        for key, row in list(self._series.items()):
            if key not in there or not _is_same(there[key], row.of):
                del self._series[key]
        for role, times in of_roles.items():
            for device in {one.device for one in times}:
                self._add(role, step, [one for one in times if one.device == device])

    def _add(self, role: str, step: int, alike: Sequence[RankTime]) -> None:
        known = [one for one in alike if one.work and one.seconds]
        if len(known) < min(2, len(alike)):
            return
        against = Against.PEERS if len(alike) > 1 else Against.PAST
        values = [math.log(one.seconds / one.work) for one in known]
        others = _medians_of_others(values) if against is Against.PEERS else [0.0]
        for one, value, other in zip(known, values, others, strict=True):
            new = _Series(one, against, deque(maxlen=MOST_STEPS), deque(maxlen=MOST_STEPS))
            row = self._series.setdefault((role, one.rank), new)
            row.steps.append(step)
            row.values.append(value - other)

    def speeds(self) -> list[Speed]:
        """Return the speed of each rank that is known for long enough."""
        found = (_speed(role, row) for (role, _), row in sorted(self._series.items()))
        return [speed for speed in found if speed]

    def again(self, speed: Speed) -> Speed | None:
        """Return what the newest window of the same length says; None if the rank is gone."""
        row = self._series.get((speed.role, speed.rank))
        if row is None or row.of.address != speed.address:
            return None
        return _in_window(speed.role, row, speed.window)

    def forget(self, speed: Speed) -> None:
        """Begin a new history of a rank."""
        self._series.pop((speed.role, speed.rank), None)


def _is_same(one: RankTime, other: RankTime) -> bool:
    """Whether two times are of the same part of the cluster."""
    return (one.address, one.device, one.gpu) == (other.address, other.device, other.gpu)


def _medians_of_others(values: Sequence[float]) -> list[float]:
    """Return for each value the median of the others."""
    order = sorted(range(len(values)), key=values.__getitem__)
    inner, medians = len(values) - 1, [0.0] * len(values)
    for place, index in enumerate(order):
        low, high = (inner - 1) // 2, inner // 2
        around = (order[at + (at >= place)] for at in (low, high))
        medians[index] = sum(values[one] for one in around) / 2
    return medians


def _speed(role: str, row: _Series) -> Speed | None:
    """Return the speed in the shortest window that is sure, else in the shortest; None if new."""
    found: list[Speed] = []
    for size in WINDOWS:
        if (speed := _in_window(role, row, size)) is None:
            break
        if speed.is_slow:
            return speed
        found.append(speed)
    return found[0] if found else None


def _in_window(role: str, row: _Series, size: int) -> Speed | None:
    values = list(row.values)
    newest, before = values[-size:], values[-2 * size : -size]
    if len(newest) < size or (row.against is Against.PAST and len(before) < size):
        return None
    location = median(newest) - (median(before) if row.against is Against.PAST else 0.0)
    speed = Speed(
        role=role,
        rank=row.of.rank,
        address=row.of.address,
        gpu=row.of.gpu,
        against=row.against,
        times=math.exp(location),
        sure=0.0,
        window=size,
        first=row.steps[-size],
        last=row.steps[-1],
    )
    if not speed.is_slower:
        return speed
    error = _error(values, size) * (1 if row.against is Against.PEERS else math.sqrt(2))
    return replace(speed, sure=_distance(speed, location) / error)


def _distance(speed: Speed, location: float) -> float:
    """Return how far the rank is from what equal ranks may take, as a logarithm.

    A large difference is one from 0, and a small one is one from EQUAL.
    """
    if speed.against is Against.PAST or speed.times >= SLOWER:
        return location
    return location - math.log(EQUAL) if speed.window >= LASTING else 0.0


def _error(values: Sequence[float], size: int) -> float:
    """Return the standard error of the median of the newest `size` values.

    Few values may lie close to one another by chance: the spread of all of them is the least.
    """
    spread = SIGMA * max(_mad(values), _mad(values[-size:]))
    return OF_MEDIAN * max(FINEST, spread) / math.sqrt(size)


def _mad(values: Sequence[float]) -> float:
    """Return the median of the distances from the median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)
