"""Recognises the platform and reads its facts: its own variables before the generic ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from entrypoint.config.platforms import dstack, runpod, skypilot, slurm, torchrun
from entrypoint.config.platforms.facts import REMEDIES, Facts, disagreement

PREFIXED = (
    runpod.instant_cluster,
    dstack.node,
    skypilot.node,
    slurm.task,
    runpod.pod,
)
GENERIC = (torchrun.node,)
COMPARED = ("rank", "nodes")
"""Facts that two platforms may not give differently; addresses may have several spellings."""


def detect(environ: Mapping[str, str]) -> Facts:
    """The facts of all recognised platforms; the first platform that knows a fact decides it.

    Generic variables (torchrun's) are read only if no platform gives a rank.
    """
    found = [facts for read in PREFIXED if (facts := read(environ)) is not None]
    if all(facts.rank is None and "rank" not in facts.faults for facts in found):
        found += [facts for read in GENERIC if (facts := read(environ)) is not None]
    if not found:
        return Facts()
    merged = found[0]
    for facts in found[1:]:
        merged = _merge(merged, facts)
    return merged


def _merge(first: Facts, second: Facts) -> Facts:
    values: dict[str, Any] = {}
    sources = {**second.sources, **first.sources}
    faults = {**second.faults, **first.faults}
    for fact in REMEDIES:
        mine, other = getattr(first, fact), getattr(second, fact)
        values[fact] = other if mine is None else mine
        if fact in COMPARED and None not in (mine, other) and mine != other:
            faults[fact] = disagreement(
                fact, first.sources[fact], mine, second.sources[fact], other
            )
    name = first.name if first.rank is not None or second.rank is None else second.name
    return replace(first, name=name, sources=sources, faults=faults, **values)
