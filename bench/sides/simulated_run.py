"""A run whose clock, failures and durations are simulated, and whose decisions are real.

Each failure is a log that a program really printed (tests/data/failures), read by the real
patterns, classified and answered by the real rules, written to a real journal, from which the real
flight record takes the ratio. The kinds of failures: the 419 unexpected interruptions of Llama 3's
pre-training (arXiv 2407.21783, table 5), grouped by our answers.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

from contract.journal import EventSource, append_event, read_events
from entrypoint.cluster.slow_nodes import most_an_hour
from entrypoint.job.failures import classes, hang, policy
from entrypoint.job.failures.classes import AttemptResult, Hung, WorkerLeaving
from entrypoint.job.failures.evidence_log import EvidenceLog
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.failures.policy import Replace, RestartBudget, Resume
from entrypoint.net import wait
from entrypoint.run.failure_classes import FailureClass
from entrypoint.run.flight_record.record import FlightRecord, from_journal
from entrypoint.run.journal import Journal

HOUR, DAY = 3600.0, 86_400.0
RECORDED = Path(__file__).parents[2] / "tests/data/failures"

KINDS = {
    "gpu": 148 + 72 + 19 + 17 + 6,  # GPU, HBM, SRAM, system processor, thermal
    "program": 54 + 6 + 2,  # software bug, silent corruption, dependency
    "network": 35 + 7,  # switch or cable, NIC
    "stuck": 7,  # a collective that never ends
    "maintenance": 32,  # announced
    "machine": 3 + 3 + 2 + 2 + 2 + 2,  # disk, power, chassis, board, CPU, memory
}
LOGS = {
    "gpu": ("gpu", "a GPU of another node has an uncorrectable memory error"),
    "program": ("ray", "an actor's process is killed: its node lives"),
    "network": ("collectives", "a peer is gone from the network"),
    "machine": ("ray", "an actor's node is gone"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Seconds. What this project does was measured with a trivial job and a real cluster on two
    cores (tests/data/journals); what a large model and its network add is an assumption."""

    step: float = 180.0
    steps_a_checkpoint: int = 1
    checkpoint: float = 1.8
    """Held up by each: 1 % of a step."""
    process_death: float = 0.5
    """Measured (`bench.recovery`): SIGKILL of the driver to the failure's event."""
    node_death: float = 15.0
    """ROLLCALL_NODE_TIMEOUT; measured for a killed worker that comes back at once: 1.1."""
    end_of_hung: float = 1.6
    """Measured: stacks, SIGKILL and Ray's word on it, after the hang watch's own time."""
    longest_part: float = 60.0
    """Of a step: from it the hang watch learns its time."""
    roll: float = 0.1
    """Measured: no node to wait for."""
    replacement: float = 600.0
    """Assumed: the platform finds another machine, which pulls the image, starts and joins;
    measured for a container whose image is there: 12."""
    start: float = 90.0
    """Assumed: models loaded, communicators made; measured with a tiny model: 1.8."""

    machines: int = 128
    spares: int = 0
    """Machines that wait for the place of a lost one (ROLLCALL_SPARE_WORKERS)."""
    spare: float = 6.0
    """Until a spare has a lost machine's place, in place of `replacement`."""
    rejoin: float = 45.0
    """Assumed, in place of `start`: the spare takes its part from replicas, the others keep theirs;
    communicators are made."""
    slow_share: float = 0.005
    slow_factor: float = 1.1
    """Of all machines, and of a step while one of them takes part (arXiv 2402.15627)."""
    noticed_steps: int = 0
    """A slow machine is replaced by a spare after so many steps; 0: never."""


@dataclass(slots=True)
class World:
    """A run's virtual time, and when the next failure comes."""

    inputs: Inputs
    mttf: float
    rng: random.Random
    journal: Journal
    now: float = 0.0
    step: int = 0
    saved: int = 0
    slow: list[int] = field(init=False)
    """Of each slow machine that takes part, the step since which it does; the oldest first."""
    _next: float = field(init=False)
    _spares: list[float] = field(init=False)
    """When each is, or was, ready."""
    _left: list[float] = field(default_factory=list)
    """When slow machines left, within an hour."""

    def __post_init__(self) -> None:
        self._next = self.rng.expovariate(1 / self.mttf)
        self._spares = [0.0] * self.inputs.spares
        self.slow = [0] * sum(map(self._is_slow, range(self.inputs.machines)))

    def exchange(self, *, slow: bool = False) -> bool:
        """Put a spare, or else another machine, in the place of one. Returns whether it is a spare.

        `slow`: in place of a slow one; else of any.
        """
        leaves = slow or self.rng.random() < len(self.slow) / self.inputs.machines
        if leaves:
            del self.slow[0 if slow else self.rng.randrange(len(self.slow))]
        if self._is_slow():
            self.slow.append(self.step)
        comes = self.now + self.inputs.replacement
        first = min(self._spares, default=comes)
        if first >= comes:
            self.now = comes
            return False
        self._spares.remove(first)
        self._spares.append(comes)
        self.now = max(self.now, first) + self.inputs.spare
        return True

    def leaves(self) -> bool:
        """Whether a slow machine is known for one, a spare is there, and one may leave by now."""
        noticed = self.inputs.noticed_steps
        if not (noticed and self.slow and self.step - self.slow[0] >= noticed):
            return False
        self._left = [at for at in self._left if self.now - at < HOUR]
        may = len(self._left) < most_an_hour(self.inputs.machines)
        if ready := may and min(self._spares, default=self.now + 1) <= self.now:
            self._left.append(self.now)
        return ready

    def _is_slow(self, _machine: int = 0) -> bool:
        return self.rng.random() < self.inputs.slow_share

    def timestamp(self) -> str:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)
        return at.isoformat(timespec="milliseconds")

    def spend(self, seconds: float) -> bool:
        """Return whether so many seconds pass without a failure; with one, time stops at it."""
        if self.now + seconds < self._next:
            self.now += seconds
            return True
        self.now = max(self.now, self._next)
        self._next += self.rng.expovariate(1 / self.mttf)
        return False

    def tell(self, kind: str) -> None:
        number, attempt = self.saved if kind == "checkpoint" else self.step, self.journal.attempt
        append_event(
            self.journal.path,
            kind,
            f"{kind} {number}",
            {"step": number},
            source=EventSource(attempt=attempt),
        )


