"""The facts that a platform's variables give about this node, and their sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from entrypoint.config.parsers import whole_number
from entrypoint.config.variables import Fault, ParseError, shown

NODE_COUNT = whole_number(1)
RANK = whole_number(0)
GPU_COUNT = whole_number(0, 1024)

REMEDIES = {
    "rank": "set RAY_WORKER to 0 on the head and to 1 on workers",
    "head_address": "set ROLLCALL_HEAD_ADDRESS to the head's address",
    "nodes": "set EXPECTED_WORKERS on the head",
    "gpus_per_node": "set ROLLCALL_NUM_GPUS",
    "node_address": "set ROLLCALL_NODE_ADDRESS to this node's address",
    "node_name": "set ROLLCALL_NODE_NAME",
    "node_host": "set ROLLCALL_HEAD_ADDRESS on all nodes",
}
"""Fact to the remedy if the platform's value for it cannot be used."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One platform's facts about this node; None for an unknown fact."""

    name: str | None = None
    """The platform; None if none was recognised."""
    rank: int | None = None
    """This node's number among the nodes; 0 is the head."""
    head_address: str | None = None
    nodes: int | None = None
    """All nodes of the cluster, the head included."""
    gpus_per_node: int | None = None
    node_address: str | None = None
    node_name: str | None = None
    node_host: str | None = None
    """The host name by which the platform's other nodes reach this node."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Fact (a field's name) to the variable that gave it."""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """Fact to what is wrong with the variables that should have given it."""


class Source(NamedTuple):
    """A variable that gives a fact, and how it is read."""

    fact: str
    variable: str
    parse: Callable[[str], Any]


def gather(name: str, environ: Mapping[str, str], sources: Sequence[Source]) -> Facts:
    """The facts that `sources` give; two variables that disagree on one fact are a fault."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    faults: dict[str, Fault] = {}
    for fact, variable, parse in sources:
        raw = environ.get(variable, "").strip()
        if not raw:
            continue
        try:
            value = parse(raw)
        except ParseError as wrong:
            faults.setdefault(fact, Fault(variable, shown(raw), wrong.problem, REMEDIES[fact]))
            continue
        if values.setdefault(fact, value) != value:
            faults[fact] = disagreement(fact, origin[fact], values[fact], variable, value)
        origin.setdefault(fact, variable)
    if values.get("rank", 0) >= values.get("nodes", values.get("rank", 0) + 1):
        problem = f"is not below {origin['nodes']}={values['nodes']}"
        faults["rank"] = Fault(origin["rank"], str(values["rank"]), problem, REMEDIES["rank"])
    return Facts(name=name, sources=origin, faults=faults, **values)


def disagreement(fact: str, first: str, value: object, second: str, other: object) -> Fault:
    """The fault of two variables that give one fact differently; it names both."""
    problem = f"disagrees with {second}={shown(str(other))!r}"
    return Fault(first, shown(str(value)), problem, REMEDIES[fact])
