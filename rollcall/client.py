"""A running cluster, asked over its head's control port: jobs, states, logs and events."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

from contract.exit_codes import ExitCode
from contract.files.stored_json import fields_of
from contract.journal_file.lines import event_of
from contract.options import ConfigError, Fault, ParseError
from contract.progress import Progress
from entrypoint.commands import arguments, head_client, jobs, logs
from entrypoint.commands.ask_head import job_path
from entrypoint.commands.events import complete_lines
from entrypoint.commands.logs import LogsOfHead
from entrypoint.config import parsers
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir as directories
from entrypoint.job.jobs import JobState
from entrypoint.run.log_files import JOURNAL
from rollcall.limit import Limit

ARGUMENTS = {"ROLLCALL_URL": "url", "ROLLCALL_TOKEN": "token"}
"""Variables that a client takes as arguments, too."""
STOPPED_SECONDS = 10.0
"""How long a head may be silent that was asked to stop, until it counts as ended."""
ENDED_BY_STOP = (
    "the head has ended, as stop() has asked it to, and told no outcome before: "
    "`rollcall report RUN` shows it on a machine that has the run directory ({why})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job."""

    id: str
    state: JobState
    words: tuple[str, ...]
    """The command, secrets masked."""
    submitted: datetime
    ended: datetime | None = None
    exit_code: int | None = None
    """None until it has ended."""
    sentence: str = ""
    """How it ended."""
    recipe: str = ""
    stage: str = ""
    """Its name in a pipeline."""
    run_dir: str = ""
    """On the cluster."""
    progress: Progress | None = None

    @property
    def is_over(self) -> bool:
        return self.ended is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What the head says of its cluster and of the run on it."""

    head: str
    """The name of the head's node."""
    phase: str
    present: int
    """Workers that are there."""
    expected_workers: int
    job: str | None = None
    """The submitted job that runs."""
    progress: Progress | None = None
    outcome: str | None = None
    """finished, failed or stopped; None while the run goes on."""
    exit_code: int | None = None
    nodes: tuple[Mapping[str, Any], ...] = ()
    """A row for each worker."""
    missing: tuple[Mapping[str, Any], ...] = ()
    """A row for each worker that is not there: its node, the reason, and since when."""
    spares: tuple[str, ...] = ()
    """The nodes that are there to take a lost worker's place."""

    @property
    def is_over(self) -> bool:
        return self.outcome is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of the journal."""

    at: datetime
    node: str
    kind: str
    sentence: str
    attempt: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """Asks a cluster.

    Every method raises RefusedError if the head answers that it does not do what is asked for,
    AwayError if no head answers now, and NoAnswerError, of which both are, for any other reason.
    While the head does not answer, as during its restart, methods ask again, for
    ROLLCALL_HEAD_TIMEOUT. It holds no connection, and `with Client() as client` is for programs
    that expect it.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """`url`: of the control port, for example http://head:8267 or head:8267; by default
        ROLLCALL_URL, else this machine's head. `token`: the run's token, or its read-only key; by
        default ROLLCALL_TOKEN, else the token in ROLLCALL_RUN_DIR. Raises ConfigError.
        """
        given = {
            "ROLLCALL_URL": None if url is None else _address(url),
            "ROLLCALL_TOKEN": None if token is None else _token(token),
        }
        named = {name: value for name, value in given.items() if value is not None}
        self._arguments = {name: ARGUMENTS[name] for name in named}
        try:
            self._settings: Settings = read_settings({**os.environ, **named})
        except ConfigError as error:
            raise ConfigError([*map(self._as_argument, error.faults)]) from None
        self._has_stopped_run = False
        """This client has asked the head to stop, and so to end."""

    def _as_argument(self, fault: Fault) -> Fault:
        path = self._arguments.get(fault.path)
        return replace(fault, path=path, remedy=_capital(fault.remedy)) if path else fault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""

    def submit(
        self,
        command: str | Sequence[str],
        *,
        working_dir: str | Path | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Job:
        """Bring a job; return it as the head has taken it into its queue.

        `command`: as after `rollcall submit --`. `working_dir`: a local directory, which is
        uploaded, or one on the cluster. `runtime_env`: Ray's runtime environment. `name`: of
        the run. Raises ConfigError if `command` is none.
        """
        words = _words(command)
        environment = _environment(runtime_env, working_dir)
        named = {"name": _name(name)} if name else {}
        self._ask("GET", "/v1/jobs")  # before a directory is packed: does this head take jobs?
        if directories.is_local(environment):
            environment = jobs.uploaded(self._settings, environment)
        body = {"job": words, "runtime_env": environment, "key": uuid.uuid4().hex, **named}
        row = self._ask("POST", "/v1/jobs", json=body, timeout=jobs.SUBMIT_SECONDS)
        for note in row.get("notes", ()):  # a head of an older version has none
            print(f"note: {note}", file=sys.stderr)
        return _job(row)

    def runs(self) -> list[Job]:
        """Return all submitted jobs, oldest first."""
        return [_job(row) for row in self._ask("GET", "/v1/jobs")["jobs"]]

    @overload
    def status(self) -> ClusterState: ...
    @overload
    def status(self, job: str | Job) -> Job: ...
    def status(self, job: str | Job | None = None) -> ClusterState | Job:
        """Return the state of a submitted job; without one, of the cluster and its run.

        `job`: what `submit` has returned, its id, or its name.
        """
        if job is None:
            return _state(self._ask("GET", "/v1/state"))
        return _job(self._ask("GET", job_path(_id(job))))

    @overload
    def wait(self, *, timeout: float | None = None) -> ClusterState: ...
    @overload
    def wait(self, job: str | Job, *, timeout: float | None = None) -> Job: ...
    def wait(
        self, job: str | Job | None = None, *, timeout: float | None = None
    ) -> ClusterState | Job:
        """Return the state of a job, or of the head's run, once it has ended.

        Raises TimeoutError after `timeout` seconds, also while no head answers. A head ends soon
        after its run: AwayError says so of one that `stop()` has ended.
        """
        limit = self._limit(job, timeout)
        while not (found := self._look(job, limit)).is_over:
            time.sleep(limit.pause(now(found)))
        return found

    def _limit(self, job: str | Job | None, timeout: float | None) -> Limit:
        return Limit("the run" if job is None else _id(job), timeout)

    def _look(self, job: str | Job | None, limit: Limit) -> ClusterState | Job:
        """Return the state of what is waited for. Raises TimeoutError after the limit."""
        path = "/v1/state" if job is None else job_path(_id(job))
        patience, name = self._settings.head_timeout, "ROLLCALL_HEAD_TIMEOUT"
        if self._has_stopped_run and patience > STOPPED_SECONDS:
            patience, name = STOPPED_SECONDS, "the stop"
        if (left := limit.of(patience)) < patience:
            patience, name = left, "timeout"
        settings = replace(self._settings, head_timeout=patience)
        ask = partial(self._ask_once, "GET", path, timeout=limit.of_request())
        try:
            row = head_client.patiently(settings, ask, limit=name, in_program=True)
        except head_client.AwayError as error:
            if limit.is_over:
                raise limit.too_late(str(error)) from None
            if self._has_stopped_run:
                raise head_client.AwayError(ENDED_BY_STOP.format(why=error)) from None
            raise
        return _state(row) if job is None else _job(row)

    def stop(self, job: str | Job | None = None) -> None:
        """Have a job save and stop; without a job, the whole run, with its cluster."""
        self._ask("POST", "/v1/stop" if job is None else f"{job_path(_id(job))}/stop")
        self._has_stopped_run |= job is None

    def logs(self, job: str | Job | None = None, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines that the attempts of a job, or of the head's run, have printed.

        `follow`: and those that come, until the job has ended.
        """
        source = self._logs(job)
        texts = logs.follow(source) if follow else _present(source, *logs.attempts(source))
        return complete_lines(texts, with_last=True)

    def events(self, job: str | Job | None = None, *, follow: bool = False) -> Iterator[Event]:
        """Yield the events of a job, or of the head's run, oldest first.

        `follow`: and those that come, until the job has ended.
        """
        source = self._logs(job)
        texts = logs.follow(source, JOURNAL) if follow else _present(source, JOURNAL)
        for line in complete_lines(texts):
            if row := event_of(line.encode()):
                yield Event(**fields_of(Event, row) | {"at": datetime.fromisoformat(row["at"])})

    def _logs(self, job: str | Job | None) -> LogsOfHead:
        of = "" if job is None else self.status(job).id  # the name of a job names no log
        return LogsOfHead(self._settings, of, patient=True)

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return head_client.patiently(
            self._settings, partial(self._ask_once, method, path, **options), in_program=True
        )

    def _ask_once(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            return head_client.ask(self._settings, method, path, **options)
        except head_client.NoAnswerError as error:
            said = str(error)
            for variable, argument in self._arguments.items():  # what to change is in the program
                said = said.replace(variable, argument)
            if error.exit_code == ExitCode.NOT_ALLOWED:
                said = said.replace("set ROLLCALL_TOKEN", "give token, or set ROLLCALL_TOKEN")
            error.args = (said,)
            raise


def now(found: ClusterState | Job) -> str:
    """Return what goes on, as a clause."""
    return f"it is {found.state}" if isinstance(found, Job) else f"its phase is {found.phase}"


def _address(url: object) -> str:
    """Return URLs of control ports as settings take them. Raises ConfigError."""
    try:
        if isinstance(url, str):
            return arguments.addresses(url)
        raise argparse.ArgumentTypeError
    except argparse.ArgumentTypeError:
        remedy = "Give http://HOST:8267, or HOST:8267"
        raise ConfigError([Fault("url", str(url), "is not an address of a head", remedy)]) from None


def _token(token: object) -> str:
    """Return a token. Raises ConfigError, which does not show what was given."""
    if isinstance(token, str):
        return token
    problem = f"is of type {type(token).__name__}, and no text"
    remedy = "Give the token itself; of a file, Path(FILE).read_text().strip()"
    raise ConfigError([Fault("token", None, problem, remedy)])


def _id(job: str | Job) -> str:
    """Return the id or the name of a job. Raises ConfigError."""
    found = job.id if isinstance(job, Job) else job
    if isinstance(found, str) and found:
        return found
    remedy = "Give what submit has returned, a job's id such as job-1, or its name"
    raise ConfigError([Fault("job", str(job), "is no job", remedy)])


def _name(name: str) -> str:
    """Return the name of a run. Raises ConfigError."""
    try:
        return parsers.run_name(str(name))
    except ParseError as error:
        fault = Fault("name", str(name), error.problem, _capital(error.remedy))
        raise ConfigError([fault]) from None


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _environment(
    runtime_env: Mapping[str, Any] | None, working_dir: str | Path | None
) -> dict[str, Any]:
    """Return the runtime environment of a job. Raises ConfigError."""
    if not isinstance(runtime_env, Mapping | None):
        remedy = "Give a mapping, as Ray's runtime_env"
        raise ConfigError([Fault("runtime_env", str(runtime_env), "is no mapping", remedy)])
    environment = dict(runtime_env or {})
    if working_dir is not None:
        environment["working_dir"] = str(working_dir)
    if directories.is_local(environment):
        path = directories.place(environment)
        if not (path.is_dir() or (path.suffix == ".zip" and path.is_file())):
            problem = "is neither a directory nor a .zip file here"
            remedy = "Give a local one, or a URI of one on the cluster"
            raise ConfigError([Fault("working_dir", str(path), problem, remedy)])
    return environment


def _words(command: str | Sequence[str]) -> list[str]:
    """Return the words of a command. Raises ConfigError."""
    remedy = 'Give the words of a program, as in "python train.py"'
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except TypeError:
        raise ConfigError([Fault("command", str(command), "is no command", remedy)]) from None
    except ValueError as error:  # a quote is not closed
        problem = f"cannot be read as a shell reads it ({error})"
        raise ConfigError([Fault("command", str(command), problem, remedy)]) from None
    if not words:
        raise ConfigError([Fault("command", str(command), "is empty", remedy)])
    if not all(isinstance(word, str) for word in words):
        raise ConfigError([Fault("command", str(command), "has a word that is no text", remedy)])
    return words


def _present(source: logs.Logs, *names: str) -> Iterator[str]:
    """Yield what these logs have now."""
    for name in names:
        yield from logs.rest(source, name, {})


def _job(row: Mapping[str, Any]) -> Job:
    known = fields_of(Job, row)
    return Job(
        **known
        | {
            "state": JobState(row["state"]),
            "words": tuple(row["words"]),
            "submitted": datetime.fromisoformat(row["submitted"]),
            "ended": row["ended"] and datetime.fromisoformat(row["ended"]),
            "progress": Progress.of(row.get("progress") or {}),
        }
    )


def _state(row: Mapping[str, Any]) -> ClusterState:
    outcome = row["outcome"] or {}
    return ClusterState(
        **fields_of(ClusterState, row)
        | {
            "progress": Progress.of(row["progress"] or {}),
            "outcome": outcome.get("outcome"),
            "exit_code": outcome.get("exit_code"),
            "nodes": tuple(row["nodes"]),
            "missing": tuple(row["missing"]),
            "spares": tuple(row.get("spares", ())),
        }
    )