def simulate(inputs: Inputs, mttf: float, seconds: float, seed: int, path: Path) -> FlightRecord:
    random.seed(seed)  # of the backoff's jitter
    world = World(inputs, mttf, random.Random(seed), Journal(path, "head"))
    budget, answered = RestartBudget(max_restarts=3), True
    with patch("contract.journal.timestamp", world.timestamp):
        world.journal.record("start", "this is the head")
        world.spend(inputs.replacement)
        start = inputs.start
        while answered and world.now < seconds:
            answered, start = _attempt(world, budget, start, seconds)
        name = "stopped" if answered else "failed"
        world.journal.record("outcome", f"the simulation has {name}", outcome=name)
    return from_journal(read_events(path))


def _attempt(world: World, budget: RestartBudget, start: float, until: float) -> tuple[bool, float]:
    """Run from a roll to the end. Returns whether the run goes on, and the next start's seconds."""
    world.journal.attempt = (world.journal.attempt or 0) + 1
    world.journal.record("roll", "all are there", present=[], expected=0)
    number, began = world.journal.attempt, world.step
    world.journal.record("attempt", f"attempt {number} starts", resume_from=world.saved)
    alive = world.spend(start)
    if alive:
        world.step = began = world.saved
        world.tell("resume")
    while alive and world.now < until:
        alive = _one_step(world)
    return (True, start) if alive else _answer(world, budget, progressed=world.step > began)


def _one_step(world: World) -> bool:
    inputs = world.inputs
    if world.leaves():
        world.exchange(slow=True)
        if not world.spend(inputs.start):  # the step is saved, and all ranks start anew
            return False
    if not world.spend(inputs.step * (inputs.slow_factor if world.slow else 1)):
        return False
    world.step += 1
    world.tell("step")
    if world.step % inputs.steps_a_checkpoint:
        return True
    if not world.spend(inputs.checkpoint):
        return False
    world.saved = world.step
    world.tell("checkpoint")
    return True


def _answer(world: World, budget: RestartBudget, *, progressed: bool) -> tuple[bool, float]:
    inputs, kind = world.inputs, world.rng.choices(list(KINDS), list(KINDS.values()))[0]
    result, silent = _result(kind, inputs, world.step)
    if kind == "maintenance":  # a notice: the step in flight is finished and saved
        world.now += inputs.step
        world.step = world.saved = world.step + 1
        world.tell("step")
        world.tell("checkpoint")
    world.now += silent
    failure = classes.classify(result)
    sentence = f"{failure}: {classes.explain(result, failure).sentence}"
    world.journal.record("failure", sentence, failure=failure, silent_seconds=silent)
    history = budget.after(failure, progressed=progressed)
    found = classes.find_evidence(result, failure)
    faulty = f"worker at {found.address}" if found and found.address else None
    decision = policy.decide(failure, history, world.saved, faulty)
    if isinstance(decision, Outcome):
        return False, inputs.start
    world.journal.record("decision", decision.sentence, answer=type(decision).__name__.lower())
    if isinstance(decision, Replace) or failure is FailureClass.NODE_LOST:
        return True, inputs.rejoin if world.exchange() else inputs.start
    world.now += inputs.roll
    if isinstance(decision, Resume) and decision.first_pause:
        failures = budget.attempts_without_progress
        world.now += wait.backoff(failures, first=decision.first_pause)
    return True, inputs.start


def _result(kind: str, inputs: Inputs, step: int) -> tuple[AttemptResult, float]:
    """How it looks to the supervisor, and for how long the job was silent by then."""
    if kind == "stuck":
        watched = hang.limit("forward", [inputs.longest_part] * hang.MIN_SAMPLES)
        result = AttemptResult(status="FAILED", cause=Hung("nothing more"))
        return result, watched + inputs.end_of_hung
    if kind == "maintenance":
        leaves = WorkerLeaving("a worker leaves")
        return AttemptResult(status="FAILED", exit_code=143, cause=leaves), 0.0
    evidence = EvidenceLog(lambda: step)
    for line in _log(*LOGS[kind]).splitlines():
        evidence.read(line)
    silent = inputs.process_death if kind in ("gpu", "program") else inputs.node_death
    found = evidence.at(step)
    return AttemptResult(status="FAILED", exit_code=1, evidence=found, step=step), silent


def _log(name: str, case: str) -> str:
    cases = tomllib.loads((RECORDED / f"{name}.toml").read_text())["case"]
    return str(next(one["log"] for one in cases if one["name"] == case))
