"""Reads how a run has ended, why, and what to do, from its run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contract.durations import counted, steps_kept
from contract.exit_codes import RESUMES, RESUMES_FROM
from contract.files import stored_json
from contract.journal import EXPORT
from contract.journal_file.index import landmarks
from contract.launch import standalone
from contract.manifest import checkpoint_path, newest_checkpoint, steps_on_disk
from contract.progress import Progress, change
from contract.run_dir import JOB_ENTRY, RunFiles
from entrypoint.run import run_attempts, trained
from entrypoint.run.failure_classes import cause_of
from entrypoint.run.flight_record.remedies import OVER, OVER_STAGE, WORKERS_TOO, remedy
from entrypoint.run.flight_record.text import NO_STEP, dated
from entrypoint.run.shown_path import shown

LABELS = {"cause": "cause", "place": "place", "to_do": "what to do", "log": "log"}
"""Field of an end that failed → its name for people."""

NO_FINAL_MODEL = "the script has saved no final model"


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: str
    """finished, failed or stopped."""
    sentence: str
    result: Mapping[str, Any]
    """The content of result.json; empty if there is no such file."""
    cause: str = ""
    """What has ended the last attempt, such as a signal; "" if nothing is known to have."""
    place: str = ""
    """`path:line` of the cause in the user's own code; "" if it is not known."""
    to_do: str = ""
    """"" if there is nothing to do."""
    resume: str = ""
    """The command that starts the head again, for a shell; "" if it is not known."""
    log: Path | None = None
    """The log of the attempt that has failed last; the head's if the run has failed in none."""
    has_head: bool = True
    """False if a trainer without a head made the last attempt."""
    model: Path | None = None
    """The directory of the trained model; None if there is none."""
    at: str = ""
    """When it has ended; "" if that is not known."""
    steps_kept: int = 0
    """Steps of result.json, without those that the run has gone back over and not made again."""
    steps_lost: int = 0
    """Finished steps that the run has gone back over."""
    knows_steps: bool = True
    """False for a program whose steps are not known."""
    best: Path | None = None
    """The directory of the best policy on held-out prompts after a step; None if there is none."""
    checkpoint: Path | None = None
    """The newest checkpoint with weights, where the script has saved no final model; else None."""

    def row(self) -> dict[str, Any]:
        """The same shape as the head's state, with the known fields."""
        told = {"outcome": self.outcome, "exit_code": self.result.get("exit_code")}
        return {
            "phase": "ended",
            "sentence": self.sentence,
            "cause": self.cause,
            "place": self.place,
            "to_do": self.to_do,
            "resume": self.resume,
            "log": self.log and str(self.log.absolute()),
            "model": self.model and str(self.model.absolute()),
            "best_policy": self.best and str(self.best.absolute()),
            "newest_checkpoint": self.checkpoint and str(self.checkpoint.absolute()),
            "outcome": told,
            "ended": self.at,
            "steps_kept": self.steps_kept,
            "steps_lost": self.steps_lost,
            "result": dict(self.result),
        }

    def told(self) -> dict[str, Any]:
        """Return the outcome as a head tells it to workers and to the page."""
        return {
            "outcome": self.outcome,
            "exit_code": self.result.get("exit_code"),
            "remedy": self.to_do,
            "resume": self.resume,
            "cause": self.cause,
            "place": self.place,
            "log": self.log.stem if self.log else "",
            "model": str(self.model.absolute()) if self.model else "",
            "newest_checkpoint": str(self.checkpoint.absolute()) if self.checkpoint else "",
            "ended": self.at,
        }

    def lines(self) -> Iterator[str]:
        code = self.result.get("exit_code")
        told = self.outcome if code is None else f"{self.outcome}, exit code {code}"
        yield f"the run has ended ({told}): {self.sentence}"
        yield from self.why()
        yield from self.learned()
        steps, attempts = self.result.get("steps"), self.result.get("attempts")
        # A cluster of submitted jobs, and a run that did not begin, have made none.
        if stored_json.is_count(steps) and stored_json.is_count(attempts) and attempts:
            kept = steps_kept(self.steps_kept, self.steps_lost) if self.knows_steps else NO_STEP
            yield f"{kept}, {counted(attempts, 'attempt')}{self.at and f', ended {dated(self.at)}'}"
        yield from self.places()

    def places(self, *, as_shown: bool = True) -> Iterator[str]:
        """Yield where the trained model and the best policy are, if they are there.

        `as_shown`: as in `why`.
        """
        told = shown if as_shown else str
        known = {"trained model": self.model, "best policy after a step": self.best}
        yield from (f"{name}: {told(path)}" for name, path in known.items() if path)
        if self.checkpoint:
            yield f"newest checkpoint: {told(self.checkpoint)}; {NO_FINAL_MODEL}"

    def learned(self) -> Iterator[str]:
        """Yield the first and the last value of reward and held-out data, if they are known.

        What was measured once is one number.
        """
        rewards = [self._number(name) for name in ("reward_first", "reward_last")]
        known = [f"{value:.3f}" for value in rewards if value is not None]
        told = []
        if self.result.get("steps") == 1:
            known = known[-1:]
        elif len(known) < len(rewards):
            known = []
        if known:
            told.append(f"reward {' → '.join(known)}")
        is_reward = self.result.get("eval_is_reward") is True
        measured = [self._number(name) for name in ("eval_before", "eval_after")]
        told.append(change(*measured, is_reward=is_reward))
        if any(told):
            yield ", ".join(filter(None, told))

    def _number(self, name: str) -> float | None:
        """Return the value of this field; None if it is unknown."""
        value = self.result.get(name)
        return float(value) if stored_json.is_number(value) else None

    def why(self, *, as_shown: bool = True) -> Iterator[str]:
        """Yield cause, place, remedy, command and log, each if it is known.

        `as_shown`: paths as people read them here; else as they are, for a file.
        """
        again = f"to start {'its head' if self.has_head else 'it'} again"
        first = {name: label for name, label in LABELS.items() if name != "log"}
        labels = {**first, "resume": again, "log": LABELS["log"]}
        known = {name: getattr(self, name) for name in labels}
        if as_shown:
            known |= {name: shown(known[name]) for name in ("place", "log") if known[name]}
        yield from why(known, labels)


