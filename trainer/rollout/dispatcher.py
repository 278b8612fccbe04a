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

from trainer.cluster.heartbeat import Heartbeat
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
    heartbeat: Heartbeat
    since: float = field(default_factory=time.monotonic)
    """A monotonic clock's seconds."""


@dataclass(slots=True)
class _Queue:
    """One engine's partial rollouts."""

    has: dict[Key, PartialRollout] = field(default_factory=dict)
    """As the driver knows them."""
    acknowledged: set[Key] = field(default_factory=set)
    """Keys the engine has acknowledged; the rest are still to be sent."""
    call: _Call | None = None

    def take(self, writing: SliceResult) -> list[FinishedRollout]:
        for one in writing.ended:
            self.has.pop(one.key, None)
        self.acknowledged = set(writing.left)
        return writing.ended


class EngineDispatcher:
    def __init__(self, engines: EnginePool, sampling: Sampling, patience: float) -> None:
        """`patience`: seconds that an engine may take beyond a slice of work."""
        self._engines = engines
        self._sampling = sampling
        self._patience = patience
        self._queues = [_Queue() for _ in range(len(engines))]
        self._waiting: list[Sequence[PartialRollout]] = []
        """Groups that wait because no engine is left."""

    @property
    def busy(self) -> bool:
        return any(queue.has for queue in self._queues)

    @property
    def stalled(self) -> bool:
        """Whether nothing goes on before an engine is replaced."""
        return bool(self._waiting) and not self._engines.present

    def give(self, groups: Sequence[Sequence[PartialRollout]]) -> None:
        """Queue partial rollouts; one engine writes all of a group."""
        queues = [self._queues[number] for number in self._engines.present]
        if not queues:
            self._waiting += groups
            return
        groups, self._waiting = [*self._waiting, *groups], []
        loads = [len(queue.has) for queue in queues]
        rows = max((len(group) for group in groups), default=1)
        waiting = iter(groups)
        for queue, count in zip(queues, levelled(loads, rows, len(groups)), strict=True):
            for group in islice(waiting, count):
                queue.has |= {partial.key: partial for partial in group}

    def work(self, seconds: float) -> list[FinishedRollout]:
        """Keep all engines busy. What has ended; waits for that at most `seconds`."""
        for number, queue in enumerate(self._queues):
            if queue.has and not queue.call and number not in self._engines.present:
                self._pass_on(number)
        if self._waiting:
            self.give([])
        self._send()
        calls = [queue.call.writing for queue in self._queues if queue.call]
        if calls and not any(call.ready(0) for call in calls):
            calls[0].ready(seconds)
        return [ended for number in self._answered() for ended in self._receive(number)]

    def settle(self) -> list[FinishedRollout]:
        """Let every slice come to its end, and send no other."""
        ended = []
        while any(queue.call for queue in self._queues):
            ended += [one for who in self._answered(SLICE) for one in self._receive(who)]
        return ended

    def partials(self) -> list[PartialRollout]:
        """Returns all partial rollouts as they stand. Call `settle` first."""
        asked = {
            number: self._engines.send(number, Engine.partials)
            for number in self._engines.present
            if self._queues[number].acknowledged
        }
        answers = self._engines.answers(
            asked, self._engines.patience.part, "saying what it has written"
        )
        for number, partials in answers.items():
            queue = self._queues[number]
            queue.has |= {partial.key: partial for partial in partials if partial.key in queue.has}
        known = [partial for queue in self._queues for partial in queue.has.values()]
        for number in asked.keys() - answers.keys():
            self._pass_on(number)
        return [*known, *(partial for group in self._waiting for partial in group)]

    def _send(self) -> None:
        for number in self._engines.present:
            queue = self._queues[number]
            if queue.has and not queue.call:
                new = [
                    partial for key, partial in queue.has.items() if key not in queue.acknowledged
                ]
                writing = self._engines.send(number, Engine.write, new, self._sampling, SLICE)
                queue.call = _Call(writing, self._engines.heartbeat(number))

    def _answered(self, seconds: float = 0.0) -> Iterator[int]:
        """Who has come to the end of a slice, or is lost."""
        for number, queue in enumerate(self._queues):
            if queue.call and (queue.call.writing.ready(seconds) or self._overdue(queue.call)):
                yield number

    def _overdue(self, call: _Call) -> str | None:
        """How it did not answer, where it is waited for no longer."""
        if (seconds := call.heartbeat.silence()) > self._engines.patience.life:
            return f"for {seconds:.0f} s"
        if time.monotonic() - call.since > SLICE + self._patience:
            return f"within {self._patience:g} s: writing completions"
        return None

    def _receive(self, number: int) -> list[FinishedRollout]:
        """What came of a slice; the partial rollouts of an engine that is lost are passed on."""
        queue = self._queues[number]
        assert queue.call is not None
        call = queue.call
        if not call.writing.ready(0):
            if not (how := self._overdue(call)):
                return []  # it lives after all
            self._engines.lose(number, silent(number, how), len(queue.has))
        queue.call = None
        answers = self._engines.answers({number: call.writing}, 0, "writing", len(queue.has))
        if number in answers:
            return queue.take(answers[number])
        self._pass_on(number)
        return []

    def _pass_on(self, number: int) -> None:
        """Others write the partial rollouts, from where they are known here."""
        queue = self._queues[number]
        groups: dict[int, list[PartialRollout]] = defaultdict(list)
        for partial in queue.has.values():
            groups[partial.key[0]].append(partial)
        queue.has, queue.acknowledged, queue.call = {}, set(), None
        self.give(list(groups.values()))
