"""Recognises the platform and reads its facts: its own variables before the generic ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from entrypoint.config.platforms import (
    alibaba_dlc,
    aws,
    azure,
    dstack,
    kubernetes,
    mpi,
    runpod,
    skypilot,
    slurm,
    torchrun,
    vertex,
    volcano,
)
from entrypoint.config.platforms.facts import REMEDIES, Facts, disagreement

PREFIXED = (
    runpod.instant_cluster,
    dstack.DSTACK.read,
    skypilot.SKYPILOT.read,
    slurm.task,
    kubernetes.LEADER_WORKER_SET.read,
    kubernetes.KUBEFLOW.read,
    kubernetes.kuberay_pod,
    volcano.pod,
    aws.batch_node,
    aws.sagemaker_host,
    vertex.replica,
    mpi.OPEN_MPI.read,
    mpi.PMI.read,
    azure.AZURE.read,
    runpod.pod,
)
"""Platforms with variables of their own. A new platform gets a line here."""
GENERIC = (mpi.PMIX.read, alibaba_dlc.node, torchrun.node, kubernetes.named_pod)
"""Each is read only if nothing before it gives a role: anybody may set these variables."""

COMPARED = ("rank", "is_head", "nodes")
"""Facts that two platforms may not give differently; addresses may have several spellings."""


def detect(environ: Mapping[str, str]) -> Facts:
    """The facts of all recognised platforms; the first platform that knows a fact decides it."""
    found = [facts for read in PREFIXED if (facts := read(environ)) is not None]
    for read in GENERIC:
        if not any(facts.has_role for facts in found):
            found += [facts] if (facts := read(environ)) is not None else []
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
    for fact in COMPARED:
        mine, other = getattr(first, fact), getattr(second, fact)
        if None not in (mine, other) and mine != other:
            key = "rank" if fact == "is_head" else fact
            faults[key] = disagreement(key, *_source(first, key), *_source(second, key))
    return replace(
        first,
        name=first.name if first.is_head is not None or second.is_head is None else second.name,
        sources=sources,
        faults=faults,
        undecided=first.undecided or second.undecided,
        remedies={**second.remedies, **first.remedies},
        again=first.again or second.again,
        **values,
    )


def _source(facts: Facts, fact: str) -> tuple[str, object]:
    """The variable that gives `fact`, and its value."""
    if fact == "rank" and facts.rank is None:
        fact = "is_main"
    return facts.sources[fact], getattr(facts, fact)
