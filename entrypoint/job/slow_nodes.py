"""Tells of slow ranks while a job runs, and has a slow node leave for a spare.

ROLLCALL_STRAGGLERS says which of both. What is told and done lasts over the attempts of a run; a
later head reads in the journal which nodes have left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from contract.durations import duration
from entrypoint.cluster.slow_nodes import OUT_SECONDS, Leaves, Scene, Stays, Why, decide
from entrypoint.cluster.slow_ranks import Against
from entrypoint.config.settings import Stragglers
from entrypoint.job.failures.classes import SlowNode
from entrypoint.job.run_context import RunContext
from entrypoint.job.slow_rank_watch import SlowRankWatch
from entrypoint.machine.gpus.use import Condition, GpuUse
from entrypoint.run.flight_record.time_accounting import SLOW_LEFT

STAYS = "straggler-stays"
Tell = Callable[..., None]
"""Records an event: its kind, sentence and details."""


@dataclass(slots=True)
class SlowNodes:
    run: RunContext
    _watch: SlowRankWatch = field(init=False)
    _left: list[float] = field(init=False)
    """When slow nodes left this run, over all its heads; seconds of the epoch."""
    _told: set[tuple[str, Why]] = field(default_factory=set)
    """Nodes that stay, and why, as the journal has it."""

    def __post_init__(self) -> None:
        """Refuse the nodes that earlier heads have evicted. Raises OSError."""
        control = self.run.control
        self._watch = SlowRankWatch(self.run.files.rank_times, control.node_at)
        self._left = []
        for event in self.run.journal.landmarks(SLOW_LEFT):
            at, about = datetime.fromisoformat(event["at"]).timestamp(), event["details"]
            self._left.append(at)
            if (rest := OUT_SECONDS - max(0.0, time.time() - at)) > 0:
                control.refuse(about["node"], about["address"], about["why"], rest)

    def look(self, tell: Tell) -> SlowNode | None:
        """Tell what is new of slow ranks; return why the job is to end, if a node is to leave."""
        control = self.run.control
        for one in self._watch.look():
            if one.is_over:
                tell("straggler-over", one.sentence, **one.details())
                continue
            found = [change.sentence for change in control.health.known(one.node)]
            if condition := gpu_condition(one.node, control.gpu_uses()):
                found.append(condition)
            sentence, evidence = "; ".join([one.sentence, *found]), "; ".join(found)
            tell("straggler", sentence, **one.details(), evidence=evidence)
        control.speeds, control.stragglers = self._watch.speeds, self._watch.slow
        if self.run.settings.stragglers is not Stragglers.REPLACE or not control.roll().complete:
            return None  # while a worker is missing, the spare is for its place
        slow = [one for one in self._watch.slow if one.speed.is_slow]
        decided = decide(slow, self._scene()) if slow else []
        self._stay([one for one in decided if isinstance(one, Stays)], tell)
        leaving = [one for one in decided if isinstance(one, Leaves)]
        return SlowNode(leaving[0].sentence, leaving[0].node) if leaving else None

    def rest(self) -> None:
        """Show nothing while no job runs."""
        control = self.run.control
        control.speeds, control.stragglers, control.staying = (), (), ()

    def over(self) -> None:
        """Ask for no node any more: the job has ended, and none of its nodes is slow."""
        self.run.control.replace_first({})

    def is_free(self) -> bool:
        """Return whether there is a spare for the place of a slow node."""
        return self.run.control.roll().complete and bool(self._scene().spares)

    def evict(self, node: str, why: str) -> None:
        """Record that a slow node leaves, and put it off the roll for a time."""
        control = self.run.control
        address = next((one.address for one in control.node_infos() if one.node == node), "")
        sentence = f"{node} leaves for a spare, and stays out for {duration(OUT_SECONDS)}: {why}"
        about = {"node": node, "address": address, "why": why}
        self.run.journal.record(SLOW_LEFT, sentence, **about)  # first: a later head reads it
        self._left.append(time.time())
        control.evict(node, why, OUT_SECONDS)

    def _scene(self) -> Scene:
        control, roll = self.run.control, self.run.control.roll()
        worse = {change.node for change in control.health.known()}
        speeds = self._watch.speeds
        return Scene(
            head=control.node_infos()[0].node,
            workers=roll.present,
            computing=len({one.address for one in speeds if one.against is Against.PEERS}),
            spares=[name for name in roll.spares if name not in worse],
            left=[max(0.0, time.time() - at) for at in self._left],
        )

    def _stay(self, staying: list[Stays], tell: Tell) -> None:
        """Tell of each slow node that stays once; ask for a node where that is what it lacks."""
        control = self.run.control
        control.staying = staying
        for one in staying:
            if (one.node, one.why) not in self._told:
                tell(STAYS, one.sentence, node=one.node, why=one.why)
        self._told = {(one.node, one.why) for one in staying}
        lacking = {one.node: one.sentence for one in staying if one.why is Why.NO_SPARE}
        control.replace_first(lacking)


def of_run(run: RunContext) -> SlowNodes | None:
    """Return what looks at the ranks; None if nobody asks, or the job tells no times of them."""
    asked = run.settings.stragglers is not Stragglers.OFF
    return SlowNodes(run) if asked and run.recipe.tells_phases else None


@dataclass(frozen=True, slots=True)
class _Figure:
    clock: float | None
    watts: float | None
    degrees: float | None

    def __str__(self) -> str:
        known = ((self.clock, "MHz"), (self.watts, "W"), (self.degrees, "°C"))
        return ", ".join(f"{value:g} {unit}" for value, unit in known if value is not None)


def gpu_condition(node: str, uses: Mapping[str, Sequence[GpuUse]]) -> str:
    """Return the condition of the node's GPU with the lowest clock; "" if none tells it.

    `uses`: node → its GPUs as they told it last. The others are shown by their medians.
    """
    own = [use.condition for use in uses.get(node, ())]
    if not own:
        return ""
    worst = min(own, key=lambda one: one.clock if one.clock is not None else float("inf"))
    shown = str(_Figure(worst.clock, worst.watts, worst.degrees))
    others = [use.condition for name, of in uses.items() if name != node for use in of]
    beside = str(_medians(others))
    parts = [f"its slowest GPU now: {shown}" if shown else ""]
    parts.append(f"the other nodes' GPUs in the median: {beside}" if shown and beside else "")
    held = list(dict.fromkeys(reason for one in own for reason in one.held_by))
    parts.append(f"its clocks are held down by {', '.join(held)}" if held else "")
    return "; ".join(filter(None, parts))


def _medians(of: Sequence[Condition]) -> _Figure:
    rows = ([one.clock for one in of], [one.watts for one in of], [one.degrees for one in of])
    return _Figure(*map(_median, rows))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
