"""Names the ranks of a job that the others wait for, whatever program it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.launch import collectives
from contract.launch.collectives import Behind
from entrypoint.job.run_context import RunContext
from entrypoint.processes import rank_processes
from entrypoint.processes.rank_processes import RankProcess

LOOK_SECONDS = 60.0
"""Between two looks at a job that tells nothing meanwhile."""
BEHIND_SECONDS = 30.0
"""Wait of all others after which such a look tells of a rank."""
ANSWERS_SECONDS = 8.0
"""How long to wait for the nodes' answers: a node waits ANSWER_SECONDS for its ranks."""

OfNodes = Mapping[str, Sequence[RankProcess]]
"""Node → the ranks on it."""


@dataclass(frozen=True, slots=True)
class Place:
    node: str
    process: RankProcess

    def __str__(self) -> str:
        title = f"{self.process.title}, " if self.process.title else ""
        return f"on {self.node} ({title}process {self.process.pid})"


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that have met at one place: a model's, or a program's."""

    size: int
    answered: Mapping[int, Place]
    silent: Mapping[int, Place] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.answered]

    def behind(self) -> list[Behind]:
        standings = {
            rank: place.process.standing
            for rank, place in self.answered.items()
            if place.process.standing is not None
        }
        return collectives.behind(standings, range(self.size))

    def name(self, rank: int) -> str:
        place = self.answered.get(rank) or self.silent.get(rank)
        return f"rank {rank} {place}" if place else f"rank {rank}"


@dataclass(frozen=True, slots=True)
class Told:
    sentence: str
    details: Mapping[str, Any]
    """Of the event `rank-behind`."""

    @property
    def ranks(self) -> tuple[Any, ...]:
        return (*self.details["ranks"], *self.details["processes"])


def worlds(of_nodes: OfNodes) -> list[World]:
    """Return the worlds of these ranks. A rank that does not answer is in the one that lacks it.

    Records of ranks that have ended count once all ranks have ended.
    """
    if all(one.ended for processes in of_nodes.values() for one in processes):
        return _ended(of_nodes)
    answered: dict[tuple[str, int], dict[int, Place]] = {}
    silent: list[Place] = []
    for node, processes in of_nodes.items():
        for one in processes:
            if one.ended:
                continue
            if one.standing is not None and one.rank is not None:
                met = answered.setdefault((one.meeting, one.world), {})
                met[one.rank] = Place(node, one)
            else:
                silent.append(Place(node, one))
    found = [World(size, ranks) for (_, size), ranks in answered.items()]
    gaps = [(world, rank) for world in found for rank in world.missing]
    if len(gaps) == len(silent) == 1:
        return [World(one.size, one.answered, {gaps[0][1]: silent[0]}) for one in found]
    return [World(one.size, one.answered, _given(one, silent)) for one in found]


def _ended(of_nodes: OfNodes) -> list[World]:
    """Return the worlds of ranks that have left their records, which do not say where they met.

    Of two worlds of one size, such as two models, the records cannot be told apart: none is there.
    """
    found: dict[int, list[tuple[int, Place]]] = {}
    for node, processes in of_nodes.items():
        for one in processes:
            if one.rank is not None:
                found.setdefault(one.world, []).append((one.rank, Place(node, one)))
    alone = {size: dict(of) for size, of in found.items() if len(dict(of)) == len(of)}
    return [World(size or max(of) + 1, of) for size, of in alone.items()]


def _given(world: World, silent: Sequence[Place]) -> dict[int, Place]:
    """Return the ranks of a world that do not answer, by what their launcher has told them."""
    ours = (one for one in silent if one.process.world == world.size)
    return {one.process.rank: one for one in ours if one.process.rank in world.missing}


def behind(of_nodes: OfNodes, least: float = 0.0) -> list[Told]:
    """Return what to tell of each world in which ranks wait for others for more than `least` s."""
    found = []
    for world in worlds(of_nodes):
        late = [one for one in world.behind() if one.seconds > least]
        if not late:
            continue
        places = [world.answered.get(one.rank) or world.silent.get(one.rank) for one in late]
        found.append(
            Told(
                _printable(collectives.told(late, world.name)),
                {
                    "ranks": [one.rank for one in late],
                    "nodes": [place.node if place else "" for place in places],
                    "processes": [place.process.pid if place else 0 for place in places],
                    "collective": _printable(late[0].awaited),
                    "number": late[0].seq,
                    "seconds": round(late[0].seconds, 1),
                },
            )
        )
    return found


def of_run(run: RunContext, before: Callable[[], None]) -> RanksBehind:
    """Return what looks at all nodes of a run. `before`: called before an event is recorded."""

    def ask() -> OfNodes:
        here = rank_processes.of_node(run.settings)
        return {run.settings.node_name: here, **run.control.ranks(ANSWERS_SECONDS)}

    def tell(found: Told) -> None:
        before()
        run.journal.record("rank-behind", found.sentence, **found.details)

    return RanksBehind(ask, tell)


def _printable(text: str) -> str:
    """Return the text without what a console would obey: programs have named the functions."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass(slots=True)
class RanksBehind:
    """Looks while the job tells nothing, and before it is ended."""

    ask: Callable[[], OfNodes]
    """Asks all nodes."""
    tell: Callable[[Told], None]
    """Records the event `rank-behind`."""
    _looked: float = field(default_factory=time.monotonic)
    _known: frozenset[tuple[Any, ...]] = frozenset()

    def look(self, silent: float) -> None:
        """Ask once a minute, if the job has told nothing for `silent` seconds, a minute or more."""
        now = time.monotonic()
        if silent < LOOK_SECONDS:
            self._known = frozenset()
        elif now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._tell(behind(self.ask(), BEHIND_SECONDS))

    def of_end(self) -> str:
        """Return which ranks the others wait for, or waited for as they ended; "" if none."""
        found = behind(self.ask())
        self._tell(found)
        return "; ".join(one.sentence for one in found)

    def _tell(self, found: Sequence[Told]) -> None:
        """Tell of what was not so at the look before."""
        for one in found:
            if one.ranks not in self._known:
                self.tell(one)
        self._known = frozenset(one.ranks for one in found)
