"""Pure: pairs of nodes that were tried → the node, or the link, that is at fault.

The nodes are paired along the edges of a hypercube: in round r each node with the one whose number
differs in bit r alone, all pairs of a round at the same time. The first round that has a bad pair
ends the search: each of the two is then tried with a node that is known to be good, which tells
whose fault it is. No pair is bad by one sample: it is tried again, beside fewer others, and its
best counts, since a busy machine is slow at times and a bad line always. So a fault is named within
⌈log₂ n⌉ + 1 + 2 × AGAIN rounds for n nodes, or a few more where hardly a good node is left to ask
with. A link that is no edge of the cube is not tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from contract.collective import SLOW_PAIR

Pair = tuple[str, str]
Probe = Callable[[Sequence[Pair]], Sequence[float | None]]
"""Tries all pairs at the same time; GB/s of each, None where it failed or gave no answer."""

GOOD = 0.75
"""Which pair is a good one: that at this share of the order, so that neither a few bad pairs nor
a few on a far better line decide."""
AGAIN = 3
"""How often a bad pair is tried again before it is believed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One node, or two whose link it is."""

    nodes: tuple[str, ...]
    sentence: str
    silent: bool
    """Whether it gave no answer, or a wrong one, at all; else it is slow."""
    unstarted: bool = False
    """Whether Ray starts no process there: then nothing is known of what the node reaches."""


def without_ray(nodes: Sequence[str], seconds: float) -> list[Fault]:
    """Each of these nodes, on which Ray has started no process for so long."""
    said = f"has started no process within {seconds:g} s"
    return [Fault((node,), f"Ray on {node} {said}", silent=True, unstarted=True) for node in nodes]


def find(nodes: Sequence[str], probe: Probe, *, least: float = 0.0) -> list[Fault]:
    """Every fault that the first bad round shows; none where all pairs are alike.

    `least`: GB/s below which a pair is bad whatever the others reach.
    """
    search = _Search(probe, least)
    for pairs in _rounds(nodes):
        if bad := search.try_all(pairs):
            return _whose(bad, search)
    return []


def _rounds(nodes: Sequence[str]) -> Iterator[list[Pair]]:
    if len(nodes) == 3:  # each with each, as one pair alone has nothing to be compared with
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
        """Pairs so far that stay bad but for the known ones, each tried again while it is."""
        self._try(pairs)
        for number in range(AGAIN):
            bad = [pair for pair in self.bad() if pair not in known_bad]
            # One that gives no answer takes a whole timeout to be tried: once more is enough.
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
        for apart in _apart(pairs):
            for pair, speed in zip(apart, self.probe(apart), strict=True):
                told = [one for one in (self.best.get(pair), speed) if one is not None]
                self.best[pair] = max(told, default=None)


def _apart(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """All of them, in groups in which no two share a node."""
    left = list(pairs)
    while left:
        group: list[Pair] = []
        for pair in left:
            if not any(set(pair) & set(other) for other in group):
                group.append(pair)
        yield group
        left = [pair for pair in left if pair not in group]


def _whose(bad: list[Pair], search: _Search) -> list[Fault]:
    """Nodes that are bad with several others; of other bad pairs, each node with one that is in
    good pairs alone."""
    tried = dict(search.best)
    seen = dict.fromkeys(node for pair in tried if pair not in bad for node in pair)
    told = Counter(node for pair in bad for node in pair)
    guilty = {
        node: max(tried[pair] or 0.0 for pair in bad if node in pair) or None
        for node, times in told.items()
        if times > 1 and node not in seen
    }
    unclear = [pair for pair in bad if not guilty.keys() & set(pair)]
    suspects = list(dict.fromkeys(node for pair in unclear for node in pair))
    good = [node for node in seen if node not in told]
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


def _of_node(node: str, speed: float | None) -> Fault:
    said = f"{node} is at fault: {reached(speed)} with every node that it was tried with"
    return Fault((node,), said, speed is None)


def _of_pair(pair: Pair, speed: float | None, what: str) -> Fault:
    said = f"between {pair[0]} and {pair[1]}: {reached(speed)}; at fault is {what}"
    return Fault(pair, said, speed is None)


def reached(speed: float | None) -> str:
    return "no answer" if speed is None else f"{speed:.3g} GB/s"
