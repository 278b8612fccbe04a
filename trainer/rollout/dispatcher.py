"""Gives partial rollouts to engines in slices of time, and takes the finished completions.

An engine has its next slice before it ends one, so that it never waits for the driver. After
`settle` no engine has a slice: it can take new weights, or answer a call. If an engine no longer
has a rollout, the dispatcher sends the rollout again. Rollouts of a lost engine go to another
engine.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.restarts import silent
from trainer.cluster.worker_group import Pending
from trainer.config.layout import Role
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import Engine
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.staleness import balance
from trainer.types import FinishedRollout, Key, PartialRollout, SliceResult

SLICE = 0.05
"""Seconds of one slice of work."""
AHEAD = 2
"""Slices that an engine has at a time: it begins the next one while the driver reads the last."""
HOME_SURPLUS = 8
"""Most rollouts that an engine may have beyond others and still get one whose context it knows."""
WAIT_SECONDS = 0.02
"""Longest wait for a slice before the next look at the other engines."""


class Dispatcher(Protocol):
    """Has rollouts written: whole completions, or episodes. See `EngineDispatcher`."""

    @property
    def busy(self) -> bool: ...

    @property
    def stalled(self) -> bool: ...

    def give(self, groups: Sequence[Sequence[PartialRollout]]) -> None: ...

    def work(self, seconds: float) -> list[FinishedRollout]: ...

    def finish(self) -> list[FinishedRollout]: ...

    def settle(self) -> list[FinishedRollout]: ...

    def partials(self) -> list[PartialRollout]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """A slice that an engine is writing, or writes next."""

    pending: Pending[SliceResult]
    heartbeat: Heartbeat
    new: frozenset[Key]
    """The rollouts that came with the call."""
    since: float = field(default_factory=time.monotonic)
    """Time of a monotonic clock, in seconds, since which the engine can write the slice."""


@dataclass(slots=True)
class _Queue:
    """One engine's partial rollouts."""

    rollouts: dict[Key, PartialRollout] = field(default_factory=dict)
    """The rollouts with the tokens that the driver knows."""
    acknowledged: set[Key] = field(default_factory=set)
    """Keys the engine has acknowledged; the rest are still to be sent."""
    calls: deque[_Call] = field(default_factory=deque)
    """The slices of the engine, in order."""

    @property
    def unsent(self) -> list[PartialRollout]:
        sent = self.acknowledged.union(*(call.new for call in self.calls))
        return [partial for key, partial in self.rollouts.items() if key not in sent]

    def take(self, result: SliceResult) -> list[FinishedRollout]:
        """Take the result of the first slice: the engine is at the next one."""
        self.calls.popleft()
        if self.calls:
            self.calls[0] = replace(self.calls[0], since=time.monotonic())
        for finished in result.ended:
            self.rollouts.pop(finished.key, None)
        self.acknowledged = set(result.left)
        return result.ended


