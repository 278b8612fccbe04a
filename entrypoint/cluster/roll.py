"""Pure: the roll: which nodes are present and which are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from contract.durations import duration
from entrypoint.cluster import gpu_history, places
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.machine.gpus.use import GpuUse

QUESTION_SECONDS = 5.0
"""Limit for an open long poll, in seconds. It alone shows that a peer and its network are gone."""

QUESTIONS_PER_SECOND = 250.0
"""Of all workers together, at about a third of a core of the head. More workers ask less often."""

SILENT_SECONDS = 8.0
"""A worker without an open long poll for this long is missing."""


def question_seconds(workers: int) -> float:
    """Return the limit for an open long poll, in seconds, where so many workers have one."""
    return max(QUESTION_SECONDS, workers / QUESTIONS_PER_SECOND)


@dataclass(slots=True)
class RegisteredNode:
    """One node on the roll. Times are seconds of the head's monotonic clock."""

    info: NodeInfo
    seen_at: float = 0.0
    asking: int = 0
    """Number of this node's open long polls for the outcome."""
    asked_at: float = field(init=False, default=0.0)
    """When the newest of these polls was opened."""
    hung_up: bool = field(init=False, default=False)
    """The last poll ended because its connection did, as when the node dies."""
    bare: bool = field(init=False, default=False)
    """Its Ray offers nothing, as that of a spare whose work Ray itself would place."""
    source: str = ""
    """Address of the node's connection as the head sees it; "" if it reveals nothing."""
    gpus: Sequence[GpuUse] = field(init=False, default=())
    """The newest use of the node's GPUs; empty if it has none, or does not tell."""
    own_key: str = field(init=False, default="", repr=False)
    """By which the node gets a new token, if the old one is replaced while it is there."""
    skew: float = 0.0
    """Seconds by which the node's clock is ahead of the head's."""

    def present(self, now: float) -> bool:
        heard = not self.hung_up and now - self.seen_at < SILENT_SECONDS
        return self.asking > 0 or heard

    def is_well(self, now: float) -> bool:
        """Whether there is nothing to say about the node."""
        return self.info.joined and not self.info.warnings and self.present(now)

    def as_dict(self, now: float) -> dict[str, Any]:
        return {
            "node": self.info.node,
            "address": self.info.address,
            "joined": self.info.joined,
            "present": self.present(now),
            "silent_seconds": round(0.0 if self.asking else now - self.seen_at, 1),
            "inventory": dict(self.info.inventory),
            "warnings": list(self.info.warnings),
            "findings": dict(self.info.findings),
            "versions": dict(self.info.versions),
            "gpu_use": gpu_history.as_dict(self.gpus),
        }


