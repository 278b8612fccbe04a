"""Submits, follows and stops the job through Ray's REST API for jobs.

Ray's own client would import Ray into the entrypoint: one second and 100 MB for five requests.
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from contract.files.log_copy import Copy
from contract.run_dir import write_atomically
from entrypoint.job import job_log
from entrypoint.job.job_log import Telling
from entrypoint.job.recipes.base import JobCommand
from entrypoint.net import wait
from entrypoint.net.http import bearer, direct, or_not_yet, said_by

log = logging.getLogger(__name__)

ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
SUBMIT_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.5
NEVER = threading.Event()


@dataclass(frozen=True, slots=True)
class JobInfo:
    """Ray's status of a submission."""

    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str = ""
    error_type: str | None = None
    driver_exit_code: int | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class JobRefusedError(Exception):
    """Ray refuses the job; the sentence is Ray's."""


class JobClient:
    """Ray's jobs API at `dashboard` (http://host:port)."""

    starts_here = True
    """Whether drivers start on this machine, and so can read a file of this user."""

    def __init__(
        self, dashboard: str, token: str, ray_dir: Path, secrets: Iterable[str] = ()
    ) -> None:
        """`ray_dir`: Ray's temporary directory on this machine, which has the driver's output.

        `secrets`: masked in that output, as is the token.
        """
        self._dashboard = dashboard
        self._ray_dir = ray_dir
        self._secrets = frozenset({token, *secrets} - {""})
        self._http = httpx.Client(
            base_url=f"{dashboard}/api/jobs/",
            headers=bearer(token),
            timeout=30,
            transport=direct(),
        )

    def submit(
        self,
        submission_id: str,
        command: JobCommand,
        stop: threading.Event,
    ) -> None:
        """Start the command on the head: in this process's directory, or in its `working_dir`.

        Retried while Ray says that it is not ready ("No available agent to submit job").

        Raises JobRefusedError, GaveUpError, InterruptedWaitError.
        """
        body: dict[str, Any] = {"submission_id": submission_id}
        environment = dict(command.runtime_env)
        directory = None if "working_dir" in environment else Path.cwd()
        has_own = command.env and self.starts_here
        env = self._keep(submission_id, command.env) if has_own else command.env
        body["entrypoint"] = command_line(command.argv, env, directory)
        package = Path(environment.get("working_dir", ""))
        if package.is_absolute():
            environment["working_dir"] = f"gcs://{package.name}"
        if environment:
            body["runtime_env"] = environment

        def post() -> None:
            try:
                if package.is_absolute():
                    self._upload(package)
                answer = self._http.post("", json=body)
            except httpx.HTTPError as error:
                raise wait.NotYetError(said_by(error)) from None
            if answer.status_code >= 500 and "already exists" not in answer.text:
                raise wait.NotYetError(_last_line(answer.text))
            if answer.status_code >= 400 and "already exists" not in answer.text:
                raise JobRefusedError(_last_line(answer.text))

        what, timeout = "Ray to take the job", SUBMIT_TIMEOUT_SECONDS
        wait.until(what, post, timeout=timeout, stop=stop, longest_pause=0.3)

    def _keep(self, submission_id: str, env: Mapping[str, str]) -> Path:
        """Return a file of this user alone with the driver's variables, as a shell reads them.

        Ray logs a driver's command, and every user of the machine sees it while the driver starts.
        """
        path = self._ray_dir.parent / "variables" / submission_id
        lines = (f"export {name}={shlex.quote(value)}\n" for name, value in sorted(env.items()))
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, "".join(lines), mode=0o600)
        except OSError as error:
            raise JobRefusedError(f"{path} cannot be written: {error.strerror}") from None
        return path

    def _upload(self, package: Path) -> None:
        """Give Ray the archive, unless Ray has it. A new Ray has none.

        Raises httpx.HTTPError, and JobRefusedError if the archive is gone.
        """
        url = f"{self._dashboard}/api/packages/gcs/{package.name}"
        if self._http.get(url).is_success:
            return
        try:
            content = package.read_bytes()
        except OSError as error:
            raise JobRefusedError(f"working_dir {package}: {error.strerror}") from None
        self._http.put(url, content=content).raise_for_status()

    def info(self, submission_id: str) -> JobInfo:
        """Return the submission's status. Raises NotYetError if Ray does not answer."""
        with or_not_yet():
            row = self._http.get(submission_id).raise_for_status().json()
            return JobInfo(
                status=row["status"],
                message=row.get("message") or "",
                error_type=row.get("error_type"),
                driver_exit_code=row.get("driver_exit_code"),
            )

    def stop(self, submission_id: str) -> None:
        """Have Ray send SIGTERM to the driver, and SIGKILL after RAY_JOB_STOP_WAIT_TIME_S."""

        def post() -> None:
            try:
                self._http.post(f"{submission_id}/stop").raise_for_status()
            except httpx.HTTPError as error:
                raise wait.NotYetError(said_by(error)) from None

        try:
            wait.until("Ray to stop the job", post, timeout=STOP_TIMEOUT_SECONDS, stop=NEVER)
        except wait.GaveUpError as error:
            log.warning("%s", error)

    def wait_for_end(self, submission_id: str, lost: threading.Event) -> None:
        """Return when the job has ended, or `lost` is set: then Ray will never report its end."""
        while not self._over(submission_id) and not lost.wait(POLL_SECONDS):
            pass

    def follow(
        self,
        submission_id: str,
        log_to: Path,
        tell: Callable[[str], None],
        over: threading.Event,
    ) -> None:
        """Copy the driver's output to `log_to` and each line to `tell`, until `over` is set.

        The copy continues while Ray does not answer. A `tell` that is slower than the job misses
        lines, but not the last ones.
        """
        telling = Telling(tell)
        try:
            copy = Copy(log_to, telling.put, self._secrets)
            self._follow_output(submission_id, copy, over)
        except Exception:  # the job continues
            log.exception("the job's log is not copied any more")
        finally:
            telling.close()

    def _follow_output(self, submission_id: str, copy: Copy, over: threading.Event) -> None:
        job_log.follow(partial(job_log.source, self._ray_dir, submission_id), copy, over)

    def _over(self, submission_id: str) -> bool:
        try:
            return self.info(submission_id).ended
        except wait.NotYetError:
            return False


def command_line(argv: Sequence[str], env: Mapping[str, str] | Path, directory: Path | None) -> str:
    """Return one shell command that runs `argv` with `env` in `directory`; None: where Ray starts.

    `env`: the variables, or a file that sets them, which the command deletes.

    The variables reach the driver alone, so that no runtime environment is needed. `exec` makes the
    driver, not a shell, receive the signals and give the exit code.
    """
    there = f"cd {shlex.quote(str(directory))} && " if directory else ""
    if isinstance(env, Path):
        file = shlex.quote(str(env))
        return f"{there}. {file} && rm {file} && exec {shlex.join(argv)}"
    assignments = [f"{name}={value}" for name, value in sorted(env.items())]
    command = shlex.join(["env", *assignments, *argv] if assignments else argv)
    return f"{there}exec {command}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no answer"
