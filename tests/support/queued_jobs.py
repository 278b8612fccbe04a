"""The queue of a head whose jobs no node runs, for the page."""

from __future__ import annotations

import json
from collections.abc import Mapping

from contract.exit_codes import ExitCode
from contract.journal import EventSource, append_event
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.server import HeadPhase
from entrypoint.config.read import read_settings
from entrypoint.job.job_queue import JobQueue
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal
from tests.support.control import Head
from tests.support.reported_runs import learns

STEPS = 60
OF_FIRST_ATTEMPT = EventSource(attempt=1, node="head")
ENDS: Mapping[str, tuple[ExitCode, str]] = {
    "finished": (ExitCode.FINISHED, "the job has finished"),
    "failed": (ExitCode.JOB_FAILED, "ValueError: expected hidden size 64"),
}


def empty_queue(head: Head) -> JobQueue:
    """Give the head a queue, and return it."""
    given = {"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_RUN_DIR": str(head.run.root)}
    journal, registry = Journal(head.run.journal, "head"), head.control._registry
    queue = JobQueue(read_settings(given), journal, Inbox(), registry)
    head.control.jobs.queue = queue
    return queue


def works_at_a_queue(head: Head, ends: Mapping[str, str]) -> dict[str, RunFiles]:
    """Submit jobs; return their runs. `ends`: name → finished, failed, running or queued.

    The jobs that have begun come first. The page shows the one that runs.
    """
    queue = empty_queue(head)
    runs: dict[str, RunFiles] = {}
    for name in ends:
        row = queue.submit(["true"], {}, name=name)
        runs[name] = RunFiles(head.run.jobs / row["id"])
    for place, (name, end) in enumerate(ends.items()):
        if end == "queued":
            break
        job = queue.begin_next()
        assert job is not None
        trains(runs[name], name, STEPS if end == "finished" else STEPS // 2, rate=1 - place / 10)
        if end == "running":
            head.control.jobs.shown = job.id
            head.control.phase = HeadPhase.TRAINING
            break
        code, sentence = ENDS[end]
        told = {"outcome": end, "exit_code": int(code)}
        append_event(runs[name].journal, "outcome", sentence, told, source=OF_FIRST_ATTEMPT)
        queue.end(job, end, code, sentence)
    return runs


def trains(run: RunFiles, name: str, steps: int, *, rate: float) -> None:
    """Write what a job leaves that has trained for so many steps. `rate`: factor of its curves."""
    run.run.write_text(json.dumps({"name": name, "recipe": "builtin", "model": "tiny-7b"}))
    rows = [
        {key: value * rate if "/" in key else value for key, value in row.items()}
        for row in learns(STEPS)
        if row["step"] <= steps
    ]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Progress(step=steps, total_steps=STEPS, attempt=1).write(run.progress)
    begins = f"{name} begins on the cluster of head"
    append_event(run.journal, "start", begins, source=EventSource(node="head"))
    append_event(run.journal, "attempt", "attempt 1 starts", source=OF_FIRST_ATTEMPT)
