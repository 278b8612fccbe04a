"""Finds ranks that slow all others down, while the job runs, and tells of each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from contract.launch import rank_times
from contract.launch.rank_times import LARGEST_FILE
from entrypoint.cluster.slow_ranks import (
    MOST_STEPS,
    SLOWER,
    Against,
    History,
    SlowRank,
    Speed,
)
from entrypoint.run import log_files

WELL = 1.075
"""A rank that was slow is well again below it: within what equal GPUs differ by."""


def _is_well(speed: Speed) -> bool:
    """Whether a rank that was slow is not any more. Its slow steps are the past of a lone rank."""
    return speed.times < (WELL if speed.against is Against.PEERS else 1 / SLOWER)


@dataclass(slots=True)
class SlowRankWatch:
    """Reads the times of the ranks whenever there are new ones."""

    times: Path
    """The file of the times."""
    node_at: Callable[[str], str]
    """Returns the name of the node at an address."""
    speeds: Sequence[Speed] = ()
    """Of all ranks, in the newest steps."""
    _history: History = field(default_factory=History)
    _read: tuple[int, int, float] = (0, 0, 0.0)
    """Inode and size of the file when it was read last, and the time of its newest row."""
    _slow: dict[tuple[str, int], Speed] = field(default_factory=dict)

    def look(self) -> list[SlowRank]:
        """Return the ranks that have become slow, or are well again, since the last call."""
        with suppress(OSError):  # the next look reads it
            found = self.times.stat()
            inode, size, newest = self._read
            if (found.st_ino, found.st_size) == (inode, size):
                return []
            grew = found.st_ino == inode and found.st_size > size
            most = found.st_size - size + 1 if grew else LARGEST_FILE
            rows = log_files.last_rows(self.times, MOST_STEPS, most)
            new = [row for row in rows if rank_times.at_of(row) > newest]
            for row in new:
                self._history.add(row["step"], rank_times.of_row(row))
            newest = max([newest, *map(rank_times.at_of, new)])
            self._read = found.st_ino, found.st_size, newest
            self.speeds = self._history.speeds()
            return self._news()
        return []

    @property
    def slow(self) -> list[SlowRank]:
        """The ranks that are slow now."""
        return [SlowRank(speed, self.node_at(speed.address)) for speed in self._slow.values()]

    def _news(self) -> list[SlowRank]:
        told = []
        for key, speed in list(self._slow.items()):
            now = self._history.again(speed)
            if now is not None and not _is_well(now):
                self._slow[key] = now
                continue
            del self._slow[key]
            if now is not None:
                self._history.forget(now)  # longer windows still have the slow steps
                told.append(SlowRank(now, self.node_at(now.address), is_over=True))
        for speed in self.speeds:
            key = speed.role, speed.rank
            if (
                speed.is_slow
                and key not in self._slow
                and not any(one.speed.name == speed.name for one in told)
            ):
                self._slow[key] = speed
                told.append(SlowRank(speed, self.node_at(speed.address)))
        return told
