"""What a script has set so far, and how the ends of two branches become one state."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields

from trainer.config.translate.bash.syntax import Node, line


@dataclass(frozen=True, slots=True)
class Unknown:
    """The value of a variable that only a run of the script tells."""

    why: str
    """A clause, without what to give instead."""
    ask: tuple[str, ...] = ()
    """Variables from outside that would tell it."""
    origin: str = ""
    """The variable whose value it is, if it has no other part."""
    has_line: bool = False
    """Whether `why` names the line of the script that makes it unknown."""

    @classmethod
    def at(cls, node: Node, why: str) -> Unknown:
        """Return that a node makes a value unknown."""
        return cls(f"line {line(node)}: {why}", has_line=True)

    @property
    def sentence(self) -> str:
        """Return the reason, and what to give instead of the variable itself."""
        others = ", or ".join(f"--set {name}=VALUE" for name in self.ask)
        return self.why + (f" (or give {others})" if others else "")


@dataclass(frozen=True, slots=True)
class Array:
    """The values of an array by index; of an associative one by key."""

    values: Mapping[int | str, str]
    by_key: bool = False


NO_INPUT = Unknown("it is read from standard input")
Value = str | Array | Unknown | None
"""None: known to be not set."""

STANDING = frozenset([
    "HOME", "PWD", "PATH", "USER", "LOGNAME", "SHELL", "HOSTNAME", "UID", "EUID", "SHLVL",
    "OSTYPE", "HOSTTYPE", "MACHTYPE", "BASH", "BASH_VERSION", "TERM", "LANG",
])  # fmt: skip
"""Variables that a shell or a login sets: they are never absent."""
OF_THE_RUN = frozenset([
    "BASHPID", "BASH_ARGV", "BASH_COMMAND", "BASH_LINENO", "BASH_REMATCH", "BASH_SUBSHELL",
    "COPROC", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "FUNCNAME", "GROUPS", "LINENO",
    "MAPFILE", "OLDPWD", "OPTARG", "OPTIND", "PIPESTATUS", "PPID", "RANDOM", "REPLY", "SECONDS",
    "SRANDOM",
])  # fmt: skip
"""Variables that bash itself sets as a script runs."""


class Absent:
    """Says that a variable was never set by the script."""


ABSENT = Absent()


@dataclass(slots=True)
class State:
    """The variables, functions and options at a place of a script."""

    given: Mapping[str, str]
    """Variables from outside, which count more than what the script sets by itself."""
    arguments: tuple[str, ...] | Unknown = ()
    whole: bool = False
    """Whether a variable that is neither given nor set is known to be not set."""
    variables: dict[str, Value] = field(init=False)
    functions: dict[str, Node | None] = field(default_factory=dict, init=False)
    """None: branches define it differently."""
    directory: str | Unknown = field(default="", init=False)
    """Empty: that in which the script starts."""
    options: frozenset[str] = field(default=frozenset(), init=False)
    status: int | None = field(default=0, init=False)
    """The exit code of the last command; None: only a run tells it."""
    output: tuple[str, ...] | Unknown = field(default=(), init=False)
    """What is written where somebody reads it: `$(…)` or a pipe."""
    source: str | Unknown = field(default=NO_INPUT, init=False)
    """What the script or the function reads from standard input."""
    leaving: int = field(default=0, init=False)
    """How many more loops `break 2` or `continue 2` leaves."""
    spoilt: Unknown | None = field(default=None, init=False)
    """Why any variable may have another value, as after a sourced file."""
    saved: tuple[dict[str, Value | Absent], ...] = field(default=(), init=False)
    """Of each function that runs: what its local variables hide."""

    def __post_init__(self) -> None:
        self.variables = dict(self.given)

    def copy(self) -> State:
        made = copy(self)
        made.variables, made.functions = dict(self.variables), dict(self.functions)
        made.saved = tuple(dict(frame) for frame in self.saved)
        return made

    def become(self, other: State) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(other, one.name))

    def restore(self, kept: Mapping[str, Value | Absent]) -> None:
        """Give variables the values that they had."""
        for name, value in kept.items():
            if isinstance(value, Absent):
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def spoil(self, why: Unknown) -> None:
        """Make every variable unknown, but for those given from outside."""
        self.spoilt = why
        self.hide(self.spoilt)
        self.arguments = self.directory = self.spoilt

    def hide(self, why: Unknown) -> None:
        """Make unknown what the script has set."""
        for name in self.variables:
            if name not in self.given:
                self.variables[name] = why


def joined(one: State, other: State, why: Unknown) -> State:
    """Return the state after either of two branches: what differs is unknown."""
    both = one.copy()
    for name in {**one.variables, **other.variables}:
        mine, theirs = one.variables.get(name, ABSENT), other.variables.get(name, ABSENT)
        if mine != theirs:
            kept = next((value for value in (mine, theirs) if isinstance(value, Unknown)), why)
            both.variables[name] = kept
    for name in {**one.functions, **other.functions}:
        if one.functions.get(name) is not other.functions.get(name):
            both.functions[name] = None
    if one.options != other.options:
        both.options = one.options & other.options
    if one.status != other.status:
        both.status = None
    for name in ("arguments", "directory", "output", "source"):
        if getattr(one, name) != getattr(other, name):
            setattr(both, name, why)
    both.leaving = max(one.leaving, other.leaving)
    both.spoilt = one.spoilt or other.spoilt
    return both
