"""A process of a model is lost: its group starts anew, and the run goes back to before the step.

Driver, engines and the other groups stay as they are. A step is a function of (state, seed, step):
done again from the same state it is the same step. Where nothing holds the last finished step, as
its copy was still under way, the run goes back to the newest that is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from contract.journal import Tell
from contract.manifest import checkpoint_path, fault_of, steps_on_disk
from trainer.checkpoint.checkpointer import Keeping
from trainer.checkpoint.writer import RunState
from trainer.cluster.restarts import Budget
from trainer.cluster.worker_group import Group
from trainer.metrics.recorder import Recorder
from trainer.rollout.engine_pool import Patience
from trainer.rollout.outages import ROLE as ENGINE
from trainer.types import BeyondRepairError, LostWorkerError, NoSeatError, SnapshotLostError
from trainer.workers.groups import Team
from trainer.workers.protocols import Learner

if TYPE_CHECKING:
    from trainer.checkpoint.replication import Peers, Snapshot


class Source(Protocol):
    """Where the state of finished steps is kept."""

    def newest(self, steps: range) -> RunState | None:
        """The run after the newest of these steps of which it has all learners' state, whole."""

    def restore(self, team: Team, step: int) -> None:
        """Give it to all ranks of all learners. Raises SnapshotLostError where it has gone."""

    def __str__(self) -> str:
        """In the words of a sentence: from ..."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A Source: the run's checkpoints."""

    checkpoints: Path

    def newest(self, steps: range) -> RunState | None:
        for step in steps_on_disk(self.checkpoints):
            directory = checkpoint_path(self.checkpoints, step)
            if step in steps and fault_of(directory) is None:
                return RunState.read(directory)
        return None

    def restore(self, team: Team, step: int) -> None:
        directory = checkpoint_path(self.checkpoints, step)
        _restore(team, directory)

    def __str__(self) -> str:
        return "the checkpoint"


@dataclass(slots=True)
class Memory:
    """A Source: what the nodes hold of each step."""

    peers: Peers
    _found: Snapshot | None = None
    """By the last look: another may miss a holder that answers late, or find a newer step."""

    def newest(self, steps: range) -> RunState | None:
        snapshot = self._found = self.peers.newest(steps.stop - 1)
        return snapshot.driver.run if snapshot and snapshot.step in steps else None

    def restore(self, team: Team, step: int) -> None:
        if self._found is None or self._found.step != step:
            raise SnapshotLostError(f"there is no snapshot of step {step}")
        _restore(team, self._found)

    def __str__(self) -> str:
        return "the nodes' memory"


