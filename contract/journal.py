"""The run's journal: events are appended, and read again, damaged lines passed over."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contract import lease, stored_json
from contract.os_errors import named
from contract.redaction import redact, redact_all, secret_texts

log = logging.getLogger(__name__)

SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"}\s*$')
NEWEST_EPOCH = 10**9
"""A number above it is no lease's."""
MOST_NAMED = 5
"""Damaged lines whose numbers are said."""


def read_events(journal: Path) -> Iterator[dict[str, Any]]:
    """The journal's events, oldest first. Raises OSError.

    A damaged line is passed over, and said in the log once in the life of this process. So is an
    event of an older head after one of a newer: what froze between its look at the leases and its
    write comes too late to count.
    """
    try:
        with named(journal):
            lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    *whole, last = [event_of(line) for line in lines]
    _say_damaged(journal, [n for n, event in enumerate(whole, 1) if event is None and lines[n - 1]])
    newest = 0
    for event in [*whole, last]:  # the last may be under way, or torn by a crash
        epoch = (event and event.get("epoch")) or newest
        if event is not None and epoch >= newest:
            newest = epoch
            yield event


def newest_finished(events: Iterable[Mapping[str, Any]]) -> int | None:
    """The step that the run has finished last, whether it was gone back from since or not; None
    where it has finished none."""
    finished = None
    for event in events:
        if event["kind"] in ("step", "step-found"):
            finished = event["details"]["step"]
    return finished


_damaged: dict[Path, int] = {}
"""Journals that this process has read → how many damaged lines of each it has said."""


def _say_damaged(journal: Path, numbers: Sequence[int]) -> None:
    if len(numbers) > _damaged.get(journal, 0):
        _damaged[journal] = len(numbers)
        shown = ", ".join(map(str, numbers[:MOST_NAMED]))
        more = ", ..." if len(numbers) > MOST_NAMED else ""
        what = "1 damaged line is" if len(numbers) == 1 else f"{len(numbers)} damaged lines are"
        log.warning("%s: %s skipped (%s%s)", journal, what, shown, more)


def line_of(event: Mapping[str, Any]) -> bytes:
    """A line of JSON, with its checksum as the last field."""
    body = json.dumps(event).encode()
    return b'%s, "crc": "%08x"}' % (body[:-1], zlib.crc32(body))


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event; None for a line that is not UTF-8, not JSON, or JSON of another shape, or that has
    another checksum than it says. An earlier version wrote none."""
    if seal := SEAL.search(line):
        line = line[: seal.start()] + b"}"
        if zlib.crc32(line) != int(seal[1], 16):
            return None
    try:
        event = stored_json.parsed(line)
    except ValueError:
        return None
    return event if _is_event(event) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_moment(value: object) -> bool:
    """Whether it is a time in ISO 8601, with its zone."""
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
"""What readers of the journal count on, of whatever event has it."""
NEEDED: Mapping[str, str] = {
    **dict.fromkeys(("step", "step-found", "resume", "restore", "checkpoint"), "step"),
    **dict.fromkeys(("checkpoint-skipped", "rank-replaced"), "step"),
    "failure": "failure",
    "outcome": "outcome",
}
"""Kind of an event → what its details must have."""


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


Tell = Callable[..., None]
"""Called with an event's kind and sentence, and its details by name."""


def attempt_number() -> int:
    return int(os.environ.get("ROLLCALL_ATTEMPT", "1"))


def teller(journal: Path) -> Tell:
    def tell(kind: str, sentence: str, **details: Any) -> None:
        print(sentence, flush=True)
        append_event(journal, kind, sentence, details, attempt=attempt_number())

    return tell


def aloud(kind: str, sentence: str, **details: Any) -> None:
    """For a run that keeps no journal."""
    print(sentence, flush=True)


def timestamp(seconds: float | None = None) -> str:
    """Now, or so many seconds after the epoch: UTC, ISO 8601 with milliseconds."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds")


def append_event(
    journal: Path,
    kind: str,
    sentence: str,
    details: Mapping[str, Any] | None = None,
    *,
    attempt: int | None = None,
    node: str | None = None,
    claim: lease.Claim | None = None,
    secrets: Iterable[str] = (),
) -> dict[str, Any]:
    """Append one event to the run's journal, durably, and return it.

    One `write` of one line on an O_APPEND descriptor: head and driver, which run on one machine,
    may both write without a lock. `claim`: the head's; a driver has it in its environment. Masked
    are `secrets`, and those that this process has in its environment: an error may quote either.

    Raises SupersededError where a later head has the run, OSError.
    """
    claim = claim or lease.mine()
    hidden = secret_texts(os.environ).union(secrets)
    event = {
        "at": timestamp(),
        "node": node or os.environ.get("ROLLCALL_NODE_NAME") or socket.gethostname(),
        "epoch": claim.epoch if claim else None,
        "attempt": attempt,
        "kind": kind,
        "sentence": redact(sentence, hidden),
        "details": redact_all(details or {}, hidden),
    }
    lease.check(claim)
    descriptor = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with named(journal):
            # A line that a crash tore has no end: it must not take this one with it.
            start = b"\n" if _is_torn(descriptor) else b""
            os.write(descriptor, start + line_of(event) + b"\n")
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return event


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
