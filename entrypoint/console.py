"""Logging to the console, as text or JSON, and to the node's log file; the line of progress."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO, cast

from contract.durations import duration, significant
from contract.journal import timestamp
from contract.progress import Progress, held_out
from contract.redaction import MASK, redact, redact_all
from contract.run_dir import RunFiles
from entrypoint.config.settings import LogFormat, Settings

if TYPE_CHECKING:
    from rich import progress

log = logging.getLogger("rollcall")

FORMAT = "%(asctime)s %(node)s %(levelmark)s%(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S%z"
"""With the zone, so that lines of several nodes and the times of `--since` compare."""
PLAIN_PROGRESS_SECONDS = 10.0
FIRST_STEP_SECONDS = (3, 10, 30, 60, 120)
"""When a log says that there is no step yet; after the last, each time that so much has passed. A
terminal shows it from the first on."""

KEY_OF_LINK = re.compile(r"([?&](?:read|token)=)[^\s&#]+")
"""The key in a link to the page."""

REDRAWN_PER_SECOND = 2.0
DUMB_TERMINALS = ("dumb", "unknown")
"""Values of TERM; such a terminal cannot go back to the start of a row."""

GONE = frozenset({errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF})
"""Errors of a write to a closed pipe, terminal or file."""


class _Line(logging.Formatter):
    """Adds the node's name, marks warnings, masks secrets."""

    def __init__(self, node: str, secrets: frozenset[str]) -> None:
        super().__init__(FORMAT, datefmt=DATE_FORMAT)
        self._node = node
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        record.node = self._node
        is_marked = record.levelno < logging.WARNING or getattr(record, "verdict", False)
        record.levelmark = "" if is_marked else f"{record.levelname}: "
        return redact(super().format(record), self._secrets)


class _LineOfFile(_Line):
    """Masks the keys of links, too: other users of the storage may read the file."""

    def format(self, record: logging.LogRecord) -> str:
        return KEY_OF_LINK.sub(rf"\1{MASK}", super().format(record))


EVENT_FIELDS = ("event", "attempt", "details")
"""Attributes of a record that tells an event; a record of something else lacks them."""


class _JsonLine(logging.Formatter):
    """Makes one JSON object of a record, on one line, with secrets masked in every text."""

    def __init__(self, node: str, secrets: frozenset[str]) -> None:
        super().__init__()
        self._node = node
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "node": self._node,
            "message": redact(record.getMessage(), self._secrets),
            "logger": record.name,
        }
        for name in EVENT_FIELDS:
            if (value := getattr(record, name, None)) is not None:
                row[name] = redact_all(value, self._secrets)
        if record.exc_info:
            row["error"] = redact(self.formatException(record.exc_info), self._secrets)
        return json.dumps(row)


class _Row:
    """The row of progress that the terminal shows below the log; rich draws it."""

    def __init__(self) -> None:
        self.drawn: progress.Progress | None = None

    def show(self, what: str, more: str, done: int, total: int | None) -> None:
        """Draw the row, or redraw it. `total`: steps of the run; None if unknown."""
        if self.drawn is None:
            self.drawn = _progress_row()
            self.drawn.add_task("", total=None, more="")
            self.drawn.start()
        task = self.drawn.task_ids[0]
        self.drawn.update(task, description=what, more=more, completed=done, total=total)

    def end(self, *, stays: bool) -> None:
        """Stop drawing. `stays`: whether the row is left as a line of the log."""
        if self.drawn is not None:
            self.drawn.live.transient = not stays
            self.drawn.stop()
            self.drawn = None


ROW = _Row()


class _Console(logging.StreamHandler[TextIO]):
    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line, above the row of progress if there is one."""
        if (drawn := ROW.drawn) is None:
            super().emit(record)
            return
        from rich.text import Text

        try:
            drawn.console.print(Text(self.format(record)), soft_wrap=True)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if isinstance(error := sys.exception(), OSError):
            do_without(error)
        else:
            super().handleError(record)


def do_without(error: OSError) -> None:
    """If the console is gone, as when its terminal was closed, write to nowhere from now on.

    Python itself ends with 120 when it cannot write at the end what it still has to say. What a
    full disk does not take is lost; the next line may find room.
    """
    if error.errno not in GONE:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def set_up(settings: Settings) -> None:
    """Sentences to the console, as ROLLCALL_LOG says; `log_to_file` adds the node's log file."""
    handler = _Console(sys.stdout)
    line = _JsonLine if settings.log is LogFormat.JSON else _Line
    handler.setFormatter(line(settings.node_name, settings.secrets))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)


VERDICTS = {"WARN": logging.WARNING, "FAIL": logging.ERROR}


def say_check(line: str) -> None:
    """Log a line of preflight. Its first word is its level, which a text has once."""
    level = VERDICTS.get(line.partition(" ")[0], logging.INFO)
    log.log(level, "%s", line, extra={"verdict": True})


