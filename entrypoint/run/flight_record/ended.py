"""Reads the outcome and the result of an ended run from its run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract.files import stored_json
from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint.run.flight_record.text import counted


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: str
    """finished, failed or stopped."""
    sentence: str
    result: Mapping[str, Any]
    """The content of result.json; empty if there is no such file."""

    def row(self) -> dict[str, Any]:
        """The same shape as the head's state, with the known fields."""
        told = {"outcome": self.outcome, "exit_code": self.result.get("exit_code")}
        return {
            "phase": "ended",
            "sentence": self.sentence,
            "outcome": told,
            "result": dict(self.result),
        }

    def lines(self) -> Iterator[str]:
        code = self.result.get("exit_code")
        told = self.outcome if code is None else f"{self.outcome}, exit code {code}"
        yield f"the run has ended ({told}): {self.sentence}"
        steps, attempts = self.result.get("steps"), self.result.get("attempts")
        if stored_json.is_count(steps) and stored_json.is_count(attempts):
            yield f"{counted(steps, 'step')}, {counted(attempts, 'attempt')}"


def read(run: RunFiles) -> Ended | None:
    """The end of the run; None if it has not ended, or if a head has started it again.

    Raises OSError if the run directory cannot be read.
    """
    last = None
    for event in read_events(run.journal):
        if event["kind"] in ("start", "outcome"):
            last = event
    if last is None or last["kind"] == "start":
        return None
    try:
        result = stored_json.json_object(run.result) or {}
    except FileNotFoundError:
        result = {}
    return Ended(last["details"]["outcome"], last["sentence"], result)
