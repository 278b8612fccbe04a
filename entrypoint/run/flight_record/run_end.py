"""Reads how a run has ended, why, and what to do, from its run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract.exit_codes import RESUMES
from contract.files import stored_json
from contract.journal_file.index import landmarks
from contract.run_dir import RunFiles
from entrypoint.run.failure_classes import FailureClass, evidence_of
from entrypoint.run.flight_record.remedies import OVER, remedy
from entrypoint.run.flight_record.text import counted

ENTRY = "job.json"
"""A submitted job's entry in the queue, in its run directory."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: str
    """finished, failed or stopped."""
    sentence: str
    result: Mapping[str, Any]
    """The content of result.json; empty if there is no such file."""
    cause: str = ""
    """What has ended the last attempt; "" if the run has failed in no attempt."""
    place: str = ""
    """`path:line` of the cause in the user's own code; "" if it is not known."""
    to_do: str = ""
    """"" if there is nothing to do."""
    resume: str = ""
    """The command that starts the head again, for a shell; "" if it is not known."""
    log: Path | None = None
    """The log of the attempt that has failed last; the head's if the run has failed in none."""

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
            "log": self.log and str(self.log),
            "outcome": told,
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
            yield f"{counted(steps, 'step')}, {counted(attempts, 'attempt')}"

    def learned(self) -> Iterator[str]:
        """Yield the first and the last value of reward and held-out accuracy, if they are known."""
        of_reward = self._change("reward_first", "reward_last", ".3f")
        of_accuracy = self._change("eval_before", "eval_after", ".1%")
        told = {"reward": of_reward, "held-out accuracy": of_accuracy}
        if any(told.values()):
            yield ", ".join(f"{name} {values}" for name, values in told.items() if values)

    def _change(self, first: str, last: str, form: str) -> str:
        values = [self.result.get(name) for name in (first, last)]
        known = all(isinstance(value, int | float) for value in values)
        return " → ".join(format(value, form) for value in values) if known else ""

    def why(self) -> Iterator[str]:
        """Yield cause, place, remedy, command and log, each if it is known."""
        known = {"cause": self.cause, "place": self.place, "what to do": self.to_do}
        then = {"to start its head again": self.resume, "log": self.log}
        for name, what in (*known.items(), *then.items()):
            if what:
                yield f"{name}: {what}"


def read(run: RunFiles) -> Ended | None:
    """The end of the run; None if it has not ended, or if a head has started it again.

    Raises OSError if the run directory cannot be read.
    """
    last = failure = None
    resume = ""
    for event in landmarks(run.journal).events():
        if event["kind"] in ("start", "outcome"):
            last = event
        if event["kind"] == "start":
            resume = str(event["details"].get("resume", ""))
        if event["kind"] in ("start", "step"):
            failure = None
        elif event["kind"] == "failure":
            failure = event
    if last is None or last["kind"] == "start":
        return None
    try:
        result = stored_json.json_object(run.result) or {}
    except FileNotFoundError:
        result = {}
    outcome = str(last["details"]["outcome"])
    of = str(failure["details"]["failure"]) if failure else None
    code = last["details"].get("exit_code")
    to_do = remedy(outcome, code if isinstance(code, int) else None, of)
    if _is_job_that_is_over(run):
        to_do = to_do.replace(RESUMES, OVER)
    ended = Ended(outcome, last["sentence"], result, to_do=to_do, resume=resume if to_do else "")
    if outcome != "failed":
        return ended
    log = run.logs / (f"attempt-{failure['attempt']}.log" if failure else "head.log")
    there = log if log.is_file() else None
    ended = replace(ended, log=there)
    return replace(ended, cause=_cause(failure), place=_place(failure)) if failure else ended


def _cause(failure: Mapping[str, Any]) -> str:
    """Return the evidence of a failure, with its class if that says something."""
    details, sentence = failure["details"], str(failure["sentence"])
    says_all = details["failure"] in (FailureClass.UNKNOWN, FailureClass.CODE)
    return evidence_of(details, sentence) if says_all else sentence


def _place(failure: Mapping[str, Any]) -> str:
    return str(failure["details"].get("place", ""))


def _is_job_that_is_over(run: RunFiles) -> bool:
    """Whether this is a submitted job that no head goes on with. Raises OSError."""
    try:
        entry = stored_json.json_object(run.root / ENTRY) or {}
    except FileNotFoundError:
        return False
    return entry.get("ended") is not None
