"""The jobs that were submitted to this cluster, one after another, each with a run directory.

`RUN/jobs/ID/job.json` is a job's entry in the queue. It says how the job has ended, and nothing of
that before: a job that is not over when the head ends is the first of the next head.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from contract import lease
from contract.exit_codes import ExitCode
from contract.files.os_errors import with_path
from contract.journal import timestamp
from contract.redaction import redact, redact_all
from contract.run_dir import RunFiles, write_atomically
from entrypoint.cluster.job_desk import SubmissionError
from entrypoint.config import runtime_env as environments
from entrypoint.config import wandb_key
from entrypoint.config.parsers import OURS, STAGES, SUPERVISED
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.torchrun import starts_all_nodes
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)

ENTRY = "job.json"
KEY_IN_WORDS = (
    "the job's words have a W&B key, which `ps` would show: set WANDB_API_KEY on the head, and "
    "give --use_wandb true"
)


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


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

    @property
    def over(self) -> bool:
        return self.state not in (JobState.QUEUED, JobState.RUNNING)


def recipe_of(words: Sequence[str]) -> str:
    """Return the recipe: flags are the builtin trainer's, anything else is a program.

    The stages sft, rm and dpo, and the launchers torchrun, deepspeed, `accelerate launch` and
    `trl` start ranks on all nodes.
    """
    if words[0].startswith("-"):
        return "builtin"
    if words[0] == "trl":
        return "trl"
    if words[0] in STAGES:
        return SUPERVISED
    return "torchrun" if starts_all_nodes(words) else "command"


class JobQueue:
    """A `JobDesk`. The head's main thread calls `begin_next` and `end`."""

    def __init__(self, settings: Settings, journal: Journal, inbox: Inbox) -> None:
        """Reads the queue that earlier heads left in the run directory. Raises OSError."""
        self._settings = settings
        self._journal = journal
        self._inbox = inbox
        self._lock = threading.Lock()
        self._stopping: set[str] = set()
        directory = RunFiles(settings.run_dir).jobs
        self._jobs = {job.id: job for job in _stored(directory)}
        self._newest = max((_number(path.name) for path in directory.glob("job-*")), default=0)

    def submit(
        self, words: Sequence[str], runtime_env: Mapping[str, Any], key: str = ""
    ) -> dict[str, Any]:
        job = Job(f"job-{self._newest + 1}", tuple(words), dict(runtime_env), timestamp(), key=key)
        # Without the lock, which the main thread takes: the job's files may be on stalled storage.
        faults = self._faults(job)
        with self._lock:
            known = (job for job in self._jobs.values() if key and job.key == key)
            if (submitted := next(known, None)) is not None:
                return self._row(submitted)
            if faults:
                raise SubmissionError(faults)
            job = replace(job, id=f"job-{self._newest + 1}")
            self._newest += 1
            RunFiles(self.settings_of(job).run_dir).logs.mkdir(parents=True, exist_ok=True)
            self._store(job)
            self._journal.record("job-submitted", f"{job.id} is submitted", job=job.id, words=words)
        return self._row(job)

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(job) for job in list(self._jobs.values())]

    def row(self, job: str) -> dict[str, Any] | None:
        found = self._jobs.get(job)
        return None if found is None else self._row(found)

    def stop(self, job: str) -> None:
        with self._lock:
            found = self._jobs[job]
            if found.state is JobState.RUNNING:
                self._stopping.add(job)
                self._inbox.put(StopAsked(f"{job} was asked to stop", job))
            elif not found.over:
                self._end(found, JobState.STOPPED, ExitCode.STOPPED, "it was stopped in the queue")

    def begin_next(self) -> Job | None:
        """Return the oldest job that is not over, which runs now; None if there is none."""
        with self._lock:
            job = next((job for job in self._jobs.values() if not job.over), None)
            if job is None:
                return None
            self._journal.record("job-started", f"{job.id} begins", job=job.id)
            self._jobs[job.id] = replace(job, state=JobState.RUNNING)
            return self._jobs[job.id]

    def end(self, job: Job, outcome: str, exit_code: ExitCode, sentence: str) -> None:
        """Note for good how a job has ended. Raises OSError and SupersededError."""
        with self._lock:
            self._end(job, JobState(outcome), exit_code, sentence)

    def is_stopping(self, job: Job) -> bool:
        """Whether this very job, not the node alone, was asked to stop."""
        return job.id in self._stopping

    def settings_of(self, job: Job) -> Settings:
        """Return the head's settings, with the job and its run directory."""
        return replace(
            self._settings,
            job=job.words,
            recipe=recipe_of(job.words),
            runtime_env=dict(job.runtime_env),
            run_dir=RunFiles(self._settings.run_dir).jobs / job.id,
        )

    def _end(self, job: Job, state: JobState, exit_code: ExitCode, sentence: str) -> None:
        sentence = redact(sentence, self.settings_of(job).secrets)
        over = replace(
            job, state=state, exit_code=int(exit_code), sentence=sentence, ended=timestamp()
        )
        self._store(over)
        told = {"job": job.id, "outcome": str(state), "exit_code": int(exit_code)}
        self._journal.record("job-ended", f"{job.id} has {_verb(state)}: {sentence}", **told)

    def _faults(self, job: Job) -> list[str]:
        faults = list(environments.faults(job.runtime_env))
        settings = self.settings_of(job)
        if settings.recipe in OURS and job.runtime_env:
            faults.append(
                f"the {settings.recipe} trainer takes no runtime environment: give a program, such "
                "as python train.py"
            )
        if settings.recipe in OURS and wandb_key.taken_from(job.words)[1]:
            faults.append(KEY_IN_WORDS)
        return faults or list(recipes.load(settings.recipe).faults(settings))

    def _store(self, job: Job) -> None:
        lease.check(self._journal.claim)
        path = RunFiles(self._settings.run_dir).jobs / job.id / ENTRY
        row = asdict(replace(job, state=job.state if job.over else JobState.QUEUED))
        write_atomically(path, json.dumps(row, indent=1) + "\n", mode=0o600)
        self._jobs[job.id] = job

    def _row(self, job: Job) -> dict[str, Any]:
        """Return what the control port says of a job: no variables, secrets masked."""
        row: dict[str, Any] = redact_all(asdict(job), self.settings_of(job).secrets)
        row["recipe"] = recipe_of(job.words)
        row["run_dir"] = str(self.settings_of(job).run_dir)
        row["runtime_env"] = sorted(job.runtime_env)
        return row


def _verb(state: JobState) -> str:
    return "been stopped" if state is JobState.STOPPED else str(state)


def _number(job: str) -> int:
    """Return the number in a job's id; 0 for any other name."""
    number = job.removeprefix("job-")
    return int(number) if number.isdecimal() else 0


def _stored(directory: Path) -> list[Job]:
    """Return the jobs in the run directory, oldest first; a damaged entry is left out."""
    jobs = []
    for path in directory.glob(f"job-*/{ENTRY}"):
        with with_path(path):
            content = path.read_bytes()
        try:
            job = _parsed(content)
            if job.id != path.parent.name:
                raise ValueError("an entry of another job")
            jobs.append((_number(job.id), job))
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
