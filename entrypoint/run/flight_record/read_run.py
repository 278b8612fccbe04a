"""Reads what a report shows of a run directory: one run, or a cluster's jobs in their order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from contract import lease
from contract.durations import duration, significant
from contract.files import stored_json
from contract.journal import NO_REWARD, read_events
from contract.journal_file.index import landmarks
from contract.metrics.charts import title_of
from contract.redaction import redact
from contract.run_dir import JOB_ENTRY, RunFiles
from entrypoint.run import run_facts
from entrypoint.run.attempt_ends import HEAD_LOST
from entrypoint.run.curves import Best, Curves, Points
from entrypoint.run.flight_record import run_end, standalone
from entrypoint.run.flight_record.record import (
    RUNNING,
    FlightRecord,
    NothingToReportError,
    from_journal,
)
from entrypoint.run.flight_record.run_end import Ended
from entrypoint.run.flight_record.time_accounting import GOES_BACK, UNTOLD
from entrypoint.run.lease import HEARTBEAT_SECONDS, SILENCE_SECONDS
from entrypoint.run.lost_head import all_of, cluster_of

TOLD = {"reward": "train/reward", "kl": "train/kl", "loss": "train/loss"}
"""Detail of a step's event → the metric that it is."""

LOOK_SECONDS = 4 * HEARTBEAT_SECONDS
"""In which a head that lives renews its lease, whatever the clocks of storage and reader say."""
LONG_SECONDS = 600.0
"""No two clocks differ by so much."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run: the run directory's own, or that of a submitted job."""

    name: str
    stage: str = ""
    """The job's name in a pipeline."""
    after: str = ""
    """The job that had to finish before."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """As `run_facts.read` returns them."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """As `run_facts.flags` returns them."""
    record: FlightRecord | None
    """None if the job has not begun."""
    state: str
    """The outcome of the record; of a job that has not begun, its state in the queue."""
    sentence: str
    end: Ended | None = None
    """Why the run has ended, and what to do; None if it has not ended."""
    curves: Row = field(default_factory=dict)
    """`steps`, and `series`: metric → its values, or None where it has none."""
    best: Best | None = None
    """The best value of the run's main metric in one row; None if there is none."""
    no_reward: str = ""
    """What the run has told last of samples without a reward."""

    @property
    def last(self) -> Best | None:
        """The newest value of the run's main metric; None if there is none."""
        if self.best is None:
            return None
        values = self.curves["series"].get(self.best.metric, ())
        points = zip(self.curves["steps"], values, strict=True)
        known = [(step, value) for step, value in points if value is not None]
        return Best(self.best.metric, known[-1][1], known[-1][0]) if known else None

    def began_with(self) -> Iterator[str]:
        """Yield the first model, data and algorithm in a line, as far as they are known."""
        facts = self.facts
        told = {
            "started from": facts.get("model_path") or facts.get("model"),
            "data": facts.get("data"),
            "algorithm": facts.get("algorithm"),
        }
        if any(told.values()):
            yield ", ".join(f"{name} {text}" for name, text in told.items() if text)

    def best_told(self) -> Iterator[str]:
        """Yield which step was best; if it is the model before training, that nothing is better."""
        if (best := self.best) is None or not self.curves["steps"]:
            return
        told = f"{title_of(best.metric)} {significant(best.value)}"
        if best.step:
            yield f"best value: {told}, after step {best.step}"
            if self.last and self.last.step > best.step:
                yield f"last value: {significant(self.last.value)}, after step {self.last.step}"
        elif self.last and self.last.step:
            yield f"the model before training was best: {told}. Training made it worse"


def of_run(run: RunFiles, secrets: Iterable[str] = ()) -> Part:
    """Read a run. Raises OSError, and NothingToReportError if its journal has no events."""
    record = _record(run, secrets)
    if record.outcome == RUNNING:
        cluster = cluster_of(run)
        own = standalone.state_of(run) if cluster is run else None
        record = _now(record, *own) if own else _without_head(record, cluster, _silence(cluster))
        record = _until_now(record)
    curves, best = _curves(run)
    facts = run_facts.read(run)
    return Part(
        name=facts["name"],
        facts=facts,
        flags=run_facts.flags(run),
        record=record,
        state=record.outcome,
        sentence=record.sentence,
        end=_end(run, secrets),
        curves=curves,
        best=best,
        no_reward=_no_reward(run, secrets),
    )


def of_jobs(run: RunFiles, secrets: Iterable[str] = ()) -> list[Part]:
    """Read the jobs that were submitted to a cluster, oldest first. Raises OSError."""
    entries = _entries(run)
    silence = _silence(run) if any(not row.get("ended") for _, row in entries) else None
    return [_of_job(RunFiles(run.jobs / name), row, secrets, silence) for name, row in entries]


def pipelines(parts: Sequence[Part]) -> list[list[Part]]:
    """Pure: return the jobs in groups: the stages of one pipeline, or a single job."""
    groups: list[list[Part]] = []
    of_job: dict[str, list[Part]] = {}
    for part in parts:
        group = of_job.get(part.after) if part.after else None
        if group is None:
            group = []
            groups.append(group)
        group.append(part)
        of_job[part.name] = group
    return groups


def _entries(run: RunFiles) -> list[tuple[str, Row]]:
    found = []
    for path in run.jobs.glob(f"job-*/{JOB_ENTRY}"):
        number, row = path.parent.name.removeprefix("job-"), stored_json.json_object(path)
        if row is not None and number.isdecimal():
            found.append((int(number), path.parent.name, row))
    return [(name, row) for _, name, row in sorted(found, key=lambda one: one[0])]


