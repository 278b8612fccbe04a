"""A line of the journal: an event as JSON, sealed with its checksum."""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from contract.files import stored_json

log = logging.getLogger(__name__)

SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"}\s*$')
HEADER = re.compile(
    rb'\{"at": "[^"\\]*", "node": "(?:[^"\\]|\\.)*", '
    rb'"epoch": (\d+|null), "attempt": (\d+|null), "kind": "([^"\\]*)"'
)
"""Begins a line that `line_of` made of an event."""
LONGEST_SEAL = 32
"""Bytes at the end of a line that have its checksum."""
KIND = re.compile(rb'"kind": "([^"\\]*)"')
"""The kind of an event, which comes before all else that may have a field of this name."""
NEWEST_EPOCH = 10**9
"""Largest number of a lease."""


LONGEST_SENTENCE = 2**13
"""Characters. A browser needs a minute to lay out a sentence of 3 MB."""
LONGEST_TEXT = 2**16
"""Characters of any other text of an event."""


def bounded(value: Any, most: int = LONGEST_TEXT) -> Any:
    """Return a JSON value whose texts have at most about `most` characters.

    A longer text loses its middle. The field `sentence` has a limit of its own.
    """
    if isinstance(value, str):
        return value if len(value) <= most else _without_middle(value, most)
    if isinstance(value, Mapping):
        limits = {"sentence": min(most, LONGEST_SENTENCE)}
        return {name: bounded(item, limits.get(name, most)) for name, item in value.items()}
    return [bounded(item, most) for item in value] if isinstance(value, list | tuple) else value


def _without_middle(text: str, most: int) -> str:
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"


def line_of(event: Mapping[str, Any]) -> bytes:
    """Return the event as a line of JSON, with its checksum as the last field.

    A lone surrogate, as of a file name that is no UTF-8, becomes `?`: no reader takes it. Long
    texts are shortened.
    """
    body = json.dumps(event).encode()
    if len(body) > LONGEST_SENTENCE:
        event = bounded(event)
        body = json.dumps(event).encode()
    if b"\\ud" in body:
        whole = json.dumps(event, ensure_ascii=False).encode(errors="replace")
        body = json.dumps(json.loads(whole)).encode()
    return b'%s, "crc": "%08x"}' % (body[:-1], zlib.crc32(body))


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line; None if the line is damaged or has other fields.

    Its details have None for NaN and infinity. Texts that another program wrote too long are
    shortened. An earlier version wrote no checksum.
    """
    if seal := SEAL.search(line):
        line = line[: seal.start()] + b"}"
        if zlib.crc32(line) != int(seal[1], 16):
            return None
    try:
        event = stored_json.parsed(line, finite=True)
    except ValueError:
        return None
    if not _is_event(event):
        return None
    found: dict[str, Any] = bounded(event) if len(line) > LONGEST_SENTENCE else event
    return found


def may_be(line: bytes, kinds: Collection[str]) -> bool:
    """Whether a line may have an event of these kinds, or any if none is given; reads no JSON."""
    found = KIND.search(line) if kinds else None
    return found is None or found[1].decode(errors="replace") in kinds


MOST_NAMED = 5
"""Number of damaged lines that a warning names."""


@dataclass
class Damage:
    """Counts the lines of a journal, and those that are damaged."""

    lines: int = 0
    damaged: int = 0
    numbers: tuple[int, ...] = ()
    """Of the first damaged lines."""

    def count(self, line: bytes, *, is_damaged: bool) -> None:
        """Count the next line; an empty one is not damaged."""
        self.lines += 1
        if is_damaged and line.strip(b"\n"):
            self.damaged += 1
            self.numbers = (*self.numbers, self.lines)[:MOST_NAMED]

    def warn(self, journal: Path) -> None:
        """Log the damage, unless this process has warned of as much."""
        if self.damaged > _warned.get(journal, 0):
            _warned[journal] = self.damaged
            shown = ", ".join(map(str, self.numbers[:MOST_NAMED]))
            more = ", ..." if self.damaged > MOST_NAMED else ""
            what = "1 damaged line is" if self.damaged == 1 else f"{self.damaged} damaged lines are"
            log.warning("%s: %s skipped (%s%s)", journal, what, shown, more)


_warned: dict[Path, int] = {}
"""Journal → number of damaged lines that this process has warned of."""


class Glance(NamedTuple):
    """What the beginning of a line says of its event."""

    epoch: int | None
    attempt: int | None
    kind: str


def glance(line: bytes) -> Glance | None:
    """Return what `event_of` would say of these fields, several times as fast; None if damaged.

    A line with the right checksum is as it was written, so that its beginning is enough.
    """
    sealed, begins = SEAL.search(line, max(0, len(line) - LONGEST_SEAL)), HEADER.match(line)
    if (
        sealed is None
        or begins is None
        or zlib.crc32(line[: sealed.start()] + b"}") != int(sealed[1], 16)
    ):
        event = event_of(line)
        if event is None:
            return None
        return Glance(event.get("epoch"), event["attempt"], event["kind"])
    epoch, attempt = (None if text == b"null" else int(text) for text in begins.group(1, 2))
    return Glance(epoch, attempt, begins[3].decode())


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_moment(value: object) -> bool:
    """Return whether `value` is a time in ISO 8601, with its zone."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


Fits = Callable[[object], bool]
TEXTS = ("node", "kind", "sentence")
"""Fields of an event that are texts."""
DETAILS: Mapping[str, Fits] = {
    "step": stored_json.is_count,
    "steps": stored_json.is_count,
    "resume_from": stored_json.is_count,
    "silent_seconds": stored_json.is_number,
    "failure": _is_text,
    "evidence": _is_text,
    "place": _is_text,
    "service": _is_text,
    "lost": _is_text,
    "resume": _is_text,
    "outcome": _is_text,
    "ended_start": _is_text,
    "answer": _is_text,
    "by": _is_text,
    "model": _is_text,
}
"""Details that readers of the journal use → check of the value; an event may lack them."""
NEEDED: Mapping[str, str] = {
    **dict.fromkeys(("step", "step-found", "resume", "restore", "checkpoint"), "step"),
    **dict.fromkeys(("checkpoint-skipped", "rank-replaced"), "step"),
    "failure": "failure",
    "node-replaced": "lost",
    "outcome": "outcome",
}
"""Kind of an event → the detail that it must have."""


def _is_event(event: object) -> bool:
    """Return whether readers of the journal can use this. It is asked for each line."""
    if not isinstance(event, dict) or not isinstance(details := event.get("details"), dict):
        return False
    if not all(map(_is_text, map(event.get, TEXTS))) or not _is_moment(event.get("at")):
        return False
    attempt, epoch = event.get("attempt", ""), event.get("epoch")
    if not (attempt is None or stored_json.is_count(attempt)):
        return False
    if not (epoch is None or (stored_json.is_count(epoch) and 1 <= epoch <= NEWEST_EPOCH)):
        return False
    for name in details:
        if name in DETAILS and not DETAILS[name](details[name]):
            return False
    needed = NEEDED.get(event["kind"])
    return needed is None or needed in details
