"""Where an expansion happens: the state, the script's text, and what was asked of the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.config.translate.bash.open_text import is_open, names_in, opened, pieces
from trainer.config.translate.bash.state import (
    ABSENT,
    OF_THE_RUN,
    STANDING,
    Absent,
    Array,
    State,
    Unknown,
    Value,
)
from trainer.config.translate.bash.syntax import Node, Source, line, read_names
from trainer.config.translate.rows import UNSET

ARGUMENTS = "@"
"""Of `Record.made_of`: the arguments of the function that runs."""
AWAY = "$("
"""Of `Record.emptied`: before a program that this machine has not, in `$(…)`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a script is, and where it is started."""

    script: str = "bash"
    """Its path as bash is given it; bash's own name for standard input and `bash -c`."""
    directory: str = field(default_factory=lambda: str(Path.cwd()))
    sourced: str = ""
    """The file of it that is being read, if it sources one."""
    began: float = field(default_factory=time.time)
    """What `date` says, in seconds of the epoch."""


@dataclass(slots=True)
class Record:
    """What a reading finds: commands, and what the script does not tell."""

    commands: list[list[str]] = field(default_factory=list)
    directories: list[str | Unknown] = field(default_factory=list, init=False)
    """Where each command starts; "" is the directory in which the script starts."""
    asked: dict[str, Unknown] = field(default_factory=dict)
    """An open piece without its sign, or a variable's name → why it is unknown."""
    notes: list[str] = field(default_factory=list)
    exported: dict[str, None] = field(default_factory=dict)
    environments: list[dict[str, Value]] = field(default_factory=list, init=False)
    """Of each command: the variables that it gets."""
    written: list[str] = field(default_factory=list, init=False)
    """Files into which the script redirects what commands write."""
    absent: dict[str, int] = field(default_factory=dict, init=False)
    """Files that the script reads and that are not there → the line."""
    said: list[str] = field(default_factory=list, init=False)
    """What the script itself has written."""
    away: list[tuple[str, int]] = field(default_factory=list, init=False)
    """Programs of which it takes the answer and that this machine has not, with the line."""
    last_words: str = field(default="", init=False)
    """What it had written when it ended before its end."""
    fails: bool = field(default=False, init=False)
    """Whether it is sure to end so, and with another exit code than 0."""
    ended: int = field(default=0, init=False)
    """The line at which the script ends before its end; 0: it does not."""
    unbound: str = field(default="", init=False)
    """The variable that is not set, if the script ends for that."""
    sets_up: bool = field(default=False, init=False)
    """Whether it reads a file that sets up the machine, which may set any variable."""
    lacking: list[dict[str, int]] = field(default_factory=list, init=False)
    """Of each command: variables that are not set where its words need them → the line."""
    emptied: dict[str, int] = field(default_factory=dict, init=False)
    """The same of the words that are being read; and of `$(…)` the programs behind AWAY."""
    made_of: dict[str, dict[str, int]] = field(default_factory=dict, init=False)
    """The same of each variable's value."""

    def add(self, words: list[str], state: State) -> None:
        self.commands.append(words)
        self.directories.append(state.directory)
        self.environments.append(
            {name: state.variables[name] for name in self.exported if name in state.variables}
        )
        self.lacking.append({} if self.sets_up else dict(self.emptied))

    def cut(self, count: int) -> None:
        """Keep the first commands alone."""
        del self.commands[count:], self.directories[count:], self.lacking[count:]
        del self.environments[count:]


class UnboundError(Exception):
    """A variable is not set, and the script ends for that: `set -u`, or `${NAME:?}`.

    The message is its name.
    """


