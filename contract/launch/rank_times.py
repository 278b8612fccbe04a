"""How long each rank of a model computes: a row a step in `RUN/rank-times.jsonl`.

The trainer writes it, and the head finds slow ranks in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from contract.files import stored_json

LARGEST_FILE = 2**23
"""Bytes. It has the newest 60 steps of 1,000 ranks at least, those before become sparse."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """What one rank computed in the updates of one step."""

    rank: int
    address: str
    """Of its node, as Ray has it."""
    device: str
    """What computes: the GPU's model, or the CPU's instructions and threads."""
    gpu: str
    """The GPU's UUID; "" on a CPU."""
    seconds: float
    """Without what the rank waits for others."""
    work: float
    """FLOP, by the lengths of its samples."""


FIELDS = len(fields(RankTime))


def as_row(of_roles: Mapping[str, Sequence[RankTime]]) -> dict[str, Any]:
    """Return the times of a step, role by role, as JSON."""
    return {"roles": {role: [astuple(one) for one in times] for role, times in of_roles.items()}}


def at_of(row: Mapping[str, Any]) -> float:
    """Return when a row of the file was written, in seconds of the epoch; 0 if it is damaged."""
    at, step = row.get("at"), row.get("step")
    return float(at) if stored_json.is_number(at) and stored_json.is_count(step) else 0.0


def of_row(row: Mapping[str, Any]) -> dict[str, list[RankTime]]:
    """Return the times in a row of the file; those of a damaged role are left out."""
    roles = row.get("roles")
    if not isinstance(roles, dict):
        return {}
    read = {role: _times(times) for role, times in roles.items()}
    return {role: times for role, times in read.items() if times}


def _times(times: object) -> list[RankTime]:
    if not isinstance(times, list) or not all(map(_fits, times)):
        return []
    return [RankTime(*one) for one in times]


def _fits(one: object) -> bool:
    if not isinstance(one, list) or len(one) != FIELDS:
        return False
    rank, *names, seconds, work = one
    numbers = stored_json.is_number(seconds) and stored_json.is_number(work)
    known = stored_json.is_count(rank) and all(isinstance(name, str) for name in names)
    return known and numbers and seconds >= 0 and work >= 0
