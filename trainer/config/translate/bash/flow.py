"""Where a script goes on behind a statement, and what runs statements."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from trainer.config.translate.bash.scope import Place, Record, Scope
from trainer.config.translate.bash.state import State, Unknown
from trainer.config.translate.bash.syntax import Node, Source


class Step(Enum):
    """One way on."""

    NEXT = auto()
    BREAK = auto()
    CONTINUE = auto()
    RETURN = auto()
    EXIT = auto()


Flow = frozenset[Step]
"""The ways on that are possible."""
NEXT, EXIT, BREAK = (frozenset([one]) for one in (Step.NEXT, Step.EXIT, Step.BREAK))
MOST_ROUNDS, MOST_CALLS = 500, 30


class Runner(Protocol):
    """Runs statements on a state. `checked`: a failure does not end a script with `set -e`."""

    source: Source
    record: Record
    place: Place
    loops: int
    """Loops around the statement that runs; a function begins at none."""

    def each(self, statements: Sequence[Node], state: State, *, checked: bool = False) -> Flow: ...
    def statement(self, statement: Node, state: State, *, checked: bool) -> Flow: ...
    def scope(self, state: State) -> Scope: ...
    def sums(self, nodes: Sequence[Node], state: State) -> int | None: ...
    def ended(self, node: Node) -> Flow: ...
    def unknown(self, node: Node, what: str) -> Unknown: ...
    def shown(self, node: Node) -> str: ...