def why(known: Mapping[str, Any], labels: Mapping[str, str] = LABELS) -> Iterator[str]:
    """Yield a line for each field that is known."""
    yield from (f"{label}: {known[name]}" for name, label in labels.items() if known.get(name))


def reasons(end: Ended | None) -> dict[str, str]:
    """Return the fields of LABELS; each is "" if it is not known."""
    return {name: str((end and getattr(end, name)) or "") for name in LABELS}


@dataclass(slots=True)
class _Events:
    """What the journal says of the run's end."""

    last: Mapping[str, Any] | None = None
    """The last start of a head, or the last outcome."""
    start: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    """The last one, unless a start or a step came after it."""
    stop: str = field(init=False, default="")
    """Why the last attempt was asked to save and to stop."""
    exported: str = ""
    """The directory of the exported model."""
    has_workers: bool = False

    @classmethod
    def read(cls, journal: Path) -> _Events:
        """Raises OSError."""
        found = cls()
        for event in landmarks(journal).events():
            kind = event["kind"]
            if kind == EXPORT:
                found.exported = str(event["details"].get("model", ""))
            if kind in ("start", "outcome"):
                found.last = event
            if kind == "start":
                found.start = event
            elif kind == "check-in":
                found.has_workers = True
            if kind in ("start", "attempt", "stop"):
                found.stop = str(event["details"].get("why", ""))
            if kind in ("start", "step", "failure"):
                found.failure = event if kind == "failure" else None
        return found

    @property
    def resume(self) -> str:
        """The command that starts the head again; "" if the last start does not tell it."""
        return str(self.start["details"].get("resume", "")) if self.start else ""

    @property
    def needs_workers(self) -> bool:
        """Whether that command starts the head alone, and the run has had workers."""
        starts_head = self.start and self.start["details"].get("resumes_head_alone") is True
        return self.has_workers and bool(starts_head)


