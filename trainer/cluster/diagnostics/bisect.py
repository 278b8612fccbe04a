"""Pure: results of pairs of nodes → the node or the link at fault.

The nodes are paired along the edges of a hypercube. In round r each node is paired with the node
whose number differs only in bit r; all pairs of a round run in parallel. The first round with a bad
pair ends the search. Then each node of the pair is tried with a good node, which shows the one at
fault. One sample never makes a pair bad: the pair is tried again beside fewer others, and its best
result counts, because a busy machine is slow at times and a bad link always. For n nodes a fault is
found within ⌈log₂ n⌉ + 1 + 2 × RETRIES rounds, or a few more if few good nodes are left. A link
that is not an edge of the hypercube is not tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Pair = tuple[str, str]
Probe = Callable[[Sequence[Pair]], Sequence[float | None]]
"""Tries all pairs in parallel. Returns the GB/s of each; None if it failed."""

SLOW_PAIR = 0.25
"""A pair of nodes is slow below this fraction of the bandwidth of good pairs.

Two processes on one busy machine can halve each other's bandwidth; the fraction is lower.
"""
GOOD = 0.75
"""The quantile of all pairs that counts as good. A few bad pairs, or a few on a much better link,
do not change it."""
RETRIES = 3
"""Retries of a bad pair before it counts as bad."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """A node at fault, or the two nodes of a link at fault."""

    nodes: tuple[str, ...]
    sentence: str
    silent: bool
    """It gave no answer or a wrong one. Otherwise it is slow."""
    unstarted: bool = False
    """Ray starts no process on the node, so its links are unknown."""


def without_ray(nodes: Sequence[str], seconds: float) -> list[LinkFault]:
    """Return a fault for each node on which Ray started no process within `seconds`."""
    said = f"has started no process within {seconds:g} s"
    return [
        LinkFault((node,), f"Ray on {node} {said}", silent=True, unstarted=True) for node in nodes
    ]


def find(nodes: Sequence[str], probe: Probe, *, least: float = 0.0) -> list[LinkFault]:
    """Return every fault that the first bad round shows; empty if no round is bad.

    `least`: GB/s below which a pair is bad, whatever the other pairs reach.
    """
    search = _Search(probe, least)
    for pairs in _rounds(nodes):
        if bad := search.try_all(pairs):
            return _whose(bad, search)
    return []


def _rounds(nodes: Sequence[str]) -> Iterator[list[Pair]]:
    if len(nodes) == 3:  # all pairs: one pair alone could not be compared
        yield [(nodes[0], nodes[1]), (nodes[1], nodes[2]), (nodes[0], nodes[2])]
        return
    bit = 1
    while bit < len(nodes):
        yield [(nodes[i], nodes[i ^ bit]) for i in range(len(nodes)) if i < i ^ bit < len(nodes)]
        bit *= 2


@dataclass(slots=True)
class _Search:
    probe: Probe
    least: float
    best: dict[Pair, float | None] = field(default_factory=dict)

    def try_all(self, pairs: Sequence[Pair], known_bad: Sequence[Pair] = ()) -> list[Pair]:
        """Try the pairs, and retry bad ones. Returns pairs that stay bad and are not known."""
        self._try(pairs)
        for number in range(RETRIES):
            bad = [pair for pair in self.bad() if pair not in known_bad]
            # A pair without an answer costs a whole timeout, so it is retried once only.
            if not (doubted := [pair for pair in bad if self.best[pair] is not None or not number]):
                return bad
            self._try(doubted)
        return [pair for pair in self.bad() if pair not in known_bad]

    def bad(self) -> list[Pair]:
        known = sorted(speed for speed in self.best.values() if speed is not None)
        usual = known[math.ceil(GOOD * (len(known) - 1))] if known else 0.0
        limit = max(self.least, SLOW_PAIR * usual)
        return [pair for pair, speed in self.best.items() if speed is None or speed < limit]

    def _try(self, pairs: Sequence[Pair]) -> None:
        for disjoint in _disjoint(pairs):
            for pair, speed in zip(disjoint, self.probe(disjoint), strict=True):
                speeds = [known for known in (self.best.get(pair), speed) if known is not None]
                self.best[pair] = max(speeds, default=None)


def _disjoint(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Yields all pairs, in groups in which no two pairs share a node."""
    left = list(pairs)
    while left:
        group: list[Pair] = []
        for pair in left:
            if not any(set(pair) & set(other) for other in group):
                group.append(pair)
        yield group
        left = [pair for pair in left if pair not in group]


def _whose(bad: list[Pair], search: _Search) -> list[LinkFault]:
    """Return the nodes and links at fault.

    A node that is bad with several others is at fault. Each node of another bad pair is tried with
    a node that is only in good pairs."""
    tried = dict(search.best)
    seen = dict.fromkeys(node for pair in tried if pair not in bad for node in pair)
    bad_pairs = Counter(node for pair in bad for node in pair)
    guilty = {
        node: max(tried[pair] or 0.0 for pair in bad if node in pair) or None
        for node, times in bad_pairs.items()
        if times > 1 and node not in seen
    }
    unclear = [pair for pair in bad if not guilty.keys() & set(pair)]
    suspects = list(dict.fromkeys(node for pair in unclear for node in pair))
    good = [node for node in seen if node not in bad_pairs]
    if unclear and not good:
        return [_of_pair(pair, tried[pair], "one of them, or their link") for pair in bad]
    for start in range(0, len(suspects), max(1, len(good))):
        pairs = list(zip(suspects[start : start + len(good)], good, strict=False))
        guilty |= {pair[0]: search.best[pair] for pair in search.try_all(pairs, bad)}
    links = [pair for pair in unclear if not guilty.keys() & set(pair)]
    return [
        *(_of_node(node, speed) for node, speed in guilty.items()),
        *(_of_pair(pair, tried[pair], "their link") for pair in links),
    ]


def _of_node(node: str, speed: float | None) -> LinkFault:
    said = f"{node} is at fault: {reached(speed)} with every node that it was tried with"
    return LinkFault((node,), said, speed is None)


def _of_pair(pair: Pair, speed: float | None, what: str) -> LinkFault:
    said = f"between {pair[0]} and {pair[1]}: {reached(speed)}; at fault is {what}"
    return LinkFault(pair, said, speed is None)


def reached(speed: float | None) -> str:
    return "no answer" if speed is None else f"{speed:.3g} GB/s"
