"""Submit, follow and stop the training command through Ray's job API (its REST form).

REST, because Ray's own client would import Ray into the entrypoint: a second and 100 MB for five
requests.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

import httpx

from entrypoint import wait
from trainer.masks import redact

log = logging.getLogger(__name__)

ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
SUBMIT_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.5
NEVER = threading.Event()
AFTER_A_LINE = re.compile(r"(?<=[\r\n])")
"""A progress bar goes back to its line's start, and comes to no other."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What Ray says of a submission."""

    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str = ""
    error_type: str | None = None
    driver_exit_code: int | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class JobRefusedError(Exception):
    """Ray does not take the job, whatever is tried; the sentence is Ray's."""


class JobClient:
    """Ray's jobs API at `dashboard` (http://host:port)."""

    def __init__(self, dashboard: str, token: str, secrets: Iterable[str] = ()) -> None:
        """`secrets`: masked in the driver's output, as is the token."""
        self._dashboard = dashboard
        self._secrets = frozenset({token, *secrets})
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=f"{dashboard}/api/jobs/",
            headers=self._headers,
            timeout=30,
            transport=wait.direct(),
        )

    def submit(
        self,
        submission_id: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        stop: threading.Event,
    ) -> None:
        """Start `argv` on the head, in this process's directory, with `env` added.

        Retried while Ray says that it is not ready ("No available agent to submit job").

        Raises JobRefusedError, GaveUpError, InterruptedWaitError.
        """
        body = {"entrypoint": command_line(argv, env), "submission_id": submission_id}

        def post() -> None:
            try:
                answer = self._http.post("", json=body)
            except httpx.HTTPError as error:
                raise wait.NotYetError(f"{error or type(error).__name__}") from None
            if answer.status_code >= 500 and "already exists" not in answer.text:
                raise wait.NotYetError(_last_line(answer.text))
            if answer.status_code >= 400 and "already exists" not in answer.text:
                raise JobRefusedError(_last_line(answer.text))

        wait.until("Ray to take the job", post, timeout=SUBMIT_TIMEOUT_SECONDS, stop=stop)

    def info(self, submission_id: str) -> JobInfo:
        """Raises NotYetError where Ray does not answer."""
        try:
            answer = self._http.get(submission_id)
            answer.raise_for_status()
            row = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise wait.NotYetError(f"{error or type(error).__name__}") from None
        return JobInfo(
            status=row["status"],
            message=row.get("message") or "",
            error_type=row.get("error_type"),
            driver_exit_code=row.get("driver_exit_code"),
        )

    def stop(self, submission_id: str) -> None:
        """SIGTERM to the driver; Ray kills it after RAY_JOB_STOP_WAIT_TIME_S."""

        def post() -> None:
            try:
                self._http.post(f"{submission_id}/stop").raise_for_status()
            except httpx.HTTPError as error:
                raise wait.NotYetError(str(error) or type(error).__name__) from None

        try:
            wait.until("Ray to stop the job", post, timeout=STOP_TIMEOUT_SECONDS, stop=NEVER)
        except wait.GaveUpError as error:
            log.warning("%s", error)

    def follow(
        self,
        submission_id: str,
        log_to: Path,
        tell: Callable[[str], None],
        lost: threading.Event,
    ) -> None:
        """Copy the driver's output to `log_to`, and each line to `tell`, until the job ends; with
        its secrets masked, wherefore a line is written once it is whole.

        `lost` ends it too: the Ray that had the job is gone, and its end will never be known.
        """
        with _opened(log_to) as file:
            copy = _Copy(file, tell, self._secrets)
            while not self._over(submission_id):
                self._tail(submission_id, copy)
                if lost.wait(POLL_SECONDS):
                    break
            else:  # a tail that broke off, or came too late for a short job, missed the end
                copy.restart()
                copy.take(self._whole_log(submission_id))
            copy.close()

    def _tail(self, submission_id: str, copy: _Copy) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        url = f"{self._dashboard.replace('http', 'ws', 1)}/api/jobs/{submission_id}/logs/tail"
        copy.restart()
        try:
            with connect(url, additional_headers=self._headers, max_size=None, proxy=None) as tail:
                for message in tail:
                    copy.take(message if isinstance(message, str) else message.decode())
        except (OSError, WebSocketException) as error:
            log.debug("the job's log broke off: %s", error)

    def _whole_log(self, submission_id: str) -> str:
        try:
            answer = self._http.get(f"{submission_id}/logs")
            return str(answer.json()["logs"]) if answer.is_success else ""
        except (httpx.HTTPError, ValueError, KeyError):
            return ""

    def _over(self, submission_id: str) -> bool:
        try:
            return self.info(submission_id).ended
        except wait.NotYetError:
            return False


def _opened(log_to: Path) -> RawIOBase:
    """Unbuffered: what a full disk does not take is over, also when the file is closed."""
    try:
        return log_to.open("ab", buffering=0)
    except OSError as error:
        log.warning("the job's log is not copied to %s: %s", log_to, error.strerror)
        return Path(os.devnull).open("ab", buffering=0)


class _Copy:
    """Writes a text that may be sent again from its start, each character once."""

    def __init__(
        self, file: RawIOBase, tell: Callable[[str], None], secrets: frozenset[str]
    ) -> None:
        self._file = file
        self._tell = tell
        self._secrets = secrets
        self._copied = 0
        self._seen = 0
        self._unsaved = ""
        self._line = ""

    def restart(self) -> None:
        """The text begins anew."""
        self._seen = 0

    def take(self, text: str) -> None:
        fresh = text[max(0, self._copied - self._seen) :]
        self._seen += len(text)
        self._copied = max(self._copied, self._seen)
        *whole, self._unsaved = AFTER_A_LINE.split(self._unsaved + fresh)
        self._pass_on(whole)

    def close(self) -> None:
        self._pass_on([self._unsaved])
        if self._line:
            self._tell(self._line)

    def _pass_on(self, pieces: Iterable[str]) -> None:
        """What a full disk does not take is lost to the copy, not to who follows the job."""
        text = "".join(redact(piece, self._secrets) for piece in pieces)
        try:
            self._file.write(text.encode())
        except OSError as error:
            log.warning("a part of the job's log is not copied: %s", error.strerror)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._tell(line)


def command_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """One shell command: the variables reach the driver alone, hence need no runtime environment.

    `exec`, so that the driver, not a shell, receives the signals and gives the exit code.
    """
    assignments = [f"{name}={value}" for name, value in sorted(env.items())]
    command = shlex.join(["env", *assignments, *argv] if assignments else argv)
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {command}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no answer"
