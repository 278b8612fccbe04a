"""What happens after a head is lost: a worker takes its place, or somebody starts it again.

Each head writes to its journal how long it may be away, or why no worker may take its place.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contract.durations import counted, duration
from contract.files import stored_json
from contract.journal_file.index import landmarks
from contract.progress import Progress
from contract.run_dir import JOB_ENTRY, RunFiles
from entrypoint.run import candidacy
from entrypoint.run.candidacy import Candidates
from entrypoint.run.lease import SILENCE_SECONDS, look

TAKES_SECONDS = 30.0
"""How late a worker may notice the silence, and take the place."""
SIGN_SECONDS = 60.0
"""How late a worker may say for the first time that it waits."""
MOST_NAMED = 10
"""Processes of which a sentence has the numbers: all, or none."""
MOST_LOGS = 3
"""Files that a sentence names one by one."""
NO_WORKER = "no worker was there that knows the job"
AGAIN = "start it again with the same run directory, and the run continues"
"""What a person does if nothing takes the place of what was lost."""
TO_STOP = ". To stop the run: rollcall stop once a worker leads, or end the workers (SIGTERM)"


@dataclass(frozen=True, slots=True)
class Failover:
    """What the newest head has said of its own loss."""

    after: float | None
    """Seconds of silence after which a worker takes its place; None if none may."""
    off: str = ""
    """Why none may; "" if that is not known."""
    workers: tuple[str, ...] = field(default=(), compare=False)
    """The names of those that were there."""
    said: Candidates | None = field(default=None, compare=False)
    """What workers have said since; None if nobody has looked."""

    def awaits(self, silence: float) -> bool:
        """Return whether a worker that may live is still to take the place."""
        if self.after is None or silence >= self.after + TAKES_SECONDS:
            return False
        if self.said is None or self.said.waiting:
            return True
        return not self.said.refused and silence < SIGN_SECONDS

    @classmethod
    def of_head(cls, seconds: float, off: str) -> Failover:
        """`seconds`: ROLLCALL_HEAD_FAILOVER; `off`: why no worker may take the place, or ""."""
        return cls(None, off) if off else cls(max(seconds, SILENCE_SECONDS))

    def as_dict(self) -> dict[str, Any]:
        return {"after": self.after, "off": self.off}


def cluster_of(run: RunFiles) -> RunFiles:
    """Return the run directory that has the head's lease: of a submitted job, its cluster's."""
    is_job = (run.root / JOB_ENTRY).is_file()
    return RunFiles(run.root.resolve().parents[1]) if is_job else run


def failover(run: RunFiles) -> Failover:
    """Return what the newest head of a cluster's run directory has said.

    No worker may take its place if the journal tells of none that could.
    """
    row, has_worker = dict[str, Any](), False
    names: dict[str, None] = {}
    with suppress(OSError):
        for event in landmarks(run.journal).events(["start", "check-in", "roll", "outcome"]):
            about = event["details"]
            match event["kind"]:
                case "start":
                    row = about.get("failover") or {}
                case "check-in":  # the worker keeps what it is told then, until the run ends
                    has_worker = True
                    names[str(about.get("node", ""))] = None
                case "roll":  # with ROLLCALL_MIN_WORKERS=0, it may go on without any
                    has_worker = bool(about.get("present"))
                case _:
                    has_worker = False
    after, off = row.get("after"), row.get("off")
    seconds = float(after) if isinstance(after, int | float) else None
    if seconds is not None and not has_worker:
        return Failover(None, NO_WORKER)
    known = Failover(seconds, off if isinstance(off, str) else "")
    said = Candidates()
    with suppress(OSError):
        said = candidacy.read(run.leases)
    return replace(known, workers=tuple(filter(None, names)), said=said)


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
    return told.awaits(silence)


def what_follows(told: Failover, silence: float) -> str:
    """Return what happens now, or what to do. `silence`: seconds since the head's last sign."""
    if told.after is None:
        return f"no worker takes its place, as {told.off}: {AGAIN}" if told.off else AGAIN
    if is_awaited(told, silence):
        left = round(told.after - silence)
        soon = f"in {duration(left)}" if left > 0 else "at any moment"
        then = "nobody has to act" if told.said is None or told.said.waiting else "if one lives"
        return f"a worker takes its place {soon} (ROLLCALL_HEAD_FAILOVER); {then}"
    limit = f"{duration(told.after)} (ROLLCALL_HEAD_FAILOVER)"
    if told.said and told.said.refused:
        why = "; ".join(f"{node} cannot: {why}" for node, why in told.said.refused[:MOST_LOGS])
        return f"no worker takes its place; {why}. To go on, {AGAIN}"
    if silence < told.after + TAKES_SECONDS:
        return f"no worker will take its place, as none waits to do so. To go on, {AGAIN}"
    why = f"either none is left, or the end of its log, {_logs(told.workers)}, says why not"
    return f"no worker has taken its place after {limit}; {why}. To go on, {AGAIN}"


