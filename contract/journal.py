"""The run's journal: appends events, and reads them without damaged lines."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from contract import lease
from contract.files import epochs, lines
from contract.files.append import append_line
from contract.files.child_variables import ATTEMPT
from contract.files.os_errors import with_path
from contract.journal_file import index
from contract.journal_file.index import newest_first
from contract.journal_file.lines import Damage, event_of, line_of
from contract.redaction import redact, redact_all, secret_texts

PRINTING = threading.RLock()
"""Held by a thread whose code may print a line in several parts, as a user's callback does."""
TURN_SECONDS = 1.0
"""How long a sentence waits for such a thread."""
EXPORT = "export"
"""Kind of the event that a trained model is written: the last act of a trainer."""
NO_REWARD = "no-reward"
"""Kind of the event that samples of a step have no reward."""


def read_events(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the journal's events, oldest first. Raises OSError.

    Damaged lines are skipped, with one warning in the life of this process. An event of an older
    head after an event of a newer head is skipped, too: the older head checked its lease in time
    but wrote too late.
    """
    damage, newest = Damage(), 0
    try:
        with with_path(journal), journal.open("rb", buffering=lines.BLOCK) as file:
            for _, line in lines.forwards(file):
                event = event_of(line)
                if line.endswith(b"\n"):  # the last line may be incomplete
                    damage.count(line, is_damaged=event is None)
                if event is not None and epochs.is_in_force(event.get("epoch"), newest):
                    newest = event.get("epoch") or newest
                    yield event
    except FileNotFoundError:
        return
    damage.warn(journal)


def newest_finished(journal: Path) -> int | None:
    """Return the step that the run finished last; None if it finished none. Raises OSError.

    The run may have gone back to an earlier step since.
    """
    newest = next(newest_first(journal, "step", "step-found"), None)
    return None if newest is None else int(newest["details"]["step"])


class WriteEvent(Protocol):
    """Records an event."""

    def __call__(self, kind: str, sentence: str, **details: Any) -> None: ...


def has_head() -> bool:
    """Return whether a head has started this program, and so has checked the job before."""
    return ATTEMPT in os.environ


def attempt_number() -> int:
    return int(os.environ.get(ATTEMPT, "1"))


def journal_writer(journal: Path) -> WriteEvent:
    """Return a function that prints the sentence of an event and appends the event."""

    def write(kind: str, sentence: str, **details: Any) -> None:
        print_event(kind, sentence)
        append_event(journal, kind, sentence, details, source=EventSource(attempt=attempt_number()))

    return write


def print_event(kind: str, sentence: str, **details: Any) -> None:
    """Print the sentence of an event, for a run without a journal.

    It comes after the lines of another thread that has PRINTING, unless those take long.
    """
    has_turn = PRINTING.acquire(timeout=TURN_SECONDS)
    try:
        print(f"{sentence}\n", end="", flush=True)  # one write, which no other can part
    finally:
        if has_turn:
            PRINTING.release()


def timestamp(seconds: float | None = None) -> str:
    """Return the time now, or `seconds` after the epoch: UTC, ISO 8601 with milliseconds."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """The process that appends an event."""

    attempt: int | None = None
    node: str | None = None
    """None: the node's name in this process's environment, else the host's name."""
    claim: lease.Claim | None = None
    """None: the claim in this process's environment. A driver has it there, a head has not."""
    secrets: Iterable[str] = ()
    """Texts to mask, besides the secrets in this process's environment."""


def append_event(
    journal: Path,
    kind: str,
    sentence: str,
    details: Mapping[str, Any] | None = None,
    *,
    source: EventSource = EventSource(),
) -> dict[str, Any]:
    """Append one event to the run's journal, durably, and return it.

    The event is one line. Head and driver, which run on one machine, may both write without a
    lock. Secrets are masked, because an error may quote them.

    Raises SupersededError if a later head owns the run, and OSError.
    """
    claim = source.claim or lease.mine()
    hidden = secret_texts(os.environ).union(source.secrets)
    event = {
        "at": timestamp(),
        "node": source.node or os.environ.get("ROLLCALL_NODE_NAME") or socket.gethostname(),
        "epoch": claim.epoch if claim else None,
        "attempt": source.attempt,
        "kind": kind,
        "sentence": redact(sentence, hidden),
        "details": redact_all(details or {}, hidden),
    }
    lease.check(claim)
    line = line_of(event)
    end = append_line(journal, line, durable=True)
    index.appended(journal, end - len(line), end)
    return event