def _restore(team: Team, source: Path | Snapshot) -> None:
    groups = team.learners.values()
    for restored in [group.together(Learner.restore, source) for group in groups]:
        restored.result()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done about the loss of a process."""

    renewed: tuple[str, ...] = ()
    """Roles whose processes are started anew."""
    restored: bool = False
    """Whether all learners are given the state of the step that is gone back to."""


def plan(lost: str, learners: Sequence[str], step: int) -> Plan:
    """`lost`: the role of what was lost; `step`: the finished one that learners go back to.

    A frozen model is what it was once it is loaded. Before the first step so are the learners;
    later, one that was updated in the step in flight goes back with the one that was lost.
    """
    if lost == ENGINE:
        return Plan()  # its pool replaces it when weights are due
    if lost not in learners:
        return Plan((lost,))
    return Plan((lost,), restored=True) if step else Plan(tuple(learners))


@dataclass(frozen=True, slots=True)
class _Point:
    """Where the run can go on from."""

    run: RunState
    source: Source | None = None
    """None: every learner starts as it began."""


@dataclass(slots=True)
class Repair:
    team: Team
    sources: Sequence[Source]
    tell: Tell
    budget: Budget
    finished: Callable[[int], None] = lambda step: None
    """Told of the step that is gone back to: it is held, even if its hand-over failed."""
    fresh: RunState | None = None
    """The run before its first step; None where this attempt did not begin there."""
    patience: Patience = field(default_factory=Patience)
    _furthest: int = 0

    def mend(self, loss: LostWorkerError, state: RunState, oldest: int = 0) -> RunState:
        """Bring every model to where it was at `state`, or at the newest state that is held.

        Returns that state; the engines still want its weights. `oldest`: the first step that the
        rollouts can go back to.

        Raises BeyondRepairError where no such state is at hand, no node has room, or the same was
        repaired too often, and LostWorkerError where more is lost meanwhile.
        """
        began = time.monotonic()
        self.budget.spend(loss.role, loss)
        if loss.role in self.team.learners:
            point = self._go_back(loss, state, oldest)
            self.finished(point.run.step)
            self._say(loss, point, state, time.monotonic() - began)
            return point.run
        for role in plan(loss.role, (), state.step).renewed:
            self._renew(role, loss)
            self._say(loss, _Point(state), state, time.monotonic() - began)
        return state

    def progress(self, step: int) -> None:
        """A step is finished; only one that never was before shows that repairs were of use."""
        if step > self._furthest:
            self._furthest = step
            self.budget.renew()
            self.team.engines.budget.renew()

    def _go_back(self, loss: LostWorkerError, state: RunState, oldest: int) -> _Point:
        sources, up = list(self.sources), set[str]()
        while True:
            point = self._newest(loss, sources, state, oldest)
            planned = plan(loss.role, list(self.team.learners), point.run.step)
            for role in [role for role in planned.renewed if role not in up]:
                self._renew(role, loss)
                up.add(role)
            if point.source is None:
                return point
            try:
                point.source.restore(self.team, point.run.step)
                return point
            except SnapshotLostError:
                sources.remove(point.source)  # another may have it, or an older one

    def _newest(
        self, loss: LostWorkerError, sources: Sequence[Source], state: RunState, oldest: int
    ) -> _Point:
        """Of those that hold the same step, the first."""
        if state.step == 0:
            return _Point(state)
        found, above = None, max(1, oldest)
        for source in sources:
            if run := source.newest(range(above, state.step + 1)):
                same = run.step == state.step
                found, above = _Point(state if same else run, source), run.step + 1
        if found is None and self.fresh and oldest == 0:
            found = _Point(self.fresh)
        if found is None:
            raise BeyondRepairError(
                f"{loss}. No state from step {max(1, oldest)} on is at hand"
            ) from None
        return found

    @property
    def _groups(self) -> dict[str, Group[Any]]:
        frozen: dict[str, Group[Any] | None] = {
            "reference": self.team.reference,
            "reward": self.team.reward,
        }
        return dict(self.team.learners) | {role: group for role, group in frozen.items() if group}

    def _renew(self, role: str, loss: LostWorkerError) -> None:
        """Start all of its processes, and wait until they are up."""
        group = self._groups[role]
        try:
            group.renew(range(len(group)))
        except NoSeatError as error:
            raise BeyondRepairError(f"{loss}; {error}") from None
        if not group.started(self.patience.start):
            raise BeyondRepairError(f"{loss}. The {role} does not start again")

    def _say(self, loss: LostWorkerError, point: _Point, state: RunState, seconds: float) -> None:
        step = point.run.step
        all_anew = loss.role in self.team.learners and not point.source
        renewed = " and ".join(self.team.learners) if all_anew else loss.role
        again = f"step {step + 1} is" if step == state.step else f"steps from {step + 1} on are"
        where = f"from {point.source} " if point.source else ""
        self.tell(
            "rank-replaced",
            f"The {loss.role} lost a process ({loss.how}): {renewed} started anew, and {again} "
            f"done {where}again after {seconds:.1f} s.",
            role=loss.role,
            step=step,
            finished=state.step,
            seconds=round(seconds, 3),
        )


T = TypeVar("T")


class WentBackError(Exception):
    """The run goes on from an older state, the newest that was held when a process was lost."""

    def __init__(self, state: RunState) -> None:
        super().__init__(state.step)
        self.state = state


@dataclass(frozen=True, slots=True)
class Mending:
    repair: Repair
    keeping: Keeping
    recorder: Recorder
    rewind: Callable[[RunState], None]
    """Bring prompts and rollouts to where they were then."""
    publish: Callable[[int], None]
    """Give the engines the policy's weights, of that version."""
    oldest: Callable[[], int]
    """The first step that rollouts can go back to."""

    def done(self, state: RunState, act: Callable[[RunState], T]) -> T:
        """What `act` comes to, from `state` again where a process is lost under it.

        Raises WentBackError where an older state is all that is left.
        """
        while True:
            try:
                return act(state)
            except LostWorkerError as loss:
                found = self._go_back(state, loss)
                if found.step < state.step:
                    self.recorder.goes_back(found.step)
                    self.keeping.goes_back(found.step)
                    raise WentBackError(found) from None

    def _go_back(self, state: RunState, loss: LostWorkerError) -> RunState:
        """The newest state that is held, at most `state`; everything is as it was then."""
        self.recorder.repairs(state.step + 1)
        self.keeping.salvage()
        while True:
            try:
                state = self.repair.mend(loss, state, self.oldest())
                self.rewind(state)
                self.publish(state.step)
                return state
            except LostWorkerError as another:
                loss = another
