"""What happens after a head is lost: a worker takes its place, or somebody starts it again.

Each head writes to its journal how long it may be away, or why no worker may take its place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from contract.durations import duration
from contract.journal_file.index import landmarks
from contract.run_dir import RunFiles
from entrypoint.run.flight_record.run_end import ENTRY
from entrypoint.run.lease import SILENCE_SECONDS

TAKES_SECONDS = 30.0
"""How late a worker may notice the silence, and take the place."""
AGAIN = "start it again with the same run directory, and the run continues"
"""What a person does if nothing takes the place of what was lost."""


@dataclass(frozen=True, slots=True)
class Failover:
    """What the newest head has said of its own loss."""

    after: float | None
    """Seconds of silence after which a worker takes its place; None if none may."""
    off: str = ""
    """Why none may; "" if that is not known."""

    @classmethod
    def of_head(cls, seconds: float, off: str) -> Failover:
        """`seconds`: ROLLCALL_HEAD_FAILOVER; `off`: why no worker may take the place, or ""."""
        return cls(None, off) if off else cls(max(seconds, SILENCE_SECONDS))

    def as_dict(self) -> dict[str, Any]:
        return {"after": self.after, "off": self.off}


def cluster_of(run: RunFiles) -> RunFiles:
    """Return the run directory that has the head's lease: of a submitted job, its cluster's."""
    is_job = (run.root / ENTRY).is_file()
    return RunFiles(run.root.resolve().parents[1]) if is_job else run


def failover(run: RunFiles) -> Failover:
    """Return what the newest head of a cluster's run directory has said."""
    row = _newest_start(run).get("failover") or {}
    after, off = row.get("after"), row.get("off")
    seconds = float(after) if isinstance(after, int | float) else None
    return Failover(seconds, off if isinstance(off, str) else "")


def command(run: RunFiles) -> str:
    """Return the line for a shell that starts a cluster's newest head again; "" if unknown."""
    return str(_newest_start(run).get("resume") or "")


def _newest_start(run: RunFiles) -> dict[str, Any]:
    """Return the details of the newest start; empty if there is none, or nobody can read it."""
    details: dict[str, Any] = {}
    with suppress(OSError):
        for event in landmarks(run.journal).events(["start"]):
            details = event["details"]
    return details


def is_awaited(told: Failover, silence: float) -> bool:
    """Return whether a worker is still to take the place of a head that is silent."""
    return told.after is not None and silence < told.after + TAKES_SECONDS


def what_follows(told: Failover, silence: float, again: str = "") -> str:
    """Return what happens now, or what to do. `silence`: seconds since the head's last sign.

    `again`: the command that starts the head again, if the sentence is to name it.
    """
    if told.after is None:
        start = to_do(again)
        return f"no worker takes its place, as {told.off}: {start}" if told.off else start
    if not is_awaited(told, silence):
        limit = f"{duration(told.after)} (ROLLCALL_HEAD_FAILOVER)"
        return f"no worker has taken its place after {limit}: {to_do(again)}"
    left = round(told.after - silence)
    soon = f"in {duration(left)}" if left > 0 else "at any moment"
    return f"a worker takes its place {soon} (ROLLCALL_HEAD_FAILOVER); nobody has to act"


def to_do(again: str) -> str:
    """Return what a person does who starts the run again. `again`: the command, if it is known."""
    return f"{AGAIN}. The command: {again}" if again else AGAIN
