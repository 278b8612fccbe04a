"""Pure: pairs of nodes that were tried → the node, or the link, that is at fault.

The nodes are paired along the edges of a hypercube: in round r each node with the one whose number
differs in bit r alone, all pairs of a round at the same time. The first round that has a bad pair
ends the search: its bad pairs are tried once more, as a busy machine may be slow once, and then
each of the two with a node that is known to be good, which tells whose fault it is. So a fault is
named within ⌈log₂ n⌉ + 2 rounds for n nodes, or a few more where hardly a good node is left to ask
with. A link that is no edge of the cube is not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Pair = tuple[str, str]
Probe = Callable[[Sequence[Pair]], Sequence[float | None]]
"""Tries all pairs at the same time; GB/s of each, None where it failed or gave no answer."""

SLOW = 0.5
"""Share of the median pair's bandwidth below which a pair is bad."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One node, or two whose link it is."""

    nodes: tuple[str, ...]
    sentence: str


def find(nodes: Sequence[str], probe: Probe, *, least: float = 0.0) -> list[Fault]:
    """Every fault that the first bad round shows; none where all pairs are alike.

    `least`: GB/s below which a pair is bad whatever the others reach.
    """
    tried: dict[Pair, float | None] = {}
    bit = 1
    while bit < len(nodes):
        pairs = [(nodes[i], nodes[i ^ bit]) for i in range(len(nodes)) if i < i ^ bit < len(nodes)]
        tried |= dict(zip(pairs, probe(pairs), strict=True))
        if bad := _bad(tried, least):
            tried |= {
                pair: _better(tried[pair], now) for pair, now in zip(bad, probe(bad), strict=True)
            }
        if bad := _bad(tried, least):
            return _whose(bad, tried, probe, least)
        bit *= 2
    return []


def _better(one: float | None, other: float | None) -> float | None:
    return max((speed for speed in (one, other) if speed is not None), default=None)


def _bad(tried: dict[Pair, float | None], least: float) -> list[Pair]:
    known = [speed for speed in tried.values() if speed is not None]
    limit = max(least, SLOW * median(known)) if known else least
    return [pair for pair, speed in tried.items() if speed is None or speed < limit]


def _whose(
    bad: list[Pair], tried: dict[Pair, float | None], probe: Probe, least: float
) -> list[Fault]:
    """Each node of a bad pair with one that is in good pairs alone."""
    suspects = list(dict.fromkeys(node for pair in bad for node in pair))
    good = [node for pair in tried if pair not in bad for node in pair if node not in suspects]
    good = list(dict.fromkeys(good))
    if not good:
        return [
            Fault(pair, _sentence(pair, tried[pair], "one of them, or their link")) for pair in bad
        ]
    asked = dict(tried)
    for start in range(0, len(suspects), len(good)):
        pairs = list(zip(suspects[start : start + len(good)], good, strict=False))
        asked |= dict(zip(pairs, probe(pairs), strict=True))
    again = [pair for pair in _bad(asked, least) if pair not in bad]
    guilty = {pair[0]: asked[pair] for pair in again if pair[0] in suspects}
    faults = [
        Fault(
            (node,), f"{node} is at fault: {_reached(speed)} with every node that it was tried with"
        )
        for node, speed in guilty.items()
    ]
    links = [pair for pair in bad if not guilty.keys() & set(pair)]
    return faults + [Fault(pair, _sentence(pair, tried[pair], "their link")) for pair in links]


def _sentence(pair: Pair, speed: float | None, what: str) -> str:
    return f"between {pair[0]} and {pair[1]}: {_reached(speed)}; at fault is {what}"


def _reached(speed: float | None) -> str:
    return "no answer" if speed is None else f"{speed:.2f} GB/s"
