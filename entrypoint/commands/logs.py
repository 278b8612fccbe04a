"""`logs`: the ends of all logs of a run, or single logs, read on disk or over HTTP."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from contract.exit_codes import ExitCode
from contract.files import stored_json
from contract.options import did_you_mean
from contract.run_dir import JOB_ENTRY, RunFiles
from entrypoint.cluster.job_queue_protocol import which_job
from entrypoint.commands.ask_head import end_of_run, job_path
from entrypoint.commands.head_client import AwayError, NoAnswerError, NoRunError, ask, patiently
from entrypoint.commands.log_part import Fold, Part, without_rays
from entrypoint.config.settings import Settings
from entrypoint.job import jobs
from entrypoint.job.failures.evidence_log import plain, spoken
from entrypoint.job.failures.tracebacks import last_traceback
from entrypoint.run import log_files
from entrypoint.run import token as run_token
from entrypoint.run.log_files import Piece

TAIL_LINES = 20
TAIL_BYTES = 2**15
MOST_TRACEBACK_LINES = 100
POLL_SECONDS = 1.0
JOB = re.compile(r"job-\d+")


class Logs(Protocol):
    """The logs of a run, or of a submitted job."""

    def names(self) -> list[str]: ...

    def read(self, name: str, offset: int) -> Piece:
        """Return the piece that begins at `offset`; a negative one counts from the end."""
        ...

    def over(self) -> bool:
        """Whether nobody writes to the logs any more."""
        ...

    def jobs(self) -> list[tuple[str, str]]:
        """Return the id and the name of each job of the cluster, the name "" without one."""
        ...


RAYS = "ray-"
"""How the names of Ray's own logs begin, which have little of the run."""


@dataclass(frozen=True, slots=True)
class LogsHere:
    """In the run directory, also if there is no head."""

    settings: Settings
    job: str = ""

    @property
    def _run(self) -> RunFiles:
        run = RunFiles(self.settings.run_dir)
        return RunFiles(run.jobs / self.job) if self.job else run

    def names(self) -> list[str]:
        return log_files.names(self._run.logs)

    def read(self, name: str, offset: int) -> Piece:
        return log_files.read(self._run.logs, name, offset)

    def over(self) -> bool:
        if not self.job:
            return end_of_run(self.settings) is not None
        try:
            row = stored_json.json_object(self._run.root / JOB_ENTRY) or {}
        except FileNotFoundError:
            raise self._absent(self.job) from None
        return row.get("ended") is not None

    def job_named(self, name: str) -> str:
        """Return the id of the newest job of this name. Raises NoAnswerError."""
        found = jobs.newest_named(jobs.stored(RunFiles(self.settings.run_dir).jobs), name)
        if found is None:
            raise self._absent(name)
        return found.id

    def _absent(self, job: str) -> NoAnswerError:
        where = RunFiles(self.settings.run_dir).jobs
        near = which_job(job, self.jobs())
        return NoAnswerError(f"there is no {job} in {where}: {near}", ExitCode.USAGE)

    def jobs(self) -> list[tuple[str, str]]:
        found = jobs.stored(RunFiles(self.settings.run_dir).jobs)
        return [(job.id, job.name or job.stage) for job in found]

    def head(self) -> str:
        """Return the name of the node that has these files."""
        return self.settings.node_name


@dataclass(frozen=True, slots=True)
class LogsOfHead:
    """Over the head's control port. Every method raises NoAnswerError."""

    settings: Settings
    job: str = ""
    patient: bool = False
    """If the head is away for a while, ask again."""

    def names(self) -> list[str]:
        return [str(name) for name in self._ask("/v1/logs")["logs"]]

    def read(self, name: str, offset: int) -> Piece:
        row = self._ask(f"/v1/logs/{name}", offset=offset)
        return Piece(row["text"], row["offset"])

    def over(self) -> bool:
        path, key = (job_path(self.job), "ended") if self.job else ("/v1/state", "outcome")
        return self._ask(path)[key] is not None

    def job_named(self, name: str) -> str:
        """Return the id of the newest job of this name."""
        return str(self._ask(job_path(name))["id"])

    def jobs(self) -> list[tuple[str, str]]:
        with suppress(NoAnswerError):  # it takes no jobs
            rows = ask(self.settings, "GET", "/v1/jobs")["jobs"]
            return [(str(row["id"]), str(row.get("name") or row["stage"])) for row in rows]
        return []

    def head(self) -> str:
        return str(self._ask("/v1/state")["head"])

    def _ask(self, path: str, **query: int) -> dict[str, Any]:
        parameters = {"job": self.job, **query} if self.job else query
        look = partial(ask, self.settings, "GET", path, params=parameters)
        return patiently(self.settings, look) if self.patient else look()


