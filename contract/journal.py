"""The run's journal: appends events, and reads them without damaged lines."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from contract import lease
from contract.files import stored_json
from contract.files.append import append_line
from contract.files.os_errors import with_path
from contract.redaction import redact, redact_all, secret_texts

log = logging.getLogger(__name__)

SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"}\s*$')
NEWEST_EPOCH = 10**9
"""Largest number of a lease."""
MOST_NAMED = 5
"""Number of damaged lines that a warning names."""


EXPORT = "export"
"""Kind of the event that a trained model is written: the last act of a trainer."""


def read_events(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the journal's events, oldest first. Raises OSError.

    Damaged lines are skipped, with one warning in the life of this process. An event of an older
    head after an event of a newer head is skipped, too: the older head checked its lease in time
    but wrote too late.
    """
    try:
        with with_path(journal):
            lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    *whole, last = [event_of(line) for line in lines]
    _warn_of_damage(
        journal, [n for n, event in enumerate(whole, 1) if event is None and lines[n - 1]]
    )
    newest = 0
    for event in [*whole, last]:  # the last line may be incomplete
        epoch = (event and event.get("epoch")) or newest
        if event is not None and epoch >= newest:
            newest = epoch
            yield event


def newest_finished(events: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the step that the run finished last; None if it finished none.

    The run may have gone back to an earlier step since.
    """
    finished = None
    for event in events:
        if event["kind"] in ("step", "step-found"):
            finished = event["details"]["step"]
    return finished


_damaged: dict[Path, int] = {}
"""Journal → number of damaged lines that this process has warned of."""


def _warn_of_damage(journal: Path, numbers: Sequence[int]) -> None:
    if len(numbers) > _damaged.get(journal, 0):
        _damaged[journal] = len(numbers)
        shown = ", ".join(map(str, numbers[:MOST_NAMED]))
        more = ", ..." if len(numbers) > MOST_NAMED else ""
        what = "1 damaged line is" if len(numbers) == 1 else f"{len(numbers)} damaged lines are"
        log.warning("%s: %s skipped (%s%s)", journal, what, shown, more)


def line_of(event: Mapping[str, Any]) -> bytes:
    """Return the event as a line of JSON, with its checksum as the last field."""
    body = json.dumps(event).encode()
    return b'%s, "crc": "%08x"}' % (body[:-1], zlib.crc32(body))


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line; None if the line is damaged or has other fields.

    Its details have None for NaN and infinity. An earlier version wrote no checksum.
    """
    if seal := SEAL.search(line):
        line = line[: seal.start()] + b"}"
        if zlib.crc32(line) != int(seal[1], 16):
            return None
    try:
        event = stored_json.parsed(line, finite=True)
    except ValueError:
        return None
    return event if _is_event(event) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_moment(value: object) -> bool:
    """Return whether `value` is a time in ISO 8601, with its zone."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_epoch(value: object) -> bool:
    return value is None or (stored_json.is_count(value) and value in range(1, NEWEST_EPOCH + 1))


def _is_attempt(value: object) -> bool:
    return value is None or stored_json.is_count(value)


Fits = Callable[[object], bool]
FIELDS: Mapping[str, Fits] = {
    "at": _is_moment,
    "node": _is_text,
    "attempt": _is_attempt,
    "kind": _is_text,
    "sentence": _is_text,
}
DETAILS: Mapping[str, Fits] = {
    "step": stored_json.is_count,
    "steps": stored_json.is_count,
    "resume_from": stored_json.is_count,
    "silent_seconds": stored_json.is_number,
    "failure": _is_text,
    "outcome": _is_text,
    "answer": _is_text,
}
"""Details that readers of the journal use → check of the value; an event may lack them."""
NEEDED: Mapping[str, str] = {
    **dict.fromkeys(("step", "step-found", "resume", "restore", "checkpoint"), "step"),
    **dict.fromkeys(("checkpoint-skipped", "rank-replaced"), "step"),
    "failure": "failure",
    "outcome": "outcome",
}
"""Kind of an event → the detail that it must have."""


def _is_event(event: object) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("details"), dict):
        return False
    details: dict[str, Any] = event["details"]
    if not all(name in event and fits(event[name]) for name, fits in FIELDS.items()):
        return False
    if not _is_epoch(event.get("epoch")):
        return False
    if not all(fits(details[name]) for name, fits in DETAILS.items() if name in details):
        return False
    needed = NEEDED.get(event["kind"])
    return needed is None or needed in details


class WriteEvent(Protocol):
    """Records an event."""

    def __call__(self, kind: str, sentence: str, **details: Any) -> None: ...


def attempt_number() -> int:
    return int(os.environ.get("ROLLCALL_ATTEMPT", "1"))


def journal_writer(journal: Path) -> WriteEvent:
    """Return a function that prints the sentence of an event and appends the event."""

    def write(kind: str, sentence: str, **details: Any) -> None:
        print_event(kind, sentence)
        append_event(journal, kind, sentence, details, source=EventSource(attempt=attempt_number()))

    return write


def print_event(kind: str, sentence: str, **details: Any) -> None:
    """Print the sentence of an event, for a run without a journal."""
    print(sentence, flush=True)


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
    append_line(journal, line_of(event), durable=True)
    return event