def all_of(run: RunFiles, silence: float) -> str:
    """Return all that a person is told of a lost head. The last line is the command, if known."""
    told, again = failover(run), command(run)
    awaited = is_awaited(told, silence)
    label = "or start it now" if awaited else "to start it again"
    line = f"\n{label}: {again}" if again else ""
    more = f"{left_over(run, told, silence)}{finished_before(run)}{TO_STOP if awaited else ''}"
    with suppress(OSError):
        if (progress := Progress.read(run.progress)) and not progress.is_logged:
            more = f". The run has: {kept(progress)}{more}"
    return f"{what_follows(told, silence)}{more}{line}"


def kept(progress: Progress | None) -> str:
    """Return which steps no loss of one node takes away: the newest on disk and in memory."""
    saved, held = (progress.checkpoint, progress.in_memory) if progress else (None, None)
    told = "no checkpoint yet" if saved is None else f"checkpoint of step {saved}"
    is_newer = held is not None and held > (saved or 0)
    return f"{told}, step {held} in the memory of two nodes" if is_newer else told


def finished_before(run: RunFiles) -> str:
    """Return what the run had brought before a start that has told no end; "" if nothing."""
    with suppress(OSError):
        result = stored_json.json_object(run.result) or {}
        steps = result.get("steps")
        if result.get("outcome") == "finished" and stored_json.is_count(steps):
            return (
                f". Before this start, the run had finished with {counted(steps, 'step')}, as "
                f"{run.result} says"
            )
    return ""


def _logs(workers: Sequence[str]) -> str:
    """Return where the logs of these workers are; with a word for the name if they are many."""
    names = workers if 0 < len(workers) <= MOST_LOGS else ("NAME",)
    return " or ".join(f"RUN/logs/worker-{name.removeprefix('worker-')}.log" for name in names)


def left_over(run: RunFiles, told: Failover, silence: float) -> str:
    """Return what a lost head has left to run, and what to do; "" if nothing is known of any.

    A platform that ends a node's container ends all in it; a machine without one does not.
    """
    try:
        row = look(run.leases)[1]
    except OSError:
        return ""
    host, mark = str(row.get("host", "")), str(row.get("mark", ""))
    if not host or row.get("over"):
        return ""
    if host != socket.gethostname():
        if is_awaited(told, silence):
            return ""
        return f". What it had started may still run on {host}: the start of a node there ends it"
    if not mark or not (pids := marked(mark)):
        return ""
    which = "1 process of it still runs" if len(pids) == 1 else f"{len(pids)} of its processes run"
    hand = f". By hand: kill -9 {' '.join(map(str, pids))}" if len(pids) <= MOST_NAMED else ""
    ends = "A start here ends what is left first"
    if not is_awaited(told, silence):
        ends = f"rollcall stop {shlex.quote(str(run.root))} ends what is left, as a start here does"
    return f". {which} on this machine: memory and GPUs may be in use. {ends}{hand}"


def marked(mark: str) -> list[int]:
    """Return the PIDs of this machine's processes that have the mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it is another user's, or has ended
            if mark.encode() in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
    return sorted(found)


def to_do(again: str) -> str:
    """Return what a person does who starts the run again. `again`: the command, if it is known."""
    return f"{AGAIN}\nto start it again: {again}" if again else AGAIN
