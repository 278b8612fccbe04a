"""A process of a model is lost: its group starts anew, and the run goes back to before the step.

Driver, engines and the other groups stay as they are. A step is a function of (state, seed, step):
done again from the same state it is the same step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.actors.base import Learner
from trainer.actors.group import Group
from trainer.budget import Budget
from trainer.contract import checkpoint_path, fault_of
from trainer.engine_pool import ROLE as ENGINE
from trainer.engine_pool import Patience
from trainer.events import Tell
from trainer.team import Team
from trainer.types import BeyondRepairError, LostWorkerError, NoSeatError, SnapshotLostError

if TYPE_CHECKING:
    from trainer.checkpoint.peers import Peers, Snapshot


class Source(Protocol):
    """Where the state of finished steps is kept."""

    def holds(self, step: int) -> bool:
        """Whether it has what all learners were after `step`, whole."""

    def restore(self, team: Team, step: int) -> None:
        """Give it to all ranks of all learners."""

    def __str__(self) -> str:
        """In the words of a sentence: from ..."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A Source: the run's checkpoints."""

    checkpoints: Path

    def holds(self, step: int) -> bool:
        return fault_of(checkpoint_path(self.checkpoints, step)) is None

    def restore(self, team: Team, step: int) -> None:
        directory = checkpoint_path(self.checkpoints, step)
        _restore(team, directory)

    def __str__(self) -> str:
        return "the checkpoint"


@dataclass(frozen=True, slots=True)
class Memory:
    """A Source: what the nodes hold of each step."""

    peers: Peers

    def holds(self, step: int) -> bool:
        snapshot = self.peers.newest()
        return snapshot is not None and snapshot.step == step

    def restore(self, team: Team, step: int) -> None:
        snapshot = self.peers.newest()
        if snapshot is None or snapshot.step != step:
            raise SnapshotLostError(f"the snapshot of step {step} is gone")
        _restore(team, snapshot)

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
    """Whether all learners are given the state of the last finished step."""


def plan(lost: str, learners: Sequence[str], step: int) -> Plan:
    """`lost`: the role of what was lost; `step`: the last finished one.

    A frozen model is what it was once it is loaded. Before the first step so are the learners;
    later, one that was updated in the step in flight goes back with the one that was lost.
    """
    if lost == ENGINE:
        return Plan()  # its pool replaces it when weights are due
    if lost not in learners:
        return Plan((lost,))
    return Plan((lost,), restored=True) if step else Plan(tuple(learners))


@dataclass(frozen=True, slots=True)
class Repair:
    team: Team
    sources: Sequence[Source]
    tell: Tell
    patience: Patience = field(default_factory=Patience)
    budget: Budget = field(default_factory=Budget)

    def mend(self, loss: LostWorkerError, step: int) -> None:
        """Bring every model to where it was after `step`; the engines still want its weights.

        Raises BeyondRepairError where no state of that step is at hand, no node has room, or the
        same was repaired too often, and LostWorkerError where more is lost meanwhile.
        """
        began = time.monotonic()
        self.budget.spend(loss.role, loss)
        planned = plan(loss.role, list(self.team.learners), step)
        source = self._source(loss, step) if planned.restored else None
        for role in planned.renewed:
            self._renew(role, loss)
        if source:
            source.restore(self.team, step)
        if planned.renewed:
            self._say(loss, planned, source, step, time.monotonic() - began)

    def progress(self) -> None:
        """A step is finished."""
        self.budget.renew()
        self.team.engines.budget.renew()

    @property
    def _groups(self) -> dict[str, Group[Any]]:
        frozen: dict[str, Group[Any] | None] = {
            "reference": self.team.reference,
            "reward": self.team.reward,
        }
        return dict(self.team.learners) | {role: group for role, group in frozen.items() if group}

    def _source(self, loss: LostWorkerError, step: int) -> Source:
        for source in self.sources:
            if source.holds(step):
                return source
        raise BeyondRepairError(f"{loss}. The state after step {step} is not at hand") from None

    def _renew(self, role: str, loss: LostWorkerError) -> None:
        """Start all of its processes, and wait until they are up."""
        group = self._groups[role]
        try:
            group.renew(range(len(group)))
        except NoSeatError as error:
            raise BeyondRepairError(f"{loss}; {error}") from None
        if not group.started(self.patience.start):
            raise BeyondRepairError(f"{loss}. The {role} does not start again")

    def _say(
        self, loss: LostWorkerError, planned: Plan, source: Source | None, step: int, seconds: float
    ) -> None:
        renewed = " and ".join(planned.renewed)
        where = f"from {source} " if source else ""
        self.tell(
            "rank-replaced",
            f"The {loss.role} lost a process ({loss.how}): {renewed} started anew, and step "
            f"{step + 1} is done {where}again after {seconds:.1f} s.",
            role=loss.role,
            step=step,
            seconds=round(seconds, 3),
        )
