"""The runs below a directory, each as a row: name, model, state, steps, best value, times.

Nothing is written, and no link is followed: a run directory may come from somebody else.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from contract import lease
from contract.files import stored_json
from contract.files.plain_files import NotPlainError, open_plain
from contract.journal import newest_finished
from contract.journal_file.index import landmarks
from contract.metrics.charts import title_of
from contract.progress import Progress
from contract.run_dir import JOB_ENTRY, RunFiles, name_of
from entrypoint.run import errors, lost_head, run_attempts, run_facts
from entrypoint.run.attempt_ends import HEAD_LOST, TRAINER_LOST
from entrypoint.run.curves import Curves
from entrypoint.run.flight_record import read_run, run_end, standalone
from entrypoint.run.flight_record.record import RUNNING
from entrypoint.run.lease import SILENCE_SECONDS

DEEPEST = 4
"""Folders between the directory and a run in it: `DIR/demo-1/run/jobs/job-1` has four."""
MOST_ENTRIES = 50_000
"""Entries of directories that are looked at."""
READ_SECONDS = 0.5
"""About the time that one answer may take to read: a reader asks again for the rest."""
UNREADABLE = "unreadable"
"""State of a run that this user cannot read, or whose files are not plain files."""

TO_RESUME = ("failed", "stopped", HEAD_LOST, TRAINER_LOST)
"""States of a run that goes on if its head is started again."""
ONLY_JOBS = "jobs"
"""State of a cluster that runs nothing but jobs, which have rows of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    id: str
    """The run's path below the directory, or a job's id."""
    name: str
    model: str = ""
    recipe: str = ""
    state: str
    """finished, failed, stopped, running, head_lost, trainer_lost, queued or unreadable."""
    sentence: str = ""
    steps: int | None = None
    total_steps: int | None = None
    metric: str = ""
    """The main metric of the run."""
    metric_title: str = ""
    """Its name for people."""
    best: float | None = None
    """Its best value, that of the model before training included."""
    best_step: int | None = None
    """The step of the best value; 0: the model before training."""
    began: str = ""
    ended: str = ""
    """When it ended, or told its newest step."""
    path: str = ""
    """Its run directory."""
    resume: str = ""
    """The command that starts its head again; "" if it is not known, or nothing is to be done."""


def find(root: Path) -> dict[str, RunFiles]:
    """Return the runs below a directory by their paths there; a submitted job is a run, too.

    Raises OSError if the directory itself cannot be read.
    """
    os.scandir(root).close()
    return {path: RunFiles(root / path) for path in _found(root)}


def _found(root: Path) -> Iterator[str]:
    own = RunFiles(root)
    waiting, left = [(own.jobs, 1) if own.journal.exists() else (root, 0)], MOST_ENTRIES
    while waiting and left > 0:
        directory, depth = waiting.pop()
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
                    continue
                run = RunFiles(Path(entry.path))
                if os.path.lexists(run.journal):
                    yield str(run.root.relative_to(root))
                    waiting += [(run.jobs, depth + 2)] if depth + 2 <= DEEPEST else []
                elif depth + 1 < DEEPEST:
                    waiting.append((run.root, depth + 1))


def check(run: RunFiles) -> None:
    """Raises NotPlainError if a file that is shown of a run may be one from elsewhere."""
    plain = (run.journal, run.journal_index, run.metrics, run.samples, run.progress)
    for path in (*plain, run.run, run.result, run.root / JOB_ENTRY):
        with suppress(FileNotFoundError):
            open_plain(path).close()
    for directory in (run.logs, run.leases):
        if directory.is_symlink():
            raise NotPlainError(
                errno.EPERM, "is a link, and may lead out of the run", str(directory)
            )


def state_of(run: RunFiles) -> tuple[str, str]:
    """Return the state of a run that may be over, and its sentence. Raises OSError."""
    if end := run_end.read(run):
        return end.outcome, end.sentence
    entry = {}
    with suppress(FileNotFoundError):
        entry = stored_json.json_object(run.root / JOB_ENTRY) or {}
    if not run.journal.exists():
        return str(entry.get("state", "")), str(entry.get("sentence", ""))
    if not entry and (own := standalone.state_of(run)):
        return own
    cluster = lost_head.cluster_of(run)
    silent = lease.silence(cluster.leases)
    if silent is None or silent < SILENCE_SECONDS:
        return RUNNING, ""
    follows = lost_head.what_follows(lost_head.failover(cluster), silent)
    return HEAD_LOST, f"the head is lost: {follows}"


