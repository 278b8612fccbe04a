"""What a run directory says of a run that has ended: its outcome, and its result in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract import stored_json
from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint.run.flight_record.text import counted


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: str
    """finished, failed or stopped."""
    sentence: str
    result: Mapping[str, Any]
    """Of result.json; empty where that is not there."""

    def row(self) -> dict[str, Any]:
        """In the shape of the head's state, as far as it goes."""
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
    """None for a run that has not ended, or that a head was started for since.

    Raises OSError where the run directory cannot be read.
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