def draws() -> bool:
    """Return whether the console is a terminal that shows text; lines of JSON stay as they are."""
    is_dumb = os.environ.get("TERM", "").lower() in DUMB_TERMINALS
    return sys.stdout.isatty() and not is_dumb and not writes_json()


def writes_json() -> bool:
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return any(isinstance(one, _JsonLine) for one in formatters)


def log_to_file(settings: Settings, *, is_head: bool) -> None:
    """Also log, as text, to the node's file in the run directory, the one of its role.

    A file that fails is a warning only.
    """
    worker = settings.node_name.removeprefix("worker-")
    name = "head" if is_head else f"worker-{worker}"
    path = RunFiles(settings.run_dir).logs / f"{name}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
    except OSError as error:
        log.warning("no log file %s: %s", path, error.strerror)
        return
    handler.setFormatter(_LineOfFile(settings.node_name, settings.secrets))
    root = logging.getLogger()
    for before in [one for one in root.handlers if type(one) is logging.FileHandler]:
        root.removeHandler(before)
        before.close()
    root.addHandler(handler)


class ProgressLine:
    """The newest progress: redrawn in place on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._terminal = draws()
        self._step = -1
        self._shown_at = 0.0
        self._waits = list(FIRST_STEP_SECONDS)
        self._waiting = False

    def wait(self, attempt: int, waited: float) -> None:
        """Show for how long, in seconds, an attempt has been without a step."""
        if waited < self._waits[0]:
            return
        what, more = f"attempt {attempt}", f"no step yet, {duration(int(waited))} so far"
        if self._terminal:
            self._waiting = True
            ROW.show(what, more, 0, None)
            return
        while len(self._waits) > 1 and waited >= self._waits[0]:
            self._waits.pop(0)
        if waited >= self._waits[0]:
            self._waits[0] += FIRST_STEP_SECONDS[-1]
        log.info("%s: %s", what, more)

    def show(self, progress: Progress) -> None:
        if progress.step == self._step:
            return
        self._step, self._waiting = progress.step, False
        if self._terminal:
            ROW.show(*_parts(progress), progress.step, progress.total_steps or None)
        elif time.monotonic() - self._shown_at >= PLAIN_PROGRESS_SECONDS or is_last(progress):
            self._shown_at = time.monotonic()
            fields = {"event": "progress", "details": progress.as_dict()}
            log.info("%s", sentence(progress), extra=fields)

    def end(self) -> None:
        """Leave the last step as a line; what only waits goes without a trace."""
        ROW.end(stays=not self._waiting)


def _progress_row() -> progress.Progress:
    """Return a spinner, the step, a bar and the step's numbers, in one row however narrow."""
    from rich import progress  # 0.1 s, which a node without a terminal does not need
    from rich.console import Console
    from rich.table import Column

    class CursorStays(Console):
        def show_cursor(self, show: bool = True) -> bool:
            """Leave the cursor: a process that is killed could not give it back."""
            return False

    the_rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        progress.BarColumn(max(4, shutil.get_terminal_size().columns // 6)),
        progress.TextColumn("{task.fields[more]}", markup=False, table_column=the_rest),
        expand=True,
        console=CursorStays(file=cast(TextIO, _Stdout()), highlight=False),
        refresh_per_second=REDRAWN_PER_SECOND,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class _Stdout:
    """The program's output for rich, whose own thread must not die with the terminal."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        try:
            return sys.stdout.write(text)
        except OSError as error:
            do_without(error)
        return len(text)

    def flush(self) -> None:
        try:
            sys.stdout.flush()
        except OSError as error:
            do_without(error)

    def isatty(self) -> bool:
        return True


def is_last(progress: Progress) -> bool:
    return 0 < progress.total_steps <= progress.step


def sentence(progress: Progress) -> str:
    """step 12/60 · 2 min 10 s left · reward 0.61 · held-out accuracy 54 % · KL 0.012"""
    return " · ".join(part for part in _parts(progress) if part)


def _parts(progress: Progress) -> tuple[str, str]:
    """Return the step, and the numbers of its sentence."""
    of = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = []
    if progress.eta_seconds and not is_last(progress):
        parts.append(f"{duration(round(progress.eta_seconds))} left")
    if progress.reward is not None:
        parts.append(f"reward {progress.reward:.3f}")
    if progress.loss is not None:
        parts.append(f"loss {significant(progress.loss)}")
    if progress.eval is not None:
        what, value = held_out(progress.eval, is_reward=progress.eval_is_reward)
        value = f"{100 * progress.eval:.0f} %" if what == "accuracy" else value
        parts.append(f"held-out {what} {value}")
    if progress.kl is not None:
        parts.append(f"KL {progress.kl:.4f}")
    if progress.tokens_per_second:
        parts.append(f"{progress.tokens_per_second:.0f} tokens/s")
    return f"step {progress.step}{of}", " · ".join(parts)