class RunList:
    """The rows of runs, read again when their files change. Any thread may call `rows`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[object, RunRow]] = {}
        """Id → how its files looked, and its row."""
        self._reading: dict[str, Curves] = {}
        """Of runs with so many metrics that one answer has not read all."""

    def rows(self, runs: Mapping[str, RunFiles]) -> dict[str, Any]:
        """Return the rows that are known, and whether there are `more`. The newest come first."""
        with self._lock:
            looks = {name: _look(run) for name, run in runs.items()}
            until = time.monotonic() + READ_SECONDS
            newest = sorted(runs, key=lambda name: looks[name][0], reverse=True)
            self._rows = {name: row for name, row in self._rows.items() if name in runs}
            more = False
            for name in newest:
                before, row = self._rows.get(name, (None, None))
                if row is not None and before == looks[name] and row.state != RUNNING:
                    continue
                if time.monotonic() > until:
                    more = True
                    break
                more = self._read(name, runs[name], looks[name]) or more
            known = [self._rows[name][1] for name in newest if name in self._rows]
            rows = [asdict(row) for row in known if row.state != ONLY_JOBS]
            return {"runs": rows, "count": len(runs) - len(known) + len(rows), "more": more}

    def _read(self, name: str, run: RunFiles, look: object) -> bool:
        """Read one run; return whether it has more metrics to read."""
        try:
            check(run)
            row = _row(name, run)
            curves = self._reading.setdefault(name, Curves(run.metrics))
            more = bool(curves.rows()["more"])
            if found := curves.best() or (None if more else read_run.told(run).best):
                row = replace(
                    row,
                    metric=found.metric,
                    metric_title=title_of(found.metric),
                    best=found.value,
                    best_step=found.step,
                )
        except OSError as error:
            told = errors.describe(error)
            row = RunRow(id=name, name=name_of(run.root), state=UNREADABLE, sentence=told)
            more = False
        if not more:
            self._reading.pop(name, None)
        self._rows[name] = (None if more else look, row)
        return more


def _look(run: RunFiles) -> tuple[float, ...]:
    """Return how the files of a run look: its newest change first. 0 for a file that is absent."""
    own = RunFiles(Path())
    found = []
    for path in (own.journal, own.metrics, own.progress, own.run, JOB_ENTRY):
        try:
            is_now = os.lstat(f"{run.root}/{path}")  # of 1,000 runs: pathlib is slow
            found += [is_now.st_mtime, is_now.st_size]
        except OSError:
            found += [0.0, 0.0]
    return (max(found[::2]), *found)


def _row(name: str, run: RunFiles) -> RunRow:
    """Return the row of a run without its best value. Raises OSError."""
    facts = run_facts.read(run)
    progress = run_attempts.read(run.journal, Progress.read(run.progress), trains=False).progress
    events = list(landmarks(run.journal).events())
    state, sentence = state_of(run)
    if run.jobs.is_dir() and not any(event["kind"] == "attempt" for event in events):
        state = ONLY_JOBS
    is_over = state not in (RUNNING, HEAD_LOST, TRAINER_LOST) and events
    newest = events[-1]["at"] if events else ""
    starts = [event["details"] for event in events if event["kind"] == "start"]
    is_to_resume = state in TO_RESUME and starts and not (run.root / JOB_ENTRY).exists()
    return RunRow(
        id=name,
        name=facts["name"],
        model=facts.get("model", ""),
        recipe=facts.get("recipe", ""),
        state=state,
        sentence=sentence,
        steps=progress.step if progress else newest_finished(run.journal),
        total_steps=progress.total_steps or None if progress else None,
        began=facts.get("created") or (events[0]["at"] if events else ""),
        ended=newest if is_over or progress is None else max(newest, progress.at),
        path=str(run.root),
        resume=str(starts[-1].get("resume", "")) if is_to_resume else "",
    )
