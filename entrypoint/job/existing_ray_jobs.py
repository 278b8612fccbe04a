"""The job API of a Ray that this node did not start, whose head may be another machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from contract.files.log_copy import Copy
from entrypoint.config.settings import Settings
from entrypoint.job import distant_log
from entrypoint.job.ray_jobs import ENDED, JobClient, JobInfo
from entrypoint.job.recipes.base import JobCommand
from entrypoint.net import wait
from entrypoint.net.http import or_not_yet

log = logging.getLogger(__name__)

NO_FILES = Path("/nonexistent")
LATE_SECONDS = 30.0
"""Seconds past ROLLCALL_GRACE_SECONDS until a job that was stopped counts as one that stays."""


class ExistingRayJobs(JobClient):
    starts_here = False

    def __init__(self, dashboard: str, token: str, settings: Settings) -> None:
        super().__init__(dashboard, token, NO_FILES, settings.secrets)
        self._logs = distant_log.LogsApi(dashboard, token)
        self._settings = settings
        self.submitted: set[str] = set()
        """The submissions of this client that were not seen to end."""

    def submit(self, submission_id: str, command: JobCommand, stop: threading.Event) -> None:
        self.submitted.add(submission_id)  # first: the answer may be lost
        super().submit(submission_id, with_variables(command, self._settings), stop)

    def info(self, submission_id: str) -> JobInfo:
        info = super().info(submission_id)
        if info.ended:
            self.submitted.discard(submission_id)
        return info

    def output_of(
        self, submission_id: str, argv: Sequence[str], timeout: float, stop: threading.Event
    ) -> tuple[JobInfo, str]:
        """Run a short job to its end; return its end and all that it printed.

        Raises JobRefusedError, GaveUpError and InterruptedWaitError.
        """

        def ended() -> JobInfo:
            info = self.info(submission_id)
            if not info.ended:
                raise wait.NotYetError(f"the job is {info.status}")
            return info

        def output() -> str:
            with or_not_yet():
                answer = self._http.get(f"{submission_id}/logs").raise_for_status()
                return str(answer.json()["logs"])

        what = f"Ray's job {submission_id}"
        try:
            self.submit(submission_id, JobCommand(tuple(argv)), stop)
            info = wait.until(what, ended, timeout=timeout, stop=stop, longest_pause=0.3)
            return info, wait.until(f"the output of {what}", output, timeout=timeout, stop=stop)
        finally:
            if submission_id in self.submitted:
                self.stop(submission_id)

    def end_earlier(self, submissions: Iterable[str], stop: threading.Event) -> None:
        """End those of the submissions that still run, and wait until they have.

        A head that was killed leaves its job running on this Ray. Raises NotYetError, GaveUpError
        and InterruptedWaitError.
        """
        earlier = frozenset(submissions)
        for submission in self._running(earlier):
            log.info(
                "Ray still runs %s of an earlier head: it is asked to save and to end", submission
            )
            self.stop(submission)

        def ended() -> None:
            if running := self._running(earlier):
                raise wait.NotYetError(f"{' and '.join(running)} still runs")

        timeout = self._settings.grace_seconds + LATE_SECONDS
        wait.until("the end of an earlier head's job", ended, timeout=timeout, stop=stop)

    def end_own(self) -> None:
        """Ask Ray to end what this client has submitted and not seen to end."""
        for submission in sorted(self.submitted):
            self.stop(submission)

    def _running(self, submissions: frozenset[str]) -> list[str]:
        """Return those that Ray lists and has not seen to end. Raises NotYetError."""
        with or_not_yet():
            rows = self._http.get("").raise_for_status().json()
            running = (row["submission_id"] for row in rows if row["status"] not in ENDED)
            return [submission for submission in running if submission in submissions]

    def _follow_output(self, submission_id: str, copy: Copy, over: threading.Event) -> None:
        distant_log.follow(self._logs, submission_id, copy, over)


def with_variables(command: JobCommand, settings: Settings) -> JobCommand:
    """Return the command with the variables that a Ray which Rollcall starts has by itself."""
    given = command.runtime_env.get("env_vars", {})
    ours = {
        "ROLLCALL_RUN_DIR": str(settings.run_dir),
        # The time between SIGTERM and SIGKILL: Ray reads it from the job's own variables.
        "RAY_JOB_STOP_WAIT_TIME_S": str(int(settings.grace_seconds)),
        "PYTHONUNBUFFERED": "1",
    }
    return replace(command, runtime_env={**command.runtime_env, "env_vars": {**ours, **given}})
