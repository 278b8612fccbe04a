"""The facts that a platform's variables give about this node, and how a platform declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from contract.options import Bounds, Fault, ParseError, boolean
from entrypoint.config.parsers import MOST_GPUS, host, whole_number
from entrypoint.config.variables import shown

NODE_COUNT = whole_number(Bounds(at_least=1))
RANK = whole_number(Bounds(at_least=0))
GPU_COUNT = whole_number(Bounds(at_least=0, at_most=MOST_GPUS))
IS_HEAD = boolean

SAY_THE_ROLE = "set RAY_WORKER to 0 on the head and to 1 on workers"
REMEDIES = {
    "rank": SAY_THE_ROLE,
    "is_main": SAY_THE_ROLE,
    "processes": "start one process on each node",
    "head_address": "set ROLLCALL_HEAD_ADDRESS to the head's address",
    "nodes": "set EXPECTED_WORKERS on the head",
    "gpus_per_node": "set ROLLCALL_NUM_GPUS",
    "node_address": "set ROLLCALL_NODE_ADDRESS to this node's address",
    "node_name": "set ROLLCALL_NODE_NAME",
    "node_host": "set ROLLCALL_HEAD_ADDRESS on all nodes",
    "start_id": "set ROLLCALL_START_ID",
}
"""Fact to the remedy if the platform's value for it cannot be used."""

NOT_THE_JSON = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a fact from a text raises if the text is not the JSON that the platform sets."""

ROLE_FACTS = ("is_main", "rank", "processes")
"""Facts from which the role follows. A fault in one of them leaves the role open."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One platform's facts about this node; None for an unknown fact."""

    name: str | None = None
    """The platform; None if none was recognised."""
    rank: int | None = None
    """This node's number among the nodes; 0 is the head, unless `is_main` says another."""
    is_main: bool | None = None
    """Whether this node is the head, if the platform says so without a rank."""
    processes: int | None = None
    """How many processes the platform starts on this node; always 1, more are a fault."""
    head_address: str | None = None
    nodes: int | None = None
    """All nodes of the cluster, the head included."""
    gpus_per_node: int | None = None
    node_address: str | None = None
    node_name: str | None = None
    node_host: str | None = None
    """The host name by which the platform's other nodes reach this node."""
    start_id: str | None = None
    """What stays the same if the platform starts the nodes again, and not if a person does."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Fact (a field's name) to the variable that gave it."""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """Fact to what is wrong with the variables that should have given it."""
    undecided: Fault | None = None
    """The fault if no platform's variables say whether this node is the head."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """Fact to what the user must set if this platform does not give it."""
    again: str = ""
    """What a person does to start the head of a run that has ended again: see `Platform.again`."""

    @property
    def is_head(self) -> bool | None:
        """Whether this node is the head; None if the platform does not say."""
        if self.is_main is None:
            return None if self.rank is None else self.rank == 0
        return self.is_main

    @property
    def role_source(self) -> str | None:
        """The variable that says whether this node is the head."""
        return self.sources.get("is_main") or self.sources.get("rank")

    @property
    def has_role(self) -> bool:
        """Whether the role is known, or a fault says already why it is not."""
        return self.is_head is not None or any(fact in self.faults for fact in ROLE_FACTS)


class Source(NamedTuple):
    """A variable that gives a fact, and how it is read."""

    fact: str
    variable: str
    parse: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform: the variables that show it, and the variables that give its facts."""

    name: str
    marks: tuple[str, ...]
    """The platform is recognised if one of these variables is set."""
    sources: tuple[Source, ...]
    undecided: str = SAY_THE_ROLE
    """What to set if the variables do not say whether this node is the head."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """Fact to what to set if the platform does not give it, or gives it wrongly."""
    again: str = ""
    """What a person does to start the head of a run that has ended again, for a shell.

    Words in capitals are the person's; `$NAME` is a variable of this node, and `$ROLLCALL_RUN_DIR`
    is always known.
    """

    def read(self, environ: Mapping[str, str]) -> Facts | None:
        """The platform's facts; None if this node does not run on it."""
        mark = first_given(environ, self.marks)
        if mark is None:
            return None
        facts = gather(self.name, environ, self.sources, self.remedies)
        undecided = not_decided(self.name, environ, mark, self.undecided)
        return replace(facts, undecided=undecided, again=self.again)


def gather(
    name: str,
    environ: Mapping[str, str],
    sources: Sequence[Source],
    remedies: Mapping[str, str] | None = None,
) -> Facts:
    """The facts that `sources` give; two variables that disagree on one fact are a fault."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    faults: dict[str, Fault] = {}
    advice = REMEDIES | dict(remedies or {})
    for fact, variable, parse in sources:
        raw = environ.get(variable, "").strip()
        if not raw:
            continue
        try:
            value = parse(raw)
        except ParseError as wrong:
            faults.setdefault(fact, Fault(variable, shown(raw), wrong.problem, advice[fact]))
            continue
        if values.setdefault(fact, value) != value:
            faults[fact] = disagreement(fact, origin[fact], values[fact], variable, value)
        origin.setdefault(fact, variable)
    if values.get("rank", 0) >= values.get("nodes", values.get("rank", 0) + 1):
        problem = f"is not below {origin['nodes']}={values['nodes']}"
        faults["rank"] = Fault(origin["rank"], str(values["rank"]), problem, advice["rank"])
    return Facts(name=name, sources=origin, faults=faults, remedies=remedies or {}, **values)


def disagreement(fact: str, first: str, value: object, second: str, other: object) -> Fault:
    """The fault of two variables that give one fact differently; it names both."""
    problem = f"disagrees with {second}={shown(str(other))!r}"
    return Fault(first, shown(str(value)), problem, REMEDIES[fact])


def not_decided(name: str, environ: Mapping[str, str], mark: str, remedy: str) -> Fault:
    """The fault of a platform whose variables do not say whether this node is the head."""
    problem = f"shows {name}, whose variables do not say whether this node is the head"
    value = environ.get(mark, "").strip()
    return Fault(mark, shown(value) if value else None, problem, remedy)


def first_given(environ: Mapping[str, str], variables: Sequence[str]) -> str | None:
    """The first of `variables` that is set and not empty."""
    return next((name for name in variables if environ.get(name, "").strip()), None)


def one_process(raw: str) -> int:
    """1, from the number of processes on this node. More would each start a node."""
    if NODE_COUNT(raw) > 1:
        raise ParseError("starts several processes on one node", "")
    return 1


def first_process(raw: str) -> int:
    """1, from this process's number on its node, which must be 0."""
    if RANK(raw) > 0:
        raise ParseError("is not the first process of its node", "")
    return 1


def without_port(address: str) -> str:
    """The host of `HOST:PORT` or of `HOST`."""
    bare, colon, port = address.rpartition(":")
    return host(bare if colon and port.isdecimal() and ":" not in bare.strip("[]") else address)
