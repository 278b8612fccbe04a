"""Effective time of 30 days at 1,024 and 16,384 GPUs, simulated at published failure rates.

The clock, the failures and how long things take are simulated; what is decided is not: each failure
is a log that a program really printed (tests/data/failures), read by the real patterns, classified
and answered by the real rules, written to a real journal, from which the real flight record takes
the ratio. Mean times to failure: 7.9 h and 1.8 h (arXiv 2410.21680). Their kinds: the 419
unexpected interruptions of Llama 3's pre-training (arXiv 2407.21783, table 5), grouped by our
answers.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

from bench.result import report
from contract.durations import duration
from contract.journal import EventSource, append_event, read_events
from entrypoint.job.failures import classes, hang, policy
from entrypoint.job.failures.classes import AttemptResult, Hung, WorkerLeaving
from entrypoint.job.failures.log_patterns import EvidenceLog
from entrypoint.job.failures.policy import Replace, RestartBudget, Resume, Stop
from entrypoint.net import wait
from entrypoint.run.failure_classes import FailureClass
from entrypoint.run.flight_record.record import FlightRecord, from_journal
from entrypoint.run.journal import Journal

HOUR, DAY = 3600.0, 86_400.0
RECORDED = Path(__file__).parents[1] / "tests/data/failures"
SCALES = {1024: (7.9 * HOUR, 0.97), 16_384: (1.8 * HOUR, 0.92)}
"""GPUs → mean time to failure in seconds, wanted effective time ratio."""

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
    replacement: float = 120.0
    """Assumed: a spare machine's container starts and joins; measured with no image to pull: 12."""
    start: float = 90.0
    """Assumed: models loaded, communicators made; measured with a tiny model: 1.8."""


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
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.rng.expovariate(1 / self.mttf)

    def timestamp(self) -> str:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)
        return at.isoformat(timespec="milliseconds")

    def spend(self, seconds: float) -> bool:
        """Whether so many seconds pass without a failure; with one, time stops at it."""
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
        while answered and world.now < seconds:
            answered = _attempt(world, budget, seconds)
        name = "stopped" if answered else "failed"
        world.journal.record("outcome", f"the simulation has {name}", outcome=name)
    return from_journal(read_events(path))


def _attempt(world: World, budget: RestartBudget, until: float) -> bool:
    """From a roll to the answer to what ended it; False where that is to stop."""
    world.journal.attempt = (world.journal.attempt or 0) + 1
    world.journal.record("roll", "all are there", present=[], expected=0)
    number, began = world.journal.attempt, world.step
    world.journal.record("attempt", f"attempt {number} starts", resume_from=world.saved)
    alive = world.spend(world.inputs.start)
    if alive:
        world.step = began = world.saved
        world.tell("resume")
    while alive and world.now < until:
        alive = _one_step(world)
    return alive or _answer(world, budget, progressed=world.step > began)


def _one_step(world: World) -> bool:
    if not world.spend(world.inputs.step):
        return False
    world.step += 1
    world.tell("step")
    if world.step % world.inputs.steps_a_checkpoint:
        return True
    if not world.spend(world.inputs.checkpoint):
        return False
    world.saved = world.step
    world.tell("checkpoint")
    return True


def _answer(world: World, budget: RestartBudget, *, progressed: bool) -> bool:
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
    if isinstance(decision, Stop):
        return False
    world.journal.record("decision", decision.sentence, answer=type(decision).__name__.lower())
    replaced = isinstance(decision, Replace) or failure is FailureClass.NODE_LOST
    world.now += inputs.replacement if replaced else inputs.roll
    if isinstance(decision, Resume) and decision.delayed:
        world.now += wait.backoff(budget.attempts_without_progress)
    return True


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    for one in fields(Inputs):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    options = vars(parser.parse_args())
    if not 0 < options["days"] < math.inf:
        parser.error(f"--days {options['days']:g} are too short to simulate anything")
    seconds, seed = options.pop("days") * DAY, options.pop("seed")
    inputs, records = Inputs(**options), {}
    # In memory where that is possible: a journal is synced at every event.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rollcall-goodput-", dir=memory) as directory:
        for gpus, (mttf, _) in SCALES.items():
            path = Path(directory) / f"{gpus}.jsonl"
            records[gpus] = simulate(inputs, mttf, seconds, seed, path)
            _say(gpus, records[gpus])
    smallest, largest = min(SCALES), max(SCALES)
    ok = report(
        "goodput",
        records[largest].effective_time_ratio,
        unit=f"effective time ratio at {largest} GPUs",
        target=SCALES[largest][1],
        better="higher",
        besides=records[smallest].effective_time_ratio >= SCALES[smallest][1],
        detail={str(gpus): _detail(gpus, record) for gpus, record in records.items()} | options,
    )
    return 0 if ok else 1


def _say(gpus: int, record: FlightRecord) -> None:
    limits = list(_rest(record).items())[:3]
    print(
        f"{gpus} GPUs: {record.effective_time_ratio:.2%} effective, {record.steps} steps, "
        f"{len(record.failures)} failures; the rest: "
        + ", ".join(f"{use} {duration(spent)}" for use, spent in limits),
        flush=True,
    )


def _rest(record: FlightRecord) -> dict[str, float]:
    return {use: spent for use, spent in record.seconds.items() if use != "training"}


def _to_spare(gpus: int, record: FlightRecord) -> float:
    """How much longer each recovery could take before the target is missed."""
    over = record.effective_time_ratio - SCALES[gpus][1]
    return over * record.wall_seconds / max(1, len(record.failures))


def _detail(gpus: int, record: FlightRecord) -> dict[str, object]:
    kinds = [one.failure for one in record.failures]
    return {
        "effective_time_ratio": record.effective_time_ratio,
        "target": SCALES[gpus][1],
        "failures": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "outcome": record.outcome,
        "limited_by": next(iter(_rest(record))),
        "seconds_to_spare_a_failure": round(_to_spare(gpus, record), 1),
        "shares_of_the_rest": {
            use: round(spent / record.wall_seconds, 4) for use, spent in _rest(record).items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
