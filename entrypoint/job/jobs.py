"""The jobs of a queue, and their entries in the run directory: `RUN/jobs/ID/job.json`.

An entry says how its job has ended, and nothing of that before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from contract.files.os_errors import with_path
from contract.run_dir import JOB_ENTRY, write_atomically

log = logging.getLogger(__name__)


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def verb(self) -> str:
        """What the job has done then, behind "has"."""
        return "been stopped" if self is JobState.STOPPED else str(self)


LOST = (JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    words: tuple[str, ...]
    """Flags of the builtin trainer, or a program with its arguments."""
    runtime_env: Mapping[str, Any]
    submitted: str
    state: JobState = JobState.QUEUED
    exit_code: int | None = None
    sentence: str = ""
    """How it ended."""
    ended: str | None = None
    key: str = ""
    """The client's own name of the submission, so that a retried submission is one job."""
    stage: str = ""
    """Its name in a pipeline."""
    name: str = ""
    """The run's name, as the user gave it."""
    after: str = ""
    """The id of an earlier job: this one begins only if that one has finished."""

    @property
    def over(self) -> bool:
        return self.state not in (JobState.QUEUED, JobState.RUNNING)

    @property
    def shown(self) -> str:
        """The id, with the stage's name if there is one."""
        return f"{self.id} ({self.stage})" if self.stage else self.id


def newest_with(jobs: Iterable[Job], key: str) -> Job | None:
    """Return the newest job with the key."""
    same = [job for job in jobs if key and job.key == key]
    return same[-1] if same else None


def newest_named(jobs: Iterable[Job], name: str) -> Job | None:
    """Return the newest job that its user gave this name, or that is this stage of a pipeline."""
    same = _all_named(jobs, name)
    return same[-1] if same else None


def same_name(jobs: Iterable[Job], job: Job) -> list[str]:
    """Return a note if older jobs have this job's name, too; else nothing."""
    name = job.name or job.stage
    older = [one.id for one in _all_named(jobs, name) if number(one.id) < number(job.id)]
    if not older:
        return []
    have = "has" if len(older) == 1 else "have"
    return [
        f"{', '.join(older)} {have} the name {name}, too: the name means the newest job, and an id "
        "means the others"
    ]


def _all_named(jobs: Iterable[Job], name: str) -> list[Job]:
    return [job for job in jobs if name and name in (job.name, job.stage)]


def number(job: str) -> int:
    """Return the number in a job's id; 0 for any other name."""
    number = job.removeprefix("job-")
    return int(number) if number.isdecimal() else 0


def store(job: Job, directory: Path) -> None:
    """Write the job's entry below the directory of all jobs. Raises OSError."""
    path = directory / job.id / JOB_ENTRY
    row = asdict(replace(job, state=job.state if job.over else JobState.QUEUED))
    path.parent.mkdir(parents=True, exist_ok=True)  # a user may have deleted it
    write_atomically(path, json.dumps(row, indent=1) + "\n", mode=0o600)


def stored(directory: Path) -> list[Job]:
    """Return the jobs in the run directory, oldest first; a damaged entry is left out."""
    jobs = []
    for path in directory.glob(f"job-*/{JOB_ENTRY}"):
        with with_path(path):
            content = path.read_bytes()
        try:
            job = _parsed(content)
            if job.id != path.parent.name:
                raise ValueError("an entry of another job")
            jobs.append((number(job.id), job))
        except ValueError:
            log.warning("%s is damaged: the job is left out", path)
    return [job for _, job in sorted(jobs, key=lambda pair: pair[0])]


def _parsed(content: bytes) -> Job:
    """Return the job of an entry. Raises ValueError if a field is missing or of another type."""
    from pydantic import TypeAdapter  # 0.2 s, and most heads have no entries

    job = TypeAdapter(Job).validate_json(content, strict=True)
    if not job.words:
        raise ValueError("a job without words")
    TypeAdapter(dict[str, str]).validate_python(job.runtime_env.get("env_vars", {}))
    return job