class EngineDispatcher:
    def __init__(self, engines: EnginePool, sampling: SamplingSettings, patience: float) -> None:
        """`patience`: seconds that an engine may take longer than its slice."""
        self._engines = engines
        self._sampling = sampling
        self._patience = patience
        self._queues = [_Queue() for _ in range(len(engines))]
        self._waiting: list[Sequence[PartialRollout]] = []
        """Groups that wait because no engine is left."""

    @property
    def busy(self) -> bool:
        return any(queue.rollouts for queue in self._queues)

    @property
    def stalled(self) -> bool:
        """Whether rollouts wait until an engine is replaced."""
        return bool(self._waiting) and not self._engines.present

    def give(self, groups: Sequence[Sequence[PartialRollout]]) -> None:
        """Queue partial rollouts; one engine writes all of a group."""
        queues = [self._queues[number] for number in self._engines.present]
        if not queues:
            self._waiting += groups
            return
        groups, self._waiting = [*self._waiting, *groups], []
        groups = [group for group in groups if not self._goes_home(group)]
        loads = [len(queue.rollouts) for queue in queues]
        rows = max((len(group) for group in groups), default=1)
        waiting = iter(groups)
        for queue, count in zip(queues, balance(loads, rows, len(groups)), strict=True):
            for group in islice(waiting, count):
                queue.rollouts |= {partial.key: partial for partial in group}

    def _goes_home(self, group: Sequence[PartialRollout]) -> bool:
        """Queue the group at the engine that knows its context, unless others have far less."""
        home = group[0].home if group else None
        if home is None or home not in self._engines.present:
            return False
        least = min(len(self._queues[number].rollouts) for number in self._engines.present)
        rollouts = self._queues[home].rollouts
        if len(rollouts) - least > HOME_SURPLUS:
            return False
        rollouts |= {partial.key: partial for partial in group}
        return True

    def work(self, seconds: float) -> list[FinishedRollout]:
        """Keep all engines busy. Returns what has finished, after a wait of at most `seconds`."""
        for number, queue in enumerate(self._queues):
            if queue.rollouts and not queue.calls and number not in self._engines.present:
                self._pass_on(number)
        if self._waiting:
            self.give([])
        self._send()
        if calls := [queue.calls[0].pending for queue in self._queues if queue.calls]:
            self._engines.wait_any(calls, seconds)
        return [finished for number in self._answered() for finished in self._receive(number)]

    def finish(self) -> list[FinishedRollout]:
        """Wait until every rollout has ended, or no engine is left. Returns what has finished."""
        finished = []
        while self.busy:
            finished += self.work(WAIT_SECONDS)
        return finished

    def settle(self) -> list[FinishedRollout]:
        """Wait until every slice has ended, and send no other. Returns what has finished."""
        finished = []
        while any(queue.calls for queue in self._queues):
            for number in self._answered(SLICE):
                finished += self._receive(number)
        return finished

    def close(self) -> None:
        """Engines have nothing to close here."""

    def partials(self) -> list[PartialRollout]:
        """Return all partial rollouts as they stand. Call `settle` first."""
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
            queue.rollouts |= {
                partial.key: partial for partial in partials if partial.key in queue.rollouts
            }
        known = [partial for queue in self._queues for partial in queue.rollouts.values()]
        for number in asked.keys() - answers.keys():
            self._pass_on(number)
        return [*known, *(partial for group in self._waiting for partial in group)]

    def _send(self) -> None:
        for number in self._engines.present:
            queue = self._queues[number]
            while queue.rollouts and len(queue.calls) < AHEAD:
                new = queue.unsent
                pending = self._engines.send(number, Engine.write, new, self._sampling, SLICE)
                keys = frozenset(partial.key for partial in new)
                queue.calls.append(_Call(pending, self._engines.heartbeat(number), keys))

    def _answered(self, seconds: float = 0.0) -> Iterator[int]:
        """Yields each engine whose slice has ended, or that is lost."""
        for number, queue in enumerate(self._queues):
            if not queue.calls:
                continue
            call = queue.calls[0]
            if call.pending.ready(seconds) or self._overdue(call):
                yield number

    def _overdue(self, call: _Call) -> str | None:
        """Return how the engine failed to answer; None if the driver still waits for it."""
        if (seconds := call.heartbeat.silence()) > self._engines.patience.life:
            return f"for {seconds:.0f} s"
        if time.monotonic() - call.since > SLICE + self._patience:
            return f"within {self._patience:g} s: writing completions"
        return None

    def _receive(self, number: int) -> list[FinishedRollout]:
        """Return what finished in a slice. Other engines get the rollouts of a lost engine."""
        queue = self._queues[number]
        call = queue.calls[0]
        if not call.pending.ready(0):
            if not (how := self._overdue(call)):
                return []  # the engine lives after all
            error = silent(f"{Role.ENGINE}-{number}", Role.ENGINE, how)
            self._engines.lose(number, error, len(queue.rollouts))
        answers = self._engines.answers({number: call.pending}, 0, "writing", len(queue.rollouts))
        if number in answers:
            return [replace(one, engine=number) for one in queue.take(answers[number])]
        self._pass_on(number)
        return []

    def _pass_on(self, number: int) -> None:
        """Give the rollouts to other engines, with the tokens that the driver knows."""
        queue = self._queues[number]
        groups: dict[int, list[PartialRollout]] = defaultdict(list)
        for partial in queue.rollouts.values():
            groups[partial.key[0]].append(partial)
        queue.rollouts, queue.acknowledged = {}, set()
        queue.calls.clear()
        self.give(list(groups.values()))
