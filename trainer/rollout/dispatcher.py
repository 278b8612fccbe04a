"""Engines at work on partial rollouts: who has which, and what has ended.

Each engine is asked for a slice of work at a time, so that other weights, or a question, can come
between two. What an engine no longer knows of is given to it again; a lost one's, to another.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from trainer.cluster.pulse import Pulse
from trainer.cluster.worker_group import Pending
from trainer.rollout.engine import Engine
from trainer.rollout.engine_pool import EnginePool, silent
from trainer.rollout.staleness import levelled
from trainer.types import FinishedRollout, Key, PartialRollout, Sampling, SliceResult

SLICE = 0.1
"""Seconds of work that an engine is asked for at a time."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A slice of work under way."""

    writing: Pending[SliceResult]
    pulse: Pulse
    since: float = field(default_factory=time.monotonic)
    """A monotonic clock's seconds."""


@dataclass(slots=True)
class _Desk:
    """One engine's partial rollouts."""

    has: dict[Key, PartialRollout] = field(default_factory=dict)
    """As far as they are known here."""
    told_of: set[Key] = field(default_factory=set)
    """Of them those that the engine was given."""
    call: _Call | None = None

    def take(self, writing: SliceResult) -> list[FinishedRollout]:
        for one in writing.ended:
            self.has.pop(one.key, None)
        self.told_of = set(writing.left)
        return writing.ended


class Writers:
    def __init__(self, engines: EnginePool, sampling: Sampling, patience: float) -> None:
        """`patience`: seconds that an engine may take beyond a slice of work."""
        self._engines = engines
        self._sampling = sampling
        self._patience = patience
        self._desks = [_Desk() for _ in range(len(engines))]
        self._waiting: list[Sequence[PartialRollout]] = []
        """Groups that no engine is there for."""

    @property
    def busy(self) -> bool:
        return any(desk.has for desk in self._desks)

    @property
    def stalled(self) -> bool:
        """Whether nothing goes on before an engine is replaced."""
        return bool(self._waiting) and not self._engines.present

    def give(self, groups: Sequence[Sequence[PartialRollout]]) -> None:
        """Queue partial rollouts; one engine writes all of a group."""
        desks = [self._desks[number] for number in self._engines.present]
        if not desks:
            self._waiting += groups
            return
        groups, self._waiting = [*self._waiting, *groups], []
        loads = [len(desk.has) for desk in desks]
        rows = max((len(group) for group in groups), default=1)
        waiting = iter(groups)
        for desk, count in zip(desks, levelled(loads, rows, len(groups)), strict=True):
            for group in islice(waiting, count):
                desk.has |= {partial.key: partial for partial in group}

    def work(self, seconds: float) -> list[FinishedRollout]:
        """Keep all engines busy. What has ended; waits for that at most `seconds`."""
        for number, desk in enumerate(self._desks):
            if desk.has and not desk.call and number not in self._engines.present:
                self._pass_on(number)
        if self._waiting:
            self.give([])
        self._send()
        calls = [desk.call.writing for desk in self._desks if desk.call]
        if calls and not any(call.ready(0) for call in calls):
            calls[0].ready(seconds)
        return [ended for number in self._answered() for ended in self._receive(number)]

    def settle(self) -> list[FinishedRollout]:
        """Let every slice come to its end, and send no other."""
        ended = []
        while any(desk.call for desk in self._desks):
            ended += [one for who in self._answered(SLICE) for one in self._receive(who)]
        return ended

    def partials(self) -> list[PartialRollout]:
        """Returns all partial rollouts as they stand. Call `settle` first."""
        asked = {
            number: self._engines.send(number, Engine.partials)
            for number in self._engines.present
            if self._desks[number].told_of
        }
        answers = self._engines.answers(
            asked, self._engines.patience.part, "saying what it has written"
        )
        for number, partials in answers.items():
            desk = self._desks[number]
            desk.has |= {partial.key: partial for partial in partials if partial.key in desk.has}
        known = [partial for desk in self._desks for partial in desk.has.values()]
        for number in asked.keys() - answers.keys():
            self._pass_on(number)
        return [*known, *(partial for group in self._waiting for partial in group)]

    def _send(self) -> None:
        for number in self._engines.present:
            desk = self._desks[number]
            if desk.has and not desk.call:
                new = [partial for key, partial in desk.has.items() if key not in desk.told_of]
                writing = self._engines.send(number, Engine.write, new, self._sampling, SLICE)
                desk.call = _Call(writing, self._engines.pulse(number))

    def _answered(self, seconds: float = 0.0) -> Iterator[int]:
        """Who has come to the end of a slice, or is lost."""
        for number, desk in enumerate(self._desks):
            if desk.call and (desk.call.writing.ready(seconds) or self._overdue(desk.call)):
                yield number

    def _overdue(self, call: _Call) -> str | None:
        """How it did not answer, where it is waited for no longer."""
        if (seconds := call.pulse.silence()) > self._engines.patience.life:
            return f"for {seconds:.0f} s"
        if time.monotonic() - call.since > SLICE + self._patience:
            return f"within {self._patience:g} s: writing completions"
        return None

    def _receive(self, number: int) -> list[FinishedRollout]:
        """What came of a slice; the partial rollouts of an engine that is lost are passed on."""
        desk = self._desks[number]
        assert desk.call is not None
        call = desk.call
        if not call.writing.ready(0):
            if not (how := self._overdue(call)):
                return []  # it lives after all
            self._engines.lose(number, silent(number, how), len(desk.has))
        desk.call = None
        answers = self._engines.answers({number: call.writing}, 0, "writing", len(desk.has))
        if number in answers:
            return desk.take(answers[number])
        self._pass_on(number)
        return []

    def _pass_on(self, number: int) -> None:
        """Others write the partial rollouts, from where they are known here."""
        desk = self._desks[number]
        groups: dict[int, list[PartialRollout]] = defaultdict(list)
        for partial in desk.has.values():
            groups[partial.key[0]].append(partial)
        desk.has, desk.told_of, desk.call = {}, set(), None
        self.give(list(groups.values()))