def _silence(run: RunFiles) -> float | None:
    """Return the seconds since the last sign of life of a cluster's head; None without a lease.

    A head that seems silent is watched a while.
    """
    silent = lease.silence(run.leases)
    if silent is None or silent < SILENCE_SECONDS or silent > LONG_SECONDS:
        return silent
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        time.sleep(0.2)
        if (now := lease.silence(run.leases)) is None or now < silent:
            return 0.0
    return lease.silence(run.leases)


def _without_head(record: FlightRecord, cluster: RunFiles, silence: float | None) -> FlightRecord:
    """Return the record, in which nothing runs if the head has been silent for long.

    `cluster`: the head's run directory. `silence`: seconds since the head's last sign of life;
    None: not known.
    """
    if record.outcome != RUNNING or silence is None or silence < SILENCE_SECONDS:
        return record
    follows = all_of(cluster, silence)
    return _now(record, HEAD_LOST, f"the head was lost {duration(silence)} ago: {follows}")


def _now(record: FlightRecord, state: str, sentence: str) -> FlightRecord:
    """Return the record of a run that is known to be in this state now."""
    if state == RUNNING:
        return record
    attempts = [
        replace(one, ending=state) if one.ending == RUNNING else one for one in record.attempts
    ]
    return replace(record, outcome=state, sentence=sentence, attempts=attempts)


def _until_now(record: FlightRecord) -> FlightRecord:
    """Return the record of a run that goes on; a job that tells no step adds no event."""
    if record.outcome != RUNNING or record.effective_time_ratio is not None or not record.attempts:
        return record
    passed = (datetime.now(UTC) - datetime.fromisoformat(record.ended)).total_seconds()
    seconds = round(max(0.0, passed), 3)  # of another clock
    spent = {**record.seconds, UNTOLD: record.seconds.get(UNTOLD, 0.0) + seconds}
    *before, newest = record.attempts
    return replace(
        record,
        wall_seconds=record.wall_seconds + seconds,
        seconds=dict(sorted(spent.items(), key=lambda use: -use[1])),
        attempts=[*before, replace(newest, seconds=newest.seconds + seconds)],
    )


def _of_job(run: RunFiles, row: Row, secrets: Iterable[str], silence: float | None) -> Part:
    told = {
        name: redact(value if isinstance(value := row.get(name), str) else "", secrets)
        for name in ("stage", "after", "state", "sentence")
    }
    try:
        record = _until_now(_without_head(_record(run, secrets), cluster_of(run), silence))
    except NothingToReportError:
        record = None
    is_over = bool(row.get("ended"))
    curves, best = _curves(run)
    return Part(
        name=run.root.name,
        stage=told["stage"],
        after=told["after"],
        facts=run_facts.read(run),
        flags=run_facts.flags(run),
        record=record,
        state=told["state"] if record is None or is_over else record.outcome,
        sentence=told["sentence"] or (record.sentence if record else "it has not begun"),
        end=_end(run, secrets),
        curves=curves,
        best=best,
        no_reward=_no_reward(run, secrets),
    )


def _end(run: RunFiles, secrets: Iterable[str]) -> Ended | None:
    end = run_end.read(run)
    return end and replace(
        end, sentence=redact(end.sentence, secrets), cause=redact(end.cause, secrets)
    )


def _record(run: RunFiles, secrets: Iterable[str]) -> FlightRecord:
    """Return the record of the run's journal, whose texts are masked.

    Raises OSError, and NothingToReportError if the journal has no events.
    """
    record = from_journal(read_events(run.journal))
    return replace(
        record,
        sentence=redact(record.sentence, secrets),
        failures=[
            replace(
                one, evidence=redact(one.evidence, secrets), decision=redact(one.decision, secrets)
            )
            for one in record.failures
        ],
        repairs=[replace(one, sentence=redact(one.sentence, secrets)) for one in record.repairs],
    )


def _no_reward(run: RunFiles, secrets: Iterable[str]) -> str:
    told = [event["sentence"] for event in landmarks(run.journal).events((NO_REWARD,))]
    return redact(told[-1], secrets) if told else ""


def _curves(run: RunFiles) -> tuple[Row, Best | None]:
    """Return the curves of the metrics, and the best value of the main one.

    Without any, they are what the journal's steps say.
    """
    curves = Curves(run.metrics)
    while (found := curves.rows())["more"]:
        pass
    if found["steps"]:
        return found, curves.best()
    points = told(run)
    return points.rows(), points.best


def told(run: RunFiles) -> Points:
    """Return the numbers that the journal has of the steps that count. Raises OSError."""
    return _told(read_events(run.journal))


def _told(events: Iterable[Row]) -> Points:
    """Pure: return the numbers that the journal has of the steps that count."""
    points = Points()
    for event in events:
        kind, details = event["kind"], event["details"]
        if kind in GOES_BACK:
            points.go_back(details["step"])
        elif kind == "step":
            known = {name: details[key] for key, name in TOLD.items() if key in details}
            points.add({"step": details["step"], **known})
        elif kind == "eval" and "step" in details and "accuracy" in details:
            name = "eval/reward" if details.get("is_reward") is True else "eval/accuracy"
            points.add({"step": details["step"], name: details["accuracy"]})
    return points
