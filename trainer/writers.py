"""Engines at work on drafts: who has which, and what has ended.

Each engine is asked for a slice of work at a time, so that other weights, or a question, can come
between two. What an engine no longer knows of (it was replaced) is given to it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from trainer.actors.group import Group, Pending
from trainer.engines.base import Draft, Ended, Engine, Key, Writing
from trainer.staleness import levelled
from trainer.types import Sampling, TrainingError

SLICE = 0.1
"""Seconds of work that an engine is asked for at a time."""


@dataclass(slots=True)
class _Desk:
    """One engine's drafts."""

    has: dict[Key, Draft] = field(default_factory=dict)
    """As far as they are known here."""
    told_of: set[Key] = field(default_factory=set)
    """Of them those that the engine was given."""
    call: Pending[Writing] | None = None
    since: float = 0.0

    def take(self, writing: Writing) -> list[Ended]:
        for one in writing.ended:
            self.has.pop(one.key, None)
        self.told_of = set(writing.left)
        return writing.ended


class Writers:
    def __init__(self, engines: Group[Engine], sampling: Sampling, patience: float) -> None:
        """`patience`: seconds that an engine may take beyond a slice of work."""
        self._engines = engines
        self._sampling = sampling
        self._patience = patience
        self._desks = [_Desk() for _ in range(len(engines))]

    @property
    def busy(self) -> bool:
        return any(desk.has for desk in self._desks)

    def give(self, groups: Sequence[Sequence[Draft]]) -> None:
        """Drafts to be written; those of a group by the same engine."""
        loads = [len(desk.has) for desk in self._desks]
        rows = max((len(group) for group in groups), default=1)
        waiting = iter(groups)
        for desk, count in zip(self._desks, levelled(loads, rows, len(groups)), strict=True):
            for group in islice(waiting, count):
                desk.has |= {draft.key: draft for draft in group}

    def work(self, seconds: float) -> list[Ended]:
        """Keep all engines busy. What has ended; waits for that at most `seconds`."""
        self._send()
        working = [desk for desk in self._desks if desk.call]
        if working and not any(desk.call.ready(0) for desk in working if desk.call):
            first = working[0].call
            assert first is not None
            first.ready(seconds)
        return [ended for desk in self._answered() for ended in self._receive(desk)]

    def settle(self) -> list[Ended]:
        """Let every slice come to its end, and send no other."""
        ended = []
        while any(desk.call for desk in self._desks):
            ended += [one for desk in self._answered(SLICE) for one in self._receive(desk)]
        return ended

    def drafts(self) -> list[Draft]:
        """All drafts as they stand; settled before."""
        asked = [
            (number, desk, self._engines.send(number, Engine.drafts))
            for number, desk in enumerate(self._desks)
            if desk.told_of
        ]
        for number, desk, answer in asked:
            if not answer.ready(self._patience):
                self._give_up(number)
            desk.has |= {draft.key: draft for draft in answer.result() if draft.key in desk.has}
        return [draft for desk in self._desks for draft in desk.has.values()]

    def _send(self) -> None:
        for number, desk in enumerate(self._desks):
            if desk.has and not desk.call:
                new = [draft for key, draft in desk.has.items() if key not in desk.told_of]
                desk.since = time.monotonic()
                desk.call = self._engines.send(number, Engine.write, new, self._sampling, SLICE)

    def _answered(self, seconds: float = 0.0) -> Iterator[_Desk]:
        """Raises TrainingError for an engine that has kept silent for too long."""
        for number, desk in enumerate(self._desks):
            if desk.call and desk.call.ready(seconds):
                yield desk
            elif desk.call and time.monotonic() - desk.since > SLICE + self._patience:
                self._give_up(number)

    def _receive(self, desk: _Desk) -> list[Ended]:
        assert desk.call is not None
        call, desk.call = desk.call, None
        return desk.take(call.result())

    def _give_up(self, number: int) -> None:
        raise TrainingError(
            f"engine-{number} did not answer within {self._patience:g} s: writing completions"
        )
