"""The jobs that were submitted to this cluster, one after another, each with a run directory.

A job that is not over when the head ends goes on with the next head. A stage that is submitted
again keeps its job and its place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contract import lease
from contract.exit_codes import ExitCode
from contract.journal import timestamp
from contract.redaction import redact, redact_all
from contract.run_dir import RunFiles
from entrypoint.cluster.job_queue_protocol import SubmissionError
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.config import pipeline, wandb_key
from entrypoint.config import runtime_env as environments
from entrypoint.config.pipeline import Stage
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.settings import Settings
from entrypoint.job import jobs as entries
from entrypoint.job.jobs import LOST, Job, JobState
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.recognise import settings_for, words_to_run
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.run.journal import Journal

NOT_BEGUN = "it did not begin: "
SUBMITTED_AGAIN = "submitted-again"
"""Event of a run whose outcome counts no more: the job is in the queue again."""
KEY_IN_WORDS = (
    "the job's words have a W&B key, which `ps` would show: set WANDB_API_KEY on the head, and "
    "give --use_wandb true"
)


class JobQueue:
    """A `JobQueueProtocol`. The head's main thread calls `begin_next` and `end`."""

    def __init__(
        self, settings: Settings, journal: Journal, inbox: Inbox, registry: NodeRegistry
    ) -> None:
        """Reads the queue that earlier heads left in the run directory. Raises OSError."""
        self._settings = settings
        self._journal = journal
        self._inbox = inbox
        self._registry = registry
        self._lock = threading.Lock()
        self._stopping: set[str] = set()
        directory = RunFiles(settings.run_dir).jobs
        self._jobs = {job.id: job for job in entries.stored(directory)}
        names = (path.name for path in directory.glob("job-*"))
        self._newest = max(map(entries.number, names), default=0)

    def submit(
        self, words: Sequence[str], runtime_env: Mapping[str, Any], key: str = "", name: str = ""
    ) -> dict[str, Any]:
        words = words_to_run(words, runtime_env, self._settings.recipe)
        job = Job(
            f"job-{self._newest + 1}", words, dict(runtime_env), timestamp(), key=key, name=name
        )
        # Without the lock, which the main thread takes: the job's files may be on stalled storage.
        faults = self._faults(job) or self._unplaceable(job)
        with self._lock:
            known = (job for job in self._jobs.values() if key and job.key == key)
            if (submitted := next(known, None)) is not None:
                return self._row(submitted)
            if faults:
                raise SubmissionError(faults)
            job = replace(job, id=f"job-{self._newest + 1}")
            self._take(job)
        return self._row(job)

    def submit_stages(self, stages: Sequence[Stage]) -> list[dict[str, Any]]:
        if faults := list(pipeline.faults(stages)):
            raise SubmissionError(faults)
        # Without the lock, as in `submit`. The ids may be others below, which no fault depends on.
        jobs = self._jobs_of(stages)
        for place, job in enumerate(jobs):
            if self._is_to_take(job):
                found = self._faults_now(job, jobs[:place])
                found += self._without_model(stages[place], jobs[:place])
                found = found or self._unplaceable(job)
                faults += [f"stage {job.stage}: {fault}" for fault in found]
        if faults:
            raise SubmissionError(faults)
        with self._lock:
            jobs = self._jobs_of(stages)
            for job in jobs:
                if self._is_to_take(job):
                    self._take(job)
        return [self._row(job) for job in jobs]

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(job) for job in list(self._jobs.values())]

    def waiting(self) -> list[str]:
        """Return the ids of the jobs that are not over, oldest first."""
        return [job.id for job in list(self._jobs.values()) if not job.over]

    def row(self, job: str) -> dict[str, Any] | None:
        found = self._jobs.get(job) or entries.newest_named(list(self._jobs.values()), job)
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
        """Return the oldest job that is not over, which runs now; None if there is none.

        Ends a job that comes after one that has not finished, or whose directory is gone. Raises
        OSError and SupersededError.
        """
        while (job := self._oldest()) is not None:
            gone = self._gone(job)  # without the lock, as in `submit`
            faults = [] if gone else self._faults_of_its_turn(job)
            with self._lock:
                if self._jobs[job.id].over:  # it was stopped meanwhile
                    continue
                if lost := self._never_begins(job):
                    self._end(job, JobState.STOPPED, ExitCode.STOPPED, lost)
                elif gone:
                    self._end(job, JobState.FAILED, ExitCode.RUN_DIR, gone)
                elif faults:
                    sentence = NOT_BEGUN + "; ".join(faults)
                    self._end(job, JobState.FAILED, ExitCode.USAGE, sentence)
                else:
                    verb = "continues" if self._journal_of(job).attempts() else "begins"
                    self._journal.record("job-started", f"{job.id} {verb}", job=job.id)
                    self._jobs[job.id] = replace(job, state=JobState.RUNNING)
                    return self._jobs[job.id]
        return None

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
            settings_for(self._settings, job.words, job.runtime_env),
            runtime_env=dict(job.runtime_env),
            name=job.name or job.stage,
            run_dir=RunFiles(self._settings.run_dir).jobs / job.id,
        )

    def _is_to_take(self, job: Job) -> bool:
        """Whether the job is new, or was lost and is to go on."""
        known = self._jobs.get(job.id)
        return known is None or (known.over and not job.over)

    def _take(self, job: Job) -> None:
        """Put a job into the queue, a new or a lost one. Raises OSError and SupersededError."""
        again = job.id in self._jobs
        self._newest = max(self._newest, entries.number(job.id))
        self._stopping.discard(job.id)
        run = RunFiles(self.settings_of(job).run_dir)
        run.logs.mkdir(parents=True, exist_ok=True)
        if again and run.journal.exists():
            sentence = f"{job.shown} is submitted again, and goes on from its newest checkpoint"
            self._journal_of(job).record(SUBMITTED_AGAIN, sentence)
        self._store(job)
        sentence = f"{job.shown} is submitted{' again' if again else ''}"
        self._journal.record("job-submitted", sentence, job=job.id, words=job.words)

    def _journal_of(self, job: Job) -> Journal:
        """Return the journal of the job's own run."""
        settings = self.settings_of(job)
        path = RunFiles(settings.run_dir).journal
        return Journal(path, settings.node_name, self._journal.claim, settings.secrets)

    def _jobs_of(self, stages: Sequence[Stage]) -> list[Job]:
        """Return a job for each stage: the one that it has, or else a new one.

        A job that has failed or was stopped is to go on in its run directory. Behind a stage with
        a new job, all jobs are new.
        """
        known, jobs, submitted = dict(self._jobs), list[Job](), timestamp()
        runs: dict[str, Path] = {}
        newest = self._newest
        for stage in stages:
            is_new = bool(jobs) and jobs[-1].id not in known
            job = None if is_new else entries.newest_with(known.values(), stage.key)
            if job is not None and job.state in LOST:
                # its directory, if it has one, as it is now: the fault may have been in there
                again = replace(job, runtime_env=dict(stage.runtime_env), submitted=submitted)
                job = replace(again, state=JobState.QUEUED, exit_code=None, sentence="", ended=None)
            if job is None:
                newest += 1
                words = pipeline.filled(stage.words, runs)
                job = Job(
                    id=f"job-{newest}",
                    words=words,
                    runtime_env=dict(stage.runtime_env),
                    submitted=submitted,
                    key=stage.key,
                    stage=stage.name,
                    after=jobs[-1].id if jobs else "",
                )
            jobs.append(job)
            runs[stage.name] = self.settings_of(job).run_dir
        return jobs

    def _oldest(self) -> Job | None:
        with self._lock:
            return next((job for job in self._jobs.values() if not job.over), None)

    def _never_begins(self, job: Job) -> str:
        """Return why a job cannot begin after the job that it depends on; "" if it can."""
        if not job.after:
            return ""
        before = self._jobs.get(job.after)
        if before is None:
            return f"{NOT_BEGUN}{job.after}, which comes before, is not in the queue"
        if before.state is JobState.FINISHED:
            return ""
        if before.state is JobState.STOPPED and (lost := self._never_begins(before)):
            return lost  # the first of them that was lost
        return f"{NOT_BEGUN}{before.shown}, which comes before, has {before.state.verb}"

    def _gone(self, job: Job) -> str:
        """Return why a job cannot begin if somebody has deleted its run directory; else "".

        Raises OSError and SupersededError if the cluster's own run directory is not there either.
        """
        run_dir = self.settings_of(job).run_dir
        if run_dir.is_dir():
            return ""
        lease.check(self._journal.claim)
        return f"{NOT_BEGUN}{run_dir} was deleted while it was in the queue: submit it again"

    def _faults_of_its_turn(self, job: Job) -> list[str]:
        """Return the faults of a job that comes after others, when it is about to begin.

        What it takes from their run directories was not there when it was submitted.
        """
        if not job.after or self._never_begins(job):
            return []
        if RunFiles(self.settings_of(job).run_dir).journal.exists():
            return []  # it began under an earlier head: its files may be away for a while only
        faults = self._faults(job)
        return [*self._models_not_left(faults), *faults]

    def _models_not_left(self, faults: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for each stage whose model the faults name, and which left none."""
        for job in list(self._jobs.values()):
            model = RunFiles(RunFiles(self._settings.run_dir).jobs / job.id).exported
            if (
                job.stage
                and any(recipes.awaits(fault, [model]) for fault in faults)
                and not model.exists()
            ):
                yield (
                    f"{job.shown} left no model in {model}. The builtin trainer, sft, rm, dpo, TRL "
                    "and OpenRLHF leave one without --save_path and --output_dir, verl with "
                    "hf_model. Have any other program save its model to $ROLLCALL_RUN_DIR/hf, or "
                    f"name the model's own directory, as in {{stage.{job.stage}.run}}/model"
                )

    def _faults_now(self, job: Job, before: Sequence[Job]) -> list[str]:
        """Return the faults of a stage, without what stages before it have still to write."""
        runs = [self.settings_of(one).run_dir for one in before if not one.over]
        return [fault for fault in self._faults(job) if not recipes.awaits(fault, runs)]

    def _without_model(self, stage: Stage, before: Sequence[Job]) -> list[str]:
        """Return a sentence for each model that the stage names, and its job will not leave."""
        found = []
        for name in pipeline.models_named(stage.words):
            settings = self.settings_of(next(job for job in before if job.stage == name))
            recipe = recipes.load(settings.recipe)
            why = recipe.without_model(settings)
            if why and not RunFiles(settings.run_dir).exported.exists():
                found.append(f"{{stage.{name}.model}} will not be there: in {name}, {why}")
        return found

    def _end(self, job: Job, state: JobState, exit_code: ExitCode, sentence: str) -> None:
        sentence = redact(sentence, self.settings_of(job).secrets)
        over = replace(
            job, state=state, exit_code=int(exit_code), sentence=sentence, ended=timestamp()
        )
        self._store(over)
        told = {"job": job.id, "outcome": str(state), "exit_code": int(exit_code)}
        why = "" if state is JobState.FINISHED else f": {sentence}"
        self._journal.record("job-ended", f"{job.shown} has {state.verb}{why}", **told)

    def _faults(self, job: Job) -> list[str]:
        faults = list(environments.faults(job.runtime_env))
        settings = self.settings_of(job)
        if RECIPES[settings.recipe].own_trainer and job.runtime_env:
            faults.append(
                f"the {settings.recipe} trainer takes no runtime environment: give a program, such "
                "as python train.py"
            )
        if RECIPES[settings.recipe].wandb_flag and wandb_key.taken_from(job.words)[1]:
            faults.append(KEY_IN_WORDS)
        return faults or list(recipes.load(settings.recipe).faults(settings))

    def _unplaceable(self, job: Job) -> list[str]:
        """Return why the nodes of the roll cannot hold the job; [] while workers are missing."""
        nodes = self._registry.offers()
        refusal = recipes.refusal(self.settings_of(job), nodes) if nodes else ""
        return [refusal] if refusal else []

    def _store(self, job: Job) -> None:
        lease.check(self._journal.claim)
        entries.store(job, RunFiles(self._settings.run_dir).jobs)
        self._jobs[job.id] = job

    def _row(self, job: Job) -> dict[str, Any]:
        """Return what the control port says of a job: no variables, secrets masked."""
        settings = self.settings_of(job)
        row: dict[str, Any] = redact_all(asdict(job), settings.secrets)
        row["recipe"] = settings.recipe
        row["run_dir"] = str(settings.run_dir)
        row["runtime_env"] = sorted(job.runtime_env)
        namesakes = entries.same_name(list(self._jobs.values()), job)
        row["notes"] = [*namesakes, *recipes.untold(settings)]
        return row
