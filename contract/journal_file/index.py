"""The landmarks of a journal: the events that a start needs, however long the run is.

Nearly all lines of a long journal are steps and checkpoints. `RUN/.journal.index` has the others,
and says how much of the journal it covers; the rest is read from the journal. Who appends to the
journal renews it. An index that is absent, torn, or of another journal counts for nothing: the
landmarks are then found by a pass over the journal.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from contract.files import epochs, lines, stored_json
from contract.files.os_errors import with_path
from contract.journal_file.lines import Damage, Glance, event_of, glance, may_be
from contract.run_dir import RunFiles, write_atomically

ROUTINE = frozenset({"step", "checkpoint", "eval", "best", "upload"})
"""Kinds of events that a run has more of, the longer it goes on without a fault."""
STRIDE = 2**20
"""Bytes of the journal after which the index is renewed: about so much is read besides it."""
PRINT = 2**12
"""Bytes at both ends of what an index covers, by which it knows its journal."""


@dataclass
class Landmarks:
    """The landmarks of what was read of a journal, found line by line.

    They are all events but the routine ones. Of those, the first of each kind in each attempt is a
    landmark, too.
    """

    covered: int = 0
    """Bytes of the journal that were read."""
    damage: Damage = field(default_factory=Damage)
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    """Each landmark's line, after the offset of its end."""
    _rises: list[tuple[int, int]] = field(default_factory=list)
    """From which offset on a lease number counts, and the number."""
    _seen: set[tuple[str, int | None]] = field(default_factory=set)
    """Kind and attempt of the routine events that are landmarks."""

    def epoch(self, until: int | None = None) -> int:
        """Return the newest lease number, or that of the events that end up to `until`.

        0: there is none.
        """
        place = len(self._rises)
        if until is not None:
            place = bisect_right(self._rises, until, key=lambda rise: rise[0])
        return self._rises[place - 1][1] if place else 0

    def take(self, end: int, line: bytes) -> None:
        """Look at the next line. An older head's event after a newer head's is passed over."""
        self.covered = end
        found = glance(line)
        self.damage.count(line, is_damaged=found is None)
        if found is not None:
            self.keep(end, line, found)

    def keep(self, end: int, line: bytes, found: Glance) -> None:
        """Keep a line of an event if it is a landmark."""
        name, newest = (found.kind, found.attempt), self.epoch()
        if not epochs.is_in_force(found.epoch, newest):
            return
        epoch = found.epoch or newest
        if epoch > newest:
            self._rises.append((end, epoch))
        elif found.kind in ROUTINE and name in self._seen:
            return
        if found.kind in ROUTINE:
            self._seen.add(name)
        self.kept.append((end, line))

    def events(self, kinds: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the landmarks, oldest first: all, or those of `kinds`."""
        for _, line in self.kept:
            if not may_be(line, kinds):
                continue
            event = event_of(line)
            if event is not None and (not kinds or event["kind"] in kinds):
                yield event

    def copy(self) -> Landmarks:
        own = ([*self.kept], [*self._rises], {*self._seen})
        return Landmarks(self.covered, replace(self.damage), *own)


def landmarks(journal: Path) -> Landmarks:
    """Return the landmarks of the journal, that of an incomplete last line too. Raises OSError.

    There are none without a journal.
    """
    try:
        with with_path(journal), journal.open("rb", buffering=lines.BLOCK) as file:
            found, rest = _read(journal, file)
    except FileNotFoundError:
        return Landmarks()
    found.damage.warn(journal)
    if rest is not None and glance(rest[1]) is not None:
        found.take(*rest)
    return found


def newest_first(journal: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the events of these kinds, or all, newest first. Raises OSError.

    So much of the journal is read, from its end, as is asked for; nothing if it has no such event.
    """
    known = landmarks(journal)
    if not any(known.events(kinds)):
        return
    with with_path(journal), journal.open("rb") as file:
        for end, line in lines.backwards(file, incomplete=True):
            if not may_be(line, kinds):
                continue
            event, newest = event_of(line), known.epoch(end)
            if event is None or (kinds and event["kind"] not in kinds):
                continue
            if epochs.is_in_force(event.get("epoch"), newest):
                yield event


def appended(journal: Path, begin: int, end: int) -> None:
    """Renew the index if it is due: this process has appended a line from `begin` to `end`."""
    if journal not in _appended_to or begin // STRIDE < end // STRIDE:
        _appended_to.add(journal)
        renew(journal)


def renew(journal: Path) -> None:
    """Renew the index if it covers much less than the journal has. Its loss does no harm."""
    if not _renewing.acquire(blocking=False):
        return
    try:
        with suppress(OSError), journal.open("rb", buffering=lines.BLOCK) as file:
            stored = _stored(journal, file)
            found, _ = _read(journal, file)
            if found.covered - (stored.covered if stored else 0) >= STRIDE:
                write_atomically(RunFiles(journal.parent).journal_index, _text(found, file))
    finally:
        _renewing.release()


_appended_to: set[Path] = set()
"""Journals to which this process has appended."""
_renewing = threading.Lock()
_read_before: dict[Path, tuple[int, Landmarks]] = {}
"""Of the journals that this process has read last: the print, and the landmarks."""
MOST_JOURNALS = 8


def _read(journal: Path, file: IO[bytes]) -> tuple[Landmarks, tuple[int, bytes] | None]:
    """Return the landmarks of the whole lines, and the incomplete last line with its end."""
    mark, before = _read_before.get(journal, (0, None))
    if before is None or mark != _print(file, before.covered):
        before = _stored(journal, file)
    found, rest = before.copy() if before else Landmarks(), None
    for end, line in lines.forwards(file, found.covered):
        if line.endswith(b"\n"):
            found.take(end, line)
        else:
            rest = (end, line)
    _read_before[journal] = (_print(file, found.covered), found.copy())
    while len(_read_before) > MOST_JOURNALS:
        _read_before.pop(next(iter(_read_before)), None)
    return found, rest


def _print(file: IO[bytes], covered: int) -> int:
    """Return a checksum of both ends of what is covered."""
    size = min(PRINT, covered)
    ends = (os.pread(file.fileno(), size, place) for place in (0, covered - size))
    return zlib.crc32(b"".join(ends))


def _text(found: Landmarks, file: IO[bytes]) -> str:
    kept = b"".join(b"%d %s" % one for one in found.kept).decode()
    head = {
        "covered": found.covered,
        "print": _print(file, found.covered),
        "damage": asdict(found.damage),
    }
    text = f"{json.dumps(head)}\n{kept}"
    return f"{zlib.crc32(text.encode()):08x}\n{text}"


def _stored(journal: Path, file: IO[bytes]) -> Landmarks | None:
    """Return what the index has of this journal; None if there is no index of it."""
    try:
        checksum, _, text = RunFiles(journal.parent).journal_index.read_bytes().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(text):
            return None
        head, _, kept = text.partition(b"\n")
        row = stored_json.parsed(head)
        covered = row["covered"]
        if row["print"] != _print(file, covered):
            return None
        made = Landmarks(damage=Damage(**row["damage"]))
        for line in kept.splitlines(keepends=True):
            end, _, event = line.partition(b" ")
            if found := glance(event):
                made.keep(int(end), event, found)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    made.covered = covered
    return made
