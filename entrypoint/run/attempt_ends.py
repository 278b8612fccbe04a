"""Pure: which events of a journal end an attempt, and which of them tell that a head was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.launch.standalone import BY, TRAINER

HEAD_LOST = "head_lost"
"""The failure of an attempt whose head ended without saying so: the next head's start tells it."""
TRAINER_LOST = "trainer_lost"
"""The same of a trainer that no head had started."""
INTERRUPTED = "job-interrupted"
"""Kind of the event that a submitted job goes on with the next head: this one ends in order."""
BY_HEAD = {"grow": "more workers", "swap": "a slow node"}
"""Answer of a decision that ends an attempt without a failure → why it was ended."""
_ENDS = ("failure", "outcome", "start", INTERRUPTED)
READ = ("attempt", "decision", *_ENDS)
"""Kinds of events that `Failures` reads."""


def ends_attempt(kind: str, details: Mapping[str, Any]) -> bool:
    """Return whether an event ends the attempt that goes on, if there is one."""
    return kind in _ENDS or (kind == "decision" and details.get("answer") in BY_HEAD)


def lost_in(attempt: Mapping[str, Any]) -> str:
    """Return what was lost if an attempt with these details ended without a word."""
    return TRAINER_LOST if attempt.get(BY) == TRAINER else HEAD_LOST


@dataclass(slots=True)
class Failures:
    """Finds the failures among the events of a journal, oldest first."""

    _goes_on: bool = False
    """An attempt has begun, and nothing has ended it."""
    _lost: str = HEAD_LOST
    """What is lost if the attempt ends without a word."""

    def of(self, kind: str, details: Mapping[str, Any]) -> str:
        """Return the class of the failure that an event tells; "" if it tells none."""
        was_on = self._goes_on
        if kind == "attempt":
            self._goes_on, self._lost = True, lost_in(details)
        elif ends_attempt(kind, details):
            self._goes_on = False
        if kind == "failure":
            return str(details["failure"])
        return self._lost if kind == "start" and was_on else ""
