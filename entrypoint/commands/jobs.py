"""`submit` and `list`: jobs for a cluster that waits for them."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from contract.durations import duration
from contract.exit_codes import ExitCode
from contract.options import ParseError
from entrypoint.commands.head_client import INTERRUPTED, NoAnswerError, ask, patiently
from entrypoint.commands.logs import LogsOfHead, follow
from entrypoint.commands.status_text import job_sentences
from entrypoint.config import runtime_env
from entrypoint.config.settings import Settings
from entrypoint.console import DATE_FORMAT
from entrypoint.job import working_dir

SUBMIT_SECONDS = 120.0
"""The head reads the files that the job names, which may lie on slow storage."""
UPLOAD_SECONDS = 600.0
QUEUE_SECONDS, QUEUE_SAID_SECONDS = 1.0, 60.0
"""How often a waiting `submit` looks at the queue, and says what it sees if nothing changes."""
WIDEST = 60
"""Characters of a job's words in the list."""


def submit(settings: Settings, options: argparse.Namespace) -> int:
    """Bring a job; show its output and end with its exit code, unless `--no-wait` is given."""
    environment = _environment(settings, options)
    ask(settings, "GET", "/v1/jobs")  # before a directory is packed: does this head take jobs?
    if working_dir.is_local(environment):
        environment = uploaded(settings, environment)
    # With the key, a submission whose answer was lost can be repeated.
    named = {"name": options.name} if options.name else {}  # a head of an older version takes none
    body = {"job": options.words, "runtime_env": environment, "key": uuid.uuid4().hex, **named}
    post = partial(ask, settings, "POST", "/v1/jobs", json=body, timeout=SUBMIT_SECONDS)
    row = submitted(settings, post)
    job = str(row["id"])
    for note in row.get("notes", ()):  # a head of an older version has none
        print(f"note: {note}", file=sys.stderr)
    if options.no_wait:
        print(json.dumps(row) if options.json else job)
        return ExitCode.FINISHED
    try:
        behind = _behind(settings, job)
        waits = f" and waits for {behind}" if behind else ""
        said = f"{job} is submitted{waits}; its run directory is {row['run_dir']}"
        print(said, file=sys.stderr)
        if behind:
            print(f"Ctrl-C leaves {job} in the queue; --no-wait waits for none", file=sys.stderr)
        row = shown_to_its_end(settings, job, sys.stderr if options.json else sys.stdout)
    except KeyboardInterrupt:
        print(
            f"{job} goes on: see `rollcall logs --follow {job}`, `rollcall status {job}`, "
            f"`rollcall stop {job}`",
            file=sys.stderr,
        )
        return INTERRUPTED
    if options.json:
        print(json.dumps(row))
    else:
        print("\n".join(job_sentences(row)), file=sys.stderr)
    return int(row["exit_code"])


def list_jobs(settings: Settings, options: argparse.Namespace) -> int:
    """Show all jobs of the cluster, oldest first."""
    rows = ask(settings, "GET", "/v1/jobs")["jobs"]
    if options.json:
        print(json.dumps(rows))
        return ExitCode.FINISHED
    if not rows:
        print("no job was submitted yet: rollcall submit -- python train.py")
    for row in rows:
        words = one_line(row["words"])
        name = row.get("name") or row["stage"]
        stage = f"{name}: " if name else ""
        shown = words if len(words) <= WIDEST else f"{words[:WIDEST]}…"
        code = "" if row["exit_code"] is None else f" {row['exit_code']}"
        at = datetime.fromisoformat(row["submitted"]).astimezone().strftime(DATE_FORMAT)
        print(f"{row['id']:<8} {row['state'] + code:<12} {at}  {stage}{shown}")
    return ExitCode.FINISHED


def one_line(words: Sequence[str]) -> str:
    """Return a command as a shell reads it, in one line: `\\n` stands for a newline."""
    text = shlex.join(words)
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _behind(settings: Settings, job: str) -> str:
    """Return in words which jobs a waiting job waits for; "" if it waits for none.

    Raises NoAnswerError.
    """
    rows = patiently(settings, partial(ask, settings, "GET", "/v1/jobs"))["jobs"]
    place = [row["id"] for row in rows].index(job)
    if rows[place]["ended"] is not None:
        return ""
    return ", ".join(row["id"] for row in rows[:place] if row["ended"] is None)


def _wait_in_queue(settings: Settings, job: str) -> None:
    """Wait until no job comes before this one, and say now and then which ones do.

    Raises NoAnswerError.
    """
    began = said_at = time.monotonic()
    said = _behind(settings, job)
    while behind := _behind(settings, job):
        now = time.monotonic()
        if behind != said or now - said_at > QUEUE_SAID_SECONDS:
            said, said_at = behind, now
            spent, count = duration(round(now - began)), behind.count(",") + 1
            print(f"{job} has waited for {spent}; {count} before it: {behind}", file=sys.stderr)
        time.sleep(QUEUE_SECONDS)


def submitted(settings: Settings, post: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the head's answer to a submission. Raises NoAnswerError and KeyboardInterrupt."""
    try:
        return patiently(settings, post)
    except KeyboardInterrupt:
        said = "the head did not answer yet: `rollcall list` shows whether it was submitted"
        print(said, file=sys.stderr)
        raise


def shown_to_its_end(settings: Settings, job: str, output: TextIO) -> dict[str, Any]:
    """Print the job's output until it is over; return its last row. Raises NoAnswerError."""
    _wait_in_queue(settings, job)
    for text in follow(LogsOfHead(settings, job, patient=True), fold=True):
        print(text, end="", file=output, flush=True)
    return patiently(settings, partial(ask, settings, "GET", f"/v1/jobs/{job}"))


def _environment(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Return the runtime environment that the arguments ask for. Raises NoAnswerError."""
    flag, text = "--runtime-env-json", options.runtime_env_json or "{}"
    directory = Path()
    if options.runtime_env:
        flag, path = "--runtime-env", Path(options.runtime_env)
        directory = path.parent
        try:
            text = path.read_text() or "{}"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise NoAnswerError(f"--runtime-env {path}: {reason}", ExitCode.USAGE) from None
    try:
        row = runtime_env.parsed(text, directory)
    except ParseError as error:
        raise NoAnswerError(f"{flag} {error}", ExitCode.USAGE) from None
    if options.working_dir:
        row["working_dir"] = options.working_dir
    return row


def uploaded(settings: Settings, environment: dict[str, Any]) -> dict[str, Any]:
    """Bring the local working directory to the head; return the environment that names it there.

    Raises NoAnswerError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        try:
            package = working_dir.pack(environment, Path(temporary))
        except working_dir.PackError as error:
            raise NoAnswerError(str(error), ExitCode.USAGE) from None
        if package.note:
            print(package.note, file=sys.stderr)
        path = f"/v1/packages/{package.path.name}"
        with package.path.open("rb") as content:
            row = ask(settings, "PUT", path, content=content, timeout=UPLOAD_SECONDS)
    given = {name: value for name, value in environment.items() if name != "excludes"}
    return given | {"working_dir": row["working_dir"]}
