"""Pure: which slow node leaves for a spare, and why another stays (ROLLCALL_STRAGGLERS=replace)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from contract.durations import duration
from entrypoint.cluster.slow_ranks import Against, SlowRank

HOUR = 3600.0
OUT_SECONDS = 24 * HOUR
"""For which the head refuses a node that has left: its checks pass, and it is slow all the same."""
AN_HOUR, A_RUN = 0.01, 0.1
"""Shares of the nodes that may leave within an hour, and in the run. Of 10,000 machines, 50 are
slow (MegaScale, arXiv 2402.15627): a measurement that names more is wrong."""
LEAST_A_RUN = 3


def most_an_hour(nodes: int) -> int:
    return max(1, int(AN_HOUR * nodes))


def most_a_run(nodes: int) -> int:
    return max(LEAST_A_RUN, int(A_RUN * nodes))


class Why(StrEnum):
    """Why a slow node stays."""

    HEAD = "head"
    NO_PEERS = "no-peers"
    MANY = "many"
    TOO_OFTEN = "too-often"
    NO_SPARE = "no-spare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The cluster around the slow ranks."""

    head: str
    """The head's node."""
    workers: Sequence[str]
    computing: int
    """Nodes whose ranks are compared with others."""
    spares: Sequence[str]
    """Those that are there, and of whose parts none has become worse."""
    left: Sequence[float]
    """Of each slow node that has left this run, for how long it is away, in seconds."""


@dataclass(frozen=True, slots=True)
class Leaves:
    node: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Stays:
    node: str
    why: Why
    sentence: str

    def as_dict(self) -> dict[str, str]:
        return {"node": self.node, "why": self.why, "sentence": self.sentence}


def decide(slow: Sequence[SlowRank], scene: Scene) -> list[Leaves | Stays]:
    """Return for each node of the slow ranks whether it leaves: one at most, the slowest.

    What a node's peers show counts before what its own past does.
    """
    by_node: dict[str, SlowRank] = {}
    for one in sorted(slow, key=lambda one: (_is_alone(one), -one.speed.times)):
        if one.node == scene.head or one.node in scene.workers:
            by_node.setdefault(one.node, one)
    return list(_decided(by_node, scene))


def _decided(by_node: dict[str, SlowRank], scene: Scene) -> Iterator[Leaves | Stays]:
    free = bool(scene.spares)
    many = sum(not _is_alone(one) for one in by_node.values())
    for node, one in by_node.items():
        if reason := _why_it_stays(one, many, scene):
            why, what = reason
            yield Stays(node, why, f"{one.sentence}, and stays: {what}")
        elif free:
            free = False  # one at a time: the others are slower or not without it
            yield Leaves(node, one.sentence)


def _is_alone(one: SlowRank) -> bool:
    return one.speed.against is Against.PAST


def _why_it_stays(one: SlowRank, slow: int, scene: Scene) -> tuple[Why, str] | None:
    if one.node == scene.head:
        what = (
            "it is the head, whose place no spare takes. Stop the run (exit 143) to move the head"
        )
        return Why.HEAD, what
    if _is_alone(one):
        return Why.NO_PEERS, "no rank like it shows what is usual now"
    if slow > 1 and 2 * slow >= scene.computing:  # of two, one alone is the slow one
        return Why.MANY, f"{slow} of {scene.computing} nodes are slow, so that no single one is it"
    nodes = len(scene.workers) + 1
    lately = sum(away < HOUR for away in scene.left)
    if lately >= most_an_hour(nodes):
        first = HOUR - max(away for away in scene.left if away < HOUR)
        what = (
            f"{lately} left within an hour, as many as may. The next one may in {duration(first)}"
        )
        return Why.TOO_OFTEN, what
    if len(scene.left) >= most_a_run(nodes):
        what = f"{len(scene.left)} have left this run, as many as may of {nodes} nodes"
        return Why.TOO_OFTEN, what
    if not scene.spares:
        return Why.NO_SPARE, "no spare is there that is well. It leaves once one is"
    return None
