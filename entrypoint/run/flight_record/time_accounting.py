"""A run in numbers, counted from its journal event by event: each event costs the same."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from typing import Any

from contract.files import stored_json
from entrypoint.run.attempt_ends import BY_HEAD, INTERRUPTED, Failures

TRAINING, AGAIN = "training", "steps done again"
IN_FLIGHT, NOTICING, NO_HEAD = "steps in flight, lost", "noticing failures", "no head"
UNTOLD = "the job, of which no step is known"
USES = {
    "start": NO_HEAD,
    "roll": "roll call",
    "attempt": "services",
    "checkpoint-skipped": "start of the job",
    "resume": "start of the job",
    "step-found": "start of the job",
    "ready": "start of the job",
    "step": TRAINING,
    "eval": "evaluation",
    "best": "evaluation",
    "checkpoint": "checkpoints",
    "failure": NOTICING,
    "decision": "roll call",
    "outcome": "end of the job",
    INTERRUPTED: "end of the job",
}
"""Kind of event to the use of the time before it. Events of other kinds happen meanwhile."""
ENDS_RUN = ("outcome", INTERRUPTED)
NO_JOB_YET = {"start": "roll call", "roll": "services"}
"""Kind of the event before an outcome that no job has → the use of the time between them."""
TOLD = ("resume", "step-found", "step")
STEPS = ("ready", "step-found", "step")
"""Kinds of events after which a step is under way."""
REPAIRS = (
    "engine-replaced",
    "engine-left-out",
    "engine-returned",
    "rank-replaced",
    "reward-server",
    "service",
)
"""Kinds of events that record a loss that ended no attempt."""
GOES_BACK = ("resume", "rank-replaced")
SLOW_LEFT = "straggler-replaced"
"""Kind of the event that a slow node has left for a spare."""


class _Steps:
    """The steps that count, in the order in which they were made: 32 bytes each."""

    def __init__(self) -> None:
        self._numbers, self._made, self._highest = array("q"), array("q"), array("q")
        """A step, how many end with it, and the highest step up to here."""
        self._seconds = array("d")
        """Of those that end with it."""

    def add(self, number: int, made: int, seconds: float) -> None:
        self._numbers.append(number)
        self._made.append(made)
        self._highest.append(max(number, self._highest[-1] if self._highest else 0))
        self._seconds.append(seconds)

    def go_back(self, step: int) -> float:
        """Drop the steps after `step`; return their seconds."""
        undone, kept = 0.0, []
        while self._highest and self._highest[-1] > step:
            number, made, seconds = self._numbers.pop(), self._made.pop(), self._seconds.pop()
            self._highest.pop()
            rest = min(made, step - (number - made))
            if number <= step:
                kept.append((number, made, seconds))
            elif rest > 0:  # the event has steps before and after it
                kept.append((step, rest, seconds * rest / made))
                undone += seconds * (made - rest) / made
            else:
                undone += seconds
        for one in reversed(kept):
            self.add(*one)
        return undone


class Tally:
    """The numbers of the events that `add` was given, oldest first."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        """Seconds between the events, the time of all heads together."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Use of this time → its seconds."""
        self.attempts = 0
        self.failures: Counter[str] = Counter()
        """Class of a failure → how many attempts it has ended."""
        self.repairs: Counter[str] = Counter(dict.fromkeys(REPAIRS, 0))
        self.refusals = 0
        """Check-ins of nodes that were not taken into the cluster."""
        self.slow_left = 0
        """Slow nodes that have left for a spare."""
        self.tokens = 0
        """Tokens of all steps, those of repeated steps too."""
        self.began: datetime | None = None
        self.newest: dict[str, datetime] = {}
        """Kind → the time of its newest event."""
        self.failed: dict[str, datetime] = {}
        """Class of a failure → the time of the newest one."""
        self._failures = Failures()
        self.attempts_without_progress = 0
        """As the restart budget counts them."""
        self._before: datetime | None = None
        self._kind_before = ""
        self._highest = 0
        self._progressed = False
        self.tells_steps = False
        """The run has told where it begins, or a step."""
        self._makes_steps = False
        """The attempt is beyond its start: what a failure ends is a step."""
        self._steps = _Steps()

    @property
    def effective_time_ratio(self) -> float:
        """The share of the time that went into steps that count."""
        return self.seconds[TRAINING] / self.elapsed if self.elapsed else 0.0

    def snapshot(self) -> Tally:
        """Return the present numbers, which no later event changes; `add` nothing to them."""
        made = copy(self)
        for name in ("seconds", "failures", "repairs", "newest", "failed"):
            setattr(made, name, copy(getattr(self, name)))
        made._steps, made._failures = _Steps(), Failures()
        return made

    def add(self, at: datetime, kind: str, details: Mapping[str, Any]) -> None:
        """Count one event.

        Time is summed between events. So a clock that was set back, or the slow clock of a later
        head, subtracts nothing.
        """
        self.began = self.began or at
        self.newest[kind] = at
        if kind in USES:
            passed = max(0.0, (at - self._before).total_seconds()) if self._before else 0.0
            self.elapsed += passed
            self._before = at
            self._use(passed, kind, details)
            self._kind_before = kind
        if kind in GOES_BACK:
            self._go_back(details["step"])
        self._count(at, kind, details)

    def _use(self, seconds: float, kind: str, details: Mapping[str, Any]) -> None:
        if kind == "failure":
            silent = min(seconds, details.get("silent_seconds", seconds))
            before_steps = USES["resume"] if self.tells_steps else UNTOLD
            self.seconds[IN_FLIGHT if self._makes_steps else before_steps] += seconds - silent
            self.seconds[NOTICING] += silent
            return
        if kind in ("attempt", *STEPS):
            self._makes_steps = kind in STEPS
        use = USES[kind]
        if kind in ENDS_RUN:
            job = UNTOLD if self.attempts and not self.tells_steps else use
            use = NO_JOB_YET.get(self._kind_before, job)
        self.seconds[use] += seconds
        if kind in TOLD and not self.tells_steps:
            self.tells_steps = True
            if untold := self.seconds.pop(UNTOLD, 0.0):  # an attempt ended before it told anything
                self.seconds[USES["resume"]] += untold
        if kind == "step":
            made = details.get("steps", 1)
            self._steps.add(details["step"], made, seconds)

    def _go_back(self, step: int) -> None:
        """The steps after `step` no longer count."""
        undone = self._steps.go_back(step)
        self.seconds[TRAINING] -= undone
        self.seconds[AGAIN] += undone

    def _count(self, at: datetime, kind: str, details: Mapping[str, Any]) -> None:
        if failure := self._failures.of(kind, details):
            self.failures[failure] += 1
            self.failed[failure] = at
        if kind in REPAIRS:
            self.repairs[kind] += 1
        elif kind == "refused":
            self.refusals += 1
        elif kind == SLOW_LEFT:
            self.slow_left += 1
        elif kind == "attempt":
            self.attempts += 1
            self._progressed = False
        elif kind == "step":
            self.tokens += tokens if stored_json.is_count(tokens := details.get("tokens")) else 0
            if details["step"] > self._highest:
                self._highest, self._progressed = details["step"], True
                self.attempts_without_progress = 0
        elif kind == "failure":
            self.attempts_without_progress += not self._progressed
        elif kind == "start" or details.get("answer") in BY_HEAD:  # a new head has a whole budget
            self.attempts_without_progress = 0
