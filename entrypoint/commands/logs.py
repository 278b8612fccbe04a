"""`logs`: the ends of all logs of a run, or single logs whole, read on disk or over HTTP."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from contract import stored_json
from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.commands.head_client import NoAnswerError, ask, patiently
from entrypoint.commands.remote import run_end
from entrypoint.config.settings import Settings
from entrypoint.run import log_files
from entrypoint.run import token as run_token
from entrypoint.run.log_files import Piece

TAIL_LINES = 20
TAIL_BYTES = 2**15
POLL_SECONDS = 2.0
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
            return run_end(self.settings) is not None
        try:
            row = stored_json.json_object(self._run.root / "job.json") or {}
        except FileNotFoundError:
            where = self._run.root.parent
            raise NoAnswerError(f"there is no {self.job} in {where}", ExitCode.USAGE) from None
        return row.get("ended") is not None

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
        path, key = (f"/v1/jobs/{self.job}", "ended") if self.job else ("/v1/state", "outcome")
        return self._ask(path)[key] is not None

    def head(self) -> str:
        return str(self._ask("/v1/state")["head"])

    def _ask(self, path: str, **query: int) -> dict[str, Any]:
        parameters = {"job": self.job, **query} if self.job else query
        look = partial(ask, self.settings, "GET", path, params=parameters)
        return patiently(self.settings, look) if self.patient else look()


def logs(settings: Settings, options: argparse.Namespace) -> int:
    """Show the ends of all logs and the outcome of a run that has ended; or NAMEs as a whole."""
    names: list[str] = options.names
    if options.follow and (options.json or len(names) != 1):
        problem = "takes no --json" if options.json else "takes one NAME: a node, a log or a job"
        raise NoAnswerError(f"logs --follow {problem}", ExitCode.USAGE)
    here = settings.url is None and RunFiles(settings.run_dir).journal.is_file()
    if not here:
        _find_head(settings)
    of: type[LogsHere | LogsOfHead] = LogsHere if here else LogsOfHead
    if options.follow:
        job = names[0] if JOB.fullmatch(names[0]) else ""
        source = LogsHere(settings, job) if here else LogsOfHead(settings, job, patient=True)
        for text in follow(source, *(() if source.job else (_found(source, names[0]),))):
            print(text, end="", flush=True)
        return ExitCode.FINISHED
    if names:
        found = {name: lines for name in names for name, lines in _named(of, settings, name)}
    else:
        found = _ends(of(settings))
    if options.json:
        print(json.dumps(found))
    else:
        for name, lines in found.items():
            print(f"==> {name}", *lines, "", sep="\n")
    return ExitCode.FINISHED


def _find_head(settings: Settings) -> None:
    """Raises NoAnswerError: with 73 if there is neither a run here nor a head."""
    try:
        ask(settings, "GET", "/v1/logs")
    except NoAnswerError as error:
        no_token = run_token.for_client(settings) is None
        if settings.url or not (no_token or error.exit_code is ExitCode.UNREACHABLE):
            raise
        sentence = f"no run in {settings.run_dir} (is ROLLCALL_RUN_DIR right?), and {error}"
        raise NoAnswerError(sentence, ExitCode.RUN_DIR) from None


def follow(source: Logs, *names: str) -> Iterator[str]:
    """Yield what is and comes in these logs, until nobody writes to them; none: all attempts'."""
    offsets: dict[str, int] = {}
    newest = 0  # the attempts before it are over, and read
    while True:
        over = source.over()  # first: then the reads below include all that was written
        unread = names or attempts(source)[newest:]
        for name in unread:
            yield from _rest(source, name, offsets)
        newest += max(0, len(unread) - 1)
        if over:
            return
        time.sleep(POLL_SECONDS)


def attempts(source: Logs) -> list[str]:
    return [name for name in source.names() if name.startswith("attempt-")]


def _rest(source: Logs, name: str, offsets: dict[str, int]) -> Iterator[str]:
    """Yield what a log has beyond its offset in `offsets`, and move the offset."""
    while (piece := source.read(name, offsets.get(name, 0))).text:
        offsets[name] = piece.offset
        yield piece.text


def _named(
    of: type[LogsHere | LogsOfHead], settings: Settings, name: str
) -> Iterator[tuple[str, list[str]]]:
    """Yield the logs that a NAME means, each with all its lines."""
    source = of(settings, name if JOB.fullmatch(name) else "")
    source.over()  # raises if there is no such job
    for log in attempts(source) if source.job else [_found(source, name)]:
        label = f"{name}/{log}" if source.job else log
        yield label, "".join(_rest(source, log, {})).splitlines()


def _found(source: LogsHere | LogsOfHead, name: str) -> str:
    """Return the log that a node's or a log's name means. Raises NoAnswerError."""
    names = source.names()
    for log in (name, f"worker-{name.removeprefix('worker-')}"):
        if log in names:
            return log
    if name == source.head() and "head" in names:
        return "head"
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the logs are {', '.join(names) or 'none yet'}"
    raise NoAnswerError(f"there is no log of {name}: {hint}", ExitCode.USAGE)


def _ends(source: LogsHere | LogsOfHead) -> dict[str, list[str]]:
    """Return the end of each log, and the outcome of a run that has ended."""
    tails = {}
    for name in source.names():
        tails[f"{name}.log"] = source.read(name, -TAIL_BYTES).text.splitlines()[-TAIL_LINES:]
    if over := run_end(source.settings):
        tails[RunFiles(source.settings.run_dir).result.name] = list(over.lines())
    return tails
