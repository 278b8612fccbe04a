"""Reads the commands of a shell script as bash would run them, and runs nothing.

shfmt parses the script; trainer/config/translate/bash follows it. A value that only a run of the
script tells stays open in a word, behind UNSET, and `asked` says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainer.config.translate.bash.open_text import is_open, names_in, opened, pieces
from trainer.config.translate.bash.scope import Place, Record, text_of
from trainer.config.translate.bash.state import State, Unknown, Value
from trainer.config.translate.bash.statements import Run
from trainer.config.translate.bash.syntax import ScriptSyntaxError, parsed, slips
from trainer.config.translate.rows import UNSET

__all__ = ["Place", "Script", "ScriptSyntaxError", "read"]

USE = re.compile(r"(?<!\\)\$\{?#?([A-Za-z_]\w*)")
OF_ITSELF = re.compile(r"\b([A-Za-z_]\w*)=[^\s$]*\$\{?\1\b")
"""As in `PATH=/x:$PATH` and `A=${A:-1}`."""


@dataclass(frozen=True, slots=True)
class Script:
    """The commands that a script runs, and what it does not tell."""

    commands: list[list[str]] = field(default_factory=list)
    directories: list[str | Unknown] = field(default_factory=list)
    """Where each command starts; "" is the directory in which the script starts."""
    exported: Mapping[str, str] = field(default_factory=dict)
    """Variables that its programs get; those whose values are not known are left out."""
    used: frozenset[str] = frozenset()
    """Variables whose values its own words take, other than those of the same variable."""
    environments: Sequence[Mapping[str, str]] = ()
    """Of each command: the variables that it gets otherwise than the script, if all are known."""
    asked: Mapping[str, Unknown] = field(default_factory=dict)
    """A variable's name, or an open piece → why its value is known only when the script runs."""
    notes: tuple[str, ...] = ()
    ended: int = 0
    """The line at which it ends before its end; 0: it does not."""
    unbound: str = ""
    """The variable that is not set, if it ends for that."""
    lacking: Sequence[Mapping[str, int]] = ()
    """Of each command: variables that are not set where its words need them → the line."""
    written: Sequence[str] = ()
    """Files into which it redirects what commands write."""
    absent: Mapping[str, int] = field(default_factory=dict)
    """Files that it sources and that are not there → the line."""
    sets_up: bool = False
    """Whether it reads a file that sets up the machine, which may set any variable."""
    fails: bool = False
    """Whether it is sure to end before its end, and with another exit code than 0."""
    away: Sequence[tuple[str, int]] = ()
    """Programs of which it takes the answer and that this machine has not, with the line."""
    last_words: str = ""
    """What it says before that."""

    def missing(self, words: list[str]) -> dict[str, Unknown]:
        """Return what is asked for in some words: name or piece → why."""
        found: dict[str, Unknown] = {}
        for piece in (piece for word in words for piece in pieces(word) if is_open(piece)):
            inner = piece.removeprefix(UNSET)
            names = [inner, *([] if inner in self.asked else names_in(inner))]
            found |= {name: self.asked[name] for name in names if name in self.asked}
        return found


def read(
    text: str,
    variables: Mapping[str, str],
    place: Place | None = None,
    lost: Mapping[str, str] | None = None,
) -> Script:
    """Return what a script runs. `variables` come from outside: names, and arguments as 1, 2, ….

    `lost` are variables that lines outside of the text set, with the reason. Raises
    ScriptSyntaxError.
    """
    record, state = Record(), _initial(variables)
    for one, why in (lost or {}).items():
        state.variables.setdefault(one, Unknown(why))
    record.notes += slips(text)
    Run(parsed(text), record, place or Place()).script(state)
    values = {one: state.variables[one] for one in record.exported if one in state.variables}
    exported = _changed(values, {}, record)
    used = frozenset(USE.findall(OF_ITSELF.sub("", text)))
    return replace(_script(record, exported), used=used)


def read_whole(
    text: str, environment: Mapping[str, str], arguments: Sequence[str], place: Place
) -> Script:
    """Return what a script runs that starts with these variables and no others.

    Raises ScriptSyntaxError.
    """
    record, state = (
        Record(exported=dict.fromkeys(environment)),
        State({}, tuple(arguments), whole=True),
    )
    state.variables |= environment
    state.directory = place.directory
    record.notes += slips(text)
    Run(parsed(text), record, place).script(state)
    changed = [_changed(one, environment, record) for one in record.environments]
    return replace(_script(record, {}), environments=changed)


def _changed(
    variables: Mapping[str, Value], environment: Mapping[str, str], record: Record
) -> dict[str, str]:
    """Return the variables that a command gets otherwise than the script itself.

    Of one whose value is not known, the value is open.
    """
    found = {}
    for name, value in variables.items():
        if isinstance(value, Unknown):
            found[name] = opened(f"{{{name}}}")
            record.asked[name] = value
        elif (known := text_of(value)) is not None and known != environment.get(name):
            found[name] = known
    return found


def _script(record: Record, exported: Mapping[str, str]) -> Script:
    return Script(
        commands=record.commands,
        directories=record.directories,
        exported=exported,
        asked=record.asked,
        notes=tuple(record.notes),
        ended=record.ended,
        unbound=record.unbound if record.ended else "",
        lacking=record.lacking,
        written=record.written,
        absent=record.absent,
        sets_up=record.sets_up,
        fails=record.fails,
        away=record.away,
        last_words=record.last_words,
    )


def _initial(variables: Mapping[str, str]) -> State:
    """Return the state at the beginning of a script."""
    given = {name: value for name, value in variables.items() if not name.isdecimal()}
    places = sorted(int(name) for name in variables if name.isdecimal())
    return State(given, tuple(variables[str(place)] for place in places))
