"""What an attack is: who tries it, what it tries, and what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Target = TypeVar("Target")
Findings = Iterator[str]
"""Sentences, each of which says what the attacker has reached."""


RAISED = "it ends with"
"""How the finding begins of an attack that has raised an error."""


class Boundary(StrEnum):
    """Who attacks. docs/security-model.md has a row for each."""

    NETWORK = "the same network"
    READER = "a holder of a weaker key"
    NODE = "a node with the token"
    STORAGE = "shared storage"
    OTHER_USER = "another user of the machine"
    PROGRAM = "a program of the policy"
    DATA = "a data set"
    LOG_LINE = "a line of a log"
    SETTINGS = "a wrong setting"


@dataclass(frozen=True, slots=True)
class Result:
    """What one attack has found."""

    name: str
    boundary: Boundary
    findings: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        found = "; ".join(self.findings) or "nothing"
        return f"{self.name} → {self.boundary} → {found} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class Attack(Generic[Target]):
    boundary: Boundary
    act: Callable[[Target], Findings]

    @property
    def name(self) -> str:
        return self.act.__name__

    def on(self, target: Target) -> Result:
        """Attack. What an attack raises is a finding, too: its target is not as it should be."""
        began, findings = time.monotonic(), list[str]()
        try:
            findings.extend(self.act(target))
        except Exception as error:
            findings.append(f"{RAISED} {type(error).__name__}: {str(error)[:300]}")
        seconds = time.monotonic() - began
        return Result(self.name, self.boundary, tuple(dict.fromkeys(findings)), seconds)


def by(boundary: Boundary) -> Callable[[Callable[[Target], Findings]], Attack[Target]]:
    """Make an attack of a function that yields what it finds on a target."""
    return lambda act: Attack(boundary, act)
