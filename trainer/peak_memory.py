"""The most memory that the processes of a run took in the phases of a step, as they measured it."""

from __future__ import annotations

from collections.abc import Sequence

from trainer import shares
from trainer.actors.base import Measured, Metrics
from trainer.actors.group import Group
from trainer.team import Team

PATIENCE = 0.02
"""Seconds for an answer: who is at work is not waited for, and left out."""


def of(team: Team) -> Metrics:
    """The fullest process of each role and phase, in GB; learners tell theirs with an update."""
    groups: Sequence[Group[Measured] | None] = (team.reference, team.reward, team.engines)
    asked = [one for group in groups if group for one in group.all(Measured.peaks)]
    return shares.merged_metrics([one.result() for one in asked if one.ready(PATIENCE)])