@dataclass(slots=True)
class Scope:
    state: State
    source: Source
    record: Record
    place: Place
    output_of: Callable[[Scope, Node], str | None]
    """Return what a command substitution writes; None: only a run tells it."""

    def ask(self, name: str, unknown: Unknown) -> str:
        """Return a variable that only a run of the script sets, as open text.

        One that has another's value alone, as a function's own have, is asked for by the other.
        """
        name = unknown.origin or name
        self.record.asked[name] = unknown
        return opened(f"{{{name}}}")

    def ask_for(self, node: Node, why: str) -> str:
        """Return an expansion that is not known, as open text."""
        text = self.source.of(node)
        inner = text[1:] if text.startswith("$") else f"({text.strip('`')})"
        piece = opened(inner.replace("\n", " "))
        self.record.asked[piece.removeprefix(UNSET)] = Unknown.at(node, why)
        return piece

    def value(self, name: str) -> Value | Absent:
        """Return a variable's value; ABSENT if the script never set it and nobody gave it."""
        value = self.state.variables.get(name, ABSENT)
        if value is ABSENT and name in OF_THE_RUN:
            return Unknown(f"bash sets {name} as the script runs")
        if value is ABSENT and self.state.spoilt and name not in STANDING:
            return self.state.spoilt
        if value is ABSENT and self.state.whole and name not in STANDING:
            return None
        return value

    def noted(self, name: str, value: object, node: Node) -> None:
        """Note that words have a variable's value, which may lack another variable."""
        if value is not None:
            variable = name if name.isidentifier() else ARGUMENTS
            self.record.emptied |= self.record.made_of.get(variable, {})
        elif name not in self.source.optional and not (
            name.isdecimal() and self.state.saved  # a function may do without arguments
        ):
            self.record.emptied[name] = line(node)

    def is_outside(self, name: str) -> bool:
        return self.value(name) is ABSENT

    def of_outside(self, node: Node) -> bool:
        """Return whether an expansion reads nothing but variables that the script never set."""
        return all(
            self.is_outside(name) and (name.isidentifier() or name == "@")
            for name in read_names(node)
        )

    def assign(self, name: str, value: Value, node: Node) -> None:
        """Set a variable, unless it is given from outside and its new value is not made of it."""
        state = self.state
        if name in state.given and name not in read_names(node):
            return
        if isinstance(value, str) and (found := self.unknown_piece(value)):
            origin = value.removeprefix(UNSET).strip("{}")
            alone = value == opened(f"{{{origin}}}") and self._is_own_of_function(name, origin)
            here = found if found.has_line else replace(Unknown.at(node, found.why), ask=found.ask)
            value = replace(found, origin=origin) if alone else here
        state.variables[name] = value
        self.record.made_of.pop(name, None)
        if "allexport" in state.options:
            self.export(name)

    def _is_own_of_function(self, name: str, origin: str) -> bool:
        """Return whether a function's own variable gets one of the script, which `--set` takes."""
        own = self.state.saved[-1] if self.state.saved else {}
        is_set = isinstance(self.state.variables.get(origin), Unknown)
        return name in own and origin not in own and origin not in OF_THE_RUN and is_set

    def unknown_piece(self, text: str) -> Unknown | None:
        """Return why a text cannot be kept for later: a command writes it, or it is unknown."""
        for piece in pieces(text) if is_open(text) else ():
            inner = piece.removeprefix(UNSET)
            if piece == inner:
                continue
            for name in (inner, inner.strip("{}")):
                if (why := self.record.asked.get(name)) is not None:
                    is_name = name.isidentifier() and name not in OF_THE_RUN and not why.ask
                    return replace(why, ask=(name,) if is_name else why.ask, origin="")
            if inner.startswith("(") and not inner.startswith("(("):
                return Unknown(f"`${inner}` is known only when the script runs")
            if any(name in self.record.asked for name in names_in(inner)):
                return Unknown(f"`${inner}` is known only when the script runs")
        return None

    def export(self, name: str) -> None:
        self.record.exported[name] = None


def text_of(value: Value | Absent) -> str | None:
    """Return what `$NAME` is for a known value; None if it is not set."""
    if isinstance(value, Array):
        return value.values.get("0" if value.by_key else 0)
    return value if isinstance(value, str) else None