class Absence(StrEnum):
    """Why a worker is not on the roll."""

    SILENT = "silent"
    """It has no open long poll."""
    STARTING_RAY = "starting-ray"
    """It has checked in, and has not joined yet."""
    REFUSED = "refused"
    GONE = "gone"
    """It left, or was told to join again, and has not come back."""
    UNKNOWN = "unknown"
    """It never checked in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingWorker:
    """A worker that is not there. Those that never checked in share one row."""

    node: str | None
    """None if it never checked in."""
    absence: Absence
    seconds: float | None = None
    """How long it is away; None if that is not known."""
    why: str = ""
    """The head's reason, of a refused worker."""
    workers: int = 1

    def __str__(self) -> str:
        away = "" if self.seconds is None else duration(self.seconds)
        match self.absence:
            case Absence.SILENT:
                return f"{self.node} has been silent for {away}"
            case Absence.STARTING_RAY:
                return f"{self.node} has checked in and is starting Ray"
            case Absence.REFUSED:
                return f"{self.node} was refused: {self.why}"
            case Absence.GONE:
                how = f"has not come back for {away}" if away else "has left"
                return f"{self.node} {how}"
        noun = "worker" if self.workers == 1 else "workers"
        return f"{self.workers} {noun} not checked in yet, {away} so far"

    @property
    def as_lost(self) -> str:
        """Return in words how an attempt has lost the worker, which was there at its start."""
        return f"{self.node} was restarted" if self.absence is Absence.STARTING_RAY else str(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON, and the sentence that people read."""
        return {
            "node": self.node,
            "absence": self.absence,
            "away_seconds": self.seconds,
            "why": self.why,
            "workers": self.workers,
            "sentence": str(self),
        }


@dataclass(frozen=True, slots=True)
class RollState:
    expected: int
    present: tuple[str, ...]
    """Names of the workers that have joined and are still there, without the spares."""
    missing: tuple[MissingWorker, ...]
    node_infos: tuple[NodeInfo, ...] = ()
    """The NodeInfo of each present worker."""
    spares: tuple[str, ...] = ()
    """Names of the spares that have joined and are still there."""
    expected_spares: int = 0
    misjoined: tuple[str, ...] = ()
    """Nodes whose Ray offers too little, or too much, for the place that they have now."""
    replaced: tuple[tuple[str, str], ...] = ()
    """Lost workers, each with the one that has its place now."""

    @property
    def complete(self) -> bool:
        return len(self.present) >= self.expected

    @property
    def with_spares(self) -> bool:
        """Whether the roll is complete, and the spares are there, too."""
        return self.complete and len(self.spares) >= self.expected_spares

    def lost(self, before: Sequence[str]) -> tuple[MissingWorker, ...]:
        """Return each worker of `before` that is gone, unless it was replaced."""
        if self.complete:
            return ()
        known = {worker.node: worker for worker in self.missing}
        there = frozenset(self.present)
        gone = [name for name in before if name not in there]
        left = {name: MissingWorker(node=name, absence=Absence.GONE) for name in gone}
        return tuple(known.get(name, left[name]) for name in gone)

    def joined_since_start(self, at_start: Sequence[str]) -> str | None:
        """A sentence that names the workers beyond `at_start`; None until the roll is complete."""
        if not self.complete or len(at_start) >= self.expected:
            return None
        return f"{', '.join(sorted(set(self.present) - set(at_start)))} joined"

    def enough(self, minimum: int) -> bool:
        return len(self.present) >= minimum

    @property
    def _spares_in_words(self) -> str:
        here, expected = len(self.spares), self.expected_spares
        count = f"{here}" if here >= expected else f"{here} of {expected}"
        return f"and {count} {'spare' if count == '1' else 'spares'} are"

    def __str__(self) -> str:
        noun = "worker" if self.expected == 1 else "workers"
        has_spares = self.expected_spares or self.spares
        are = f"{noun} {self._spares_in_words}" if has_spares else f"{noun} are"
        are = "worker is" if are == "worker are" else are
        there = f"{len(self.present)} of {self.expected} {are} there"
        if self.expected == 0:
            return "a cluster of one node: EXPECTED_WORKERS is 0"
        return "; ".join([there, *map(str, self.missing)])


@dataclass(frozen=True, slots=True)
class OffRoll:
    """Nodes that are not on the roll."""

    refused: Mapping[str, str] = field(default_factory=dict)
    """Node → why it was refused."""
    forgotten: Mapping[str, float] = field(default_factory=dict)
    """Worker that left or is to join again → since when."""


NOBODY = OffRoll()


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a run, and what the head knows of who has one."""

    expected: int
    spares: int = 0
    """Nodes that are to be there besides."""
    bare_spares: bool = False
    """Ray places the job's work as it likes, so that the Ray of a spare has to offer nothing."""
    holders: tuple[str, ...] = ()
    """Who had a place when the roll was called, or got one since."""
    held: bool = False
    """An attempt runs: the places of nodes that are lost stay theirs."""
    kept: bool = False
    """A node beyond the workers is a spare, also if none is expected."""

    @property
    def limited(self) -> bool:
        """Whether there are as many places as workers; else each node that joins has one."""
        return self.kept or self.spares > 0

    def settled(self, node: str) -> bool | None:
        """Return whether a node has a place; None if that depends on who is heard."""
        if not self.limited:
            return True
        return node in self.holders if self.held and len(self.holders) == self.expected else None

    def workers(self, heard: Sequence[str]) -> tuple[str, ...]:
        """Return who has a place. `heard`: the nodes that are heard, the oldest first."""
        if not self.limited:
            return tuple(heard)
        there = [*self.holders, *heard] if self.held else heard
        return places.filled(self.holders, there, self.expected)


def roll_state(
    entries: Mapping[str, RegisteredNode],
    roll: Places,
    now: float,
    began: float,
    off: OffRoll = NOBODY,
) -> RollState:
    """Return which workers are present and which are missing.

    `began`: when the head started to wait.
    """
    present, spares, missing = [], [], []
    heard = [name for name, entry in entries.items() if entry.present(now)]
    workers = frozenset(roll.workers(heard))  # a search in a tuple took 10 ms for 1,000 nodes

    def away(node: str | None, absence: Absence, **details: Any) -> None:
        missing.append(MissingWorker(node=node, absence=absence, **details))

    for name, entry in sorted(entries.items()):
        if not entry.present(now):
            away(name, Absence.SILENT, seconds=now - entry.seen_at)
        elif not entry.info.joined:
            away(name, Absence.STARTING_RAY)
        elif name in workers:
            present.append(name)
        else:
            spares.append(name)
    for name, why in off.refused.items():
        away(name, Absence.REFUSED, why=why)
    unknown = max(0, roll.expected - len(entries) + len(spares) - len(off.refused))
    since = off.forgotten
    newest = sorted(sorted(since, key=lambda name: -since[name])[:unknown])
    for name in newest:
        away(name, Absence.GONE, seconds=now - since[name])
    if (strangers := unknown - len(newest)) > 0:
        away(None, Absence.UNKNOWN, seconds=now - began, workers=strangers)
    idle = frozenset(spares)
    bare = idle if roll.bare_spares else frozenset()
    taken = places.taken(roll.holders, present) if roll.limited else []
    return RollState(
        roll.expected,
        tuple(present),
        () if len(present) >= roll.expected else tuple(missing),
        tuple(entries[name].info for name in present),
        tuple(spares),
        roll.spares,
        tuple(name for name in (*present, *spares) if entries[name].bare != (name in bare)),
        tuple(pair for pair in taken if pair[0] not in idle),
    )