def logs(settings: Settings, options: argparse.Namespace) -> int:
    """Show the ends of all logs and the outcome of a run that has ended; or NAMEs as a whole.

    Ray's own logs are only named, and its own lines at the beginning of a log are counted, except
    with --all and as JSON. Colours of terminals are left out.

    With --follow, show one NAME, or what the attempts of the run print.
    """
    names: list[str] = options.names
    if options.follow and (options.json or len(names) > 1):
        problem = "takes no --json" if options.json else "takes one NAME: a node, a log or a job"
        raise NoAnswerError(f"logs --follow {problem}", ExitCode.USAGE)
    if options.follow:
        name = names[0] if names else ""
        source = _source_named(settings, name, patient=True)
        if not (name or attempts(source)):
            names = source.names()
            there = f"a job, or one of {', '.join(names)}" if names else "and there are no logs yet"
            raise NoAnswerError(
                f"there is no attempt to follow: logs --follow takes a NAME, {there}",
                ExitCode.USAGE,
            )
        of = () if source.job or not name else (_found(source, name),)
        for text in _followed(source, options, *of):
            print(text, end="", flush=True)
        return ExitCode.FINISHED
    whole = source_of(settings)
    if names:
        found = {log: text for name in names for log, text in _named(settings, name, options)}
    else:
        is_default = options.lines is None and options.since is None
        part = Part(TAIL_LINES if is_default else options.lines, options.since)
        found = _ends(whole, part, options, with_traceback=is_default)
    if options.json:
        print(json.dumps(found))
    else:
        of_ray = [] if names or options.all else [name for name in found if name.startswith(RAYS)]
        for name, shown_lines in found.items():
            if name not in of_ray:
                print(f"==> {name}", *map(plain, shown_lines), "", sep="\n")
        if of_ray:
            one = of_ray[0].removesuffix(".log")
            print(f"Ray's own logs: {', '.join(of_ray)} (rollcall logs {one})")
    return ExitCode.FINISHED


def source_of(settings: Settings, job: str = "", *, patient: bool = False) -> LogsHere | LogsOfHead:
    """Return the logs in the run directory, else over HTTP. Raises NoAnswerError.

    `job`: of the job that has this id or name; none: of the run.
    """
    whole: LogsHere | LogsOfHead
    if settings.url is None and RunFiles(settings.run_dir).journal.is_file():
        whole = LogsHere(settings)
    else:
        _find_head(settings)
        whole = LogsOfHead(settings, patient=patient)
    return _of_job(whole, job) if job else whole


def _of_job(whole: LogsHere | LogsOfHead, name: str) -> LogsHere | LogsOfHead:
    """Return the logs of the job that has this id or name. Raises NoAnswerError."""
    return replace(whole, job=name if JOB.fullmatch(name) else whole.job_named(name))


def _source_named(settings: Settings, name: str, *, patient: bool = False) -> LogsHere | LogsOfHead:
    """Return the logs of the job that has this id or name, else the run's. Raises NoAnswerError."""
    whole = source_of(settings, patient=patient)
    if not name or (not JOB.fullmatch(name) and _log_named(whole, name)):
        return whole
    try:
        return _of_job(whole, name)
    except AwayError:
        raise
    except NoAnswerError:  # there is no such job, or there are no jobs
        return whole


def _followed(source: Logs, options: argparse.Namespace, *names: str) -> Iterator[str]:
    """Yield the part of these logs that is asked for, and what comes."""
    part = Part(options.lines, options.since)
    offsets: dict[str, int] = {}
    if not part.is_whole:
        texts = [
            _folded(name, read_part(source, name, part, offsets), options)
            for name in names or attempts(source)
        ]
        yield "".join(part.of("".join(texts)))
    yield from follow(source, *names, offsets=offsets, fold=not options.all)


def _find_head(settings: Settings) -> None:
    """Raises NoAnswerError if there is neither a run here nor a head."""
    try:
        ask(settings, "GET", "/v1/logs")
    except NoRunError:
        raise
    except NoAnswerError as error:
        no_token = run_token.for_client(settings) is None
        if settings.url or not (no_token or isinstance(error, AwayError)):
            raise
        sentence = f"no run in {settings.run_dir} (is ROLLCALL_RUN_DIR right?), and {error}"
        raise NoAnswerError(sentence, error.exit_code) from None