def read(run: RunFiles) -> Ended | None:
    """The end of the run; None if it has not ended, or if a head has started it again.

    Raises OSError if the run directory cannot be read.
    """
    events = _Events.read(run.journal)
    last, failure = events.last, events.failure
    if last is None or last["kind"] == "start":
        return None
    try:
        result = stored_json.json_object(run.result) or {}
    except FileNotFoundError:
        result = {}
    attempts = run_attempts.read(run.journal, Progress.read(run.progress), trains=False)
    told = steps if stored_json.is_count(steps := result.get("steps")) else 0
    outcome = str(last["details"]["outcome"])
    of = str(failure["details"]["failure"]) if failure else None
    service = str(failure["details"].get("service", "")) if failure else ""
    code = last["details"].get("exit_code")
    to_do = remedy(outcome, code if isinstance(code, int) else None, of, service)
    if entry := _job_that_is_over(run):
        to_do = to_do.replace(RESUMES, OVER_STAGE if entry.get("stage") else OVER)
    elif RESUMES in to_do:
        to_do = to_do.replace(RESUMES, _resumes(run, needs_workers=events.needs_workers))
    model = _model(run, events.exported) if outcome == "finished" else None
    only = None if model is None or trained.has_model(model) else trained.newest_checkpoint(model)
    ended = Ended(
        outcome,
        last["sentence"],
        result,
        to_do=to_do,
        resume=events.resume if to_do else "",
        has_head=not standalone.is_by_trainer(events.start),
        model=None if only else model,
        best=_best(run),
        checkpoint=only,
        at=str(last["at"]),
        steps_kept=attempts.progress.step if attempts.progress else told,
        steps_lost=attempts.steps_lost,
        knows_steps=attempts.tells_steps,
    )
    if outcome != "failed":
        return replace(ended, cause=events.stop if outcome == "stopped" else "")
    logs = [f"attempt-{failure['attempt']}.log"] if failure else []
    there = (run.logs / name for name in (*logs, "head.log"))
    ended = replace(ended, log=next((log for log in there if log.is_file()), None))
    if not failure:
        return ended
    details = failure["details"]
    cause = cause_of(details, str(failure["sentence"]))
    return replace(ended, cause=cause, place=str(details.get("place", "")))


def _resumes(run: RunFiles, *, needs_workers: bool) -> str:
    """Return what a start goes on with. `needs_workers`: the command is the head's alone.

    Raises OSError.
    """
    step = newest_checkpoint(run.checkpoints, checksums=False)
    told = RESUMES if step is None else RESUMES_FROM.format(step=step)
    return f"{told} {WORKERS_TOO}" if needs_workers else told


def _model(run: RunFiles, exported: str) -> Path | None:
    """Return where the trained model is; the run directory may have moved since."""
    places = [Path(exported)] if exported else []
    return next((path for path in (*places, run.exported) if path.is_dir()), None)


def _best(run: RunFiles) -> Path | None:
    """Return the directory of the best policy. Raises OSError."""
    step = next(iter(steps_on_disk(run.best)), None)
    return None if step is None else checkpoint_path(run.best, step)


def _job_that_is_over(run: RunFiles) -> Mapping[str, Any]:
    """Return the entry of a submitted job that no head goes on with; else {}. Raises OSError."""
    try:
        entry = stored_json.json_object(run.root / JOB_ENTRY) or {}
    except FileNotFoundError:
        return {}
    return entry if entry.get("ended") is not None else {}
