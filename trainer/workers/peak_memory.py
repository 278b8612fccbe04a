"""The most memory that the processes of a run took in the phases of a step, as they measured it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from trainer.algorithms import batching
from trainer.cluster.worker_group import Group
from trainer.types import LostWorkerError, Measured, Metrics
from trainer.workers.groups import Team

PATIENCE = 0.2
"""Seconds for an answer: who is at work is not waited for, and left out."""


def of(team: Team) -> Metrics:
    """The fullest process of each role and phase, in GB; learners tell theirs with an update."""
    models: Sequence[Group[Measured] | None] = (team.reference, team.reward)
    asked = [one for group in models if group for one in group.all(Measured.peaks)]
    asked += team.engines.ask(Measured.peaks).values()
    told = []
    for one in asked:
        with suppress(LostWorkerError):  # the next to need it sees to that
            told += [one.result()] if one.ready(PATIENCE) else []
    return batching.combine_metrics(told)