def follow(
    source: Logs, *names: str, offsets: dict[str, int] | None = None, fold: bool = False
) -> Iterator[str]:
    """Yield what is and comes in these logs, until nobody writes to them; none: all attempts'.

    `offsets`: the end of what has been read of each log. `fold`: one line stands for Ray's own at
    the beginning of an attempt's log.
    """
    offsets = {} if offsets is None else offsets
    folds: dict[str, Fold] = {}
    newest = 0  # the attempts before it are over, and read
    while True:
        over = source.over()  # first: then the reads below include all that was written
        unread = names or attempts(source)[newest:]
        for name in unread:
            if fold and _is_attempt(name) and name not in offsets:
                folds[name] = Fold()
            texts = rest(source, name, offsets)
            yield from map(folds[name].read, texts) if name in folds else texts
        for name in [one for one in folds if over or one not in unread[-1:]]:
            yield folds.pop(name).close()
        newest += max(0, len(unread) - 1)
        if over:
            return
        time.sleep(POLL_SECONDS)


def attempts(source: Logs) -> list[str]:
    return [name for name in source.names() if _is_attempt(name)]


def _is_attempt(name: str) -> bool:
    return name.startswith("attempt-")


def rest(source: Logs, name: str, offsets: dict[str, int]) -> Iterator[str]:
    """Yield what a log has beyond its offset in `offsets`, and move the offset."""
    while (piece := source.read(name, offsets.get(name, 0))).text:
        offsets[name] = piece.offset
        yield piece.text


def _named(
    settings: Settings, name: str, options: argparse.Namespace
) -> Iterator[tuple[str, list[str]]]:
    """Yield the logs that a NAME means, each with the lines that are asked for."""
    source = _source_named(settings, name)
    source.over()  # raises if there is no such job
    part = Part(options.lines, options.since)
    for log in attempts(source) if source.job else [_found(source, name)]:
        label = f"{name}/{log}" if source.job else log
        text = _folded(log, read_part(source, log, part, {}), options)
        yield label, "".join(part.of(text)).splitlines()


def _folded(name: str, text: str, options: argparse.Namespace) -> str:
    """Return the text of a log as people read it; a program gets all lines."""
    is_whole = options.all or options.json or not _is_attempt(name)
    return text if is_whole else without_rays(text)


def _log_named(source: LogsHere | LogsOfHead, name: str) -> str:
    """Return the run's log of this name, or of the node of this name; "" if there is none."""
    names = source.names()
    for log in (name, f"worker-{name.removeprefix('worker-')}"):
        if log in names:
            return log
    return "head" if "head" in names and name == source.head() else ""


def _found(source: LogsHere | LogsOfHead, name: str) -> str:
    """Return the log that a node's or a log's name means. Raises NoAnswerError."""
    if log := _log_named(source, name):
        return log
    names = source.names()
    of_jobs = [one for both in source.jobs() for one in both if one]
    told = f"the logs are {', '.join(names)}" if names else "there are no logs yet"
    hint = did_you_mean(name, (*names, *of_jobs), told)
    raise NoAnswerError(f"there is no log of {name}: {hint}", ExitCode.USAGE)


def _ends(
    source: LogsHere | LogsOfHead,
    part: Part,
    options: argparse.Namespace,
    *,
    with_traceback: bool,
) -> dict[str, list[str]]:
    """Return the part of each log, and the outcome of a run that has ended.

    The newest attempt comes first, Ray's own logs come last. `with_traceback`: that attempt's part
    begins with its last traceback, if that is further back.
    """
    tails = {}
    names = sorted(source.names(), key=_by_use)
    for name in names:
        text = _folded(name, read_part(source, name, part, {}), options)
        shown = "".join(part.of(text)).splitlines()
        if with_traceback and name == names[0] and name.startswith("attempt-"):
            shown = max(shown, _last_traceback(text), key=len)
        tails[f"{name}.log"] = shown
    if over := end_of_run(source.settings):
        tails[RunFiles(source.settings.run_dir).result.name] = list(over.lines())
    return tails


def _by_use(name: str) -> tuple[int, int]:
    """Return the place of a log among the others: the newest attempt, nodes, services, Ray."""
    kind, _, number = name.partition("-")
    if kind == "attempt" and number.isdecimal():
        return 0, -int(number)
    return {"head": 1, "worker": 1, "actors": 3, "ray": 4}.get(kind, 2), 0


def _last_traceback(text: str) -> list[str]:
    """Return the lines from the last traceback on, if they are not too many."""
    lines = text.splitlines()
    begin = last_traceback([spoken(line)[1] for line in lines])
    shown = [] if begin is None else lines[begin:]
    return shown if len(shown) <= MOST_TRACEBACK_LINES else []


def read_part(source: Logs, name: str, part: Part, offsets: dict[str, int]) -> str:
    """Return a text that ends as the log does and has the part; put its end into `offsets`."""
    size = 0 if part.is_whole else TAIL_BYTES
    while True:
        first = source.read(name, -size)
        offsets[name] = first.offset
        text = first.text + "".join(rest(source, name, offsets))
        if not size or part.is_in(text) or len(text.encode()) < size:
            return text
        size *= 8
