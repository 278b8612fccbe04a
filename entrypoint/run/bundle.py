"""The files of a run for a bug report: the ends of long files, a limited size, no secrets."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from urllib.parse import quote

from contract.files import stored_json
from contract.files.plain_files import open_plain
from contract.journal_file.lines import event_of, line_of
from contract.redaction import named_secrets, redact, redact_all, redact_known
from contract.run_dir import JOB_ENTRY, RunFiles
from entrypoint.run.errors import describe
from entrypoint.run.token import READ_ONLY

MOST_BYTES = 64 * 2**20
"""Limit of all files of a bundle together, before they are compressed."""
BEGIN_BYTES, END_BYTES = 2**16, 2**18
"""What is kept of a file that is longer than both together."""
JOURNAL_BYTES = 8 * 2**20
MOST_JOBS = 5
"""Submitted jobs whose files are in the bundle, the newest."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    text: str
    note: str = ""
    """What is missing of the file; "" if it is whole."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Gathered:
    members: tuple[Member, ...]
    left_out: tuple[LeftOut, ...]


def gather(run: RunFiles) -> Gathered:
    """Return the files of the run as they are, with their secrets, the most important first.

    A file that cannot be read, or does not fit any more, is left out.
    """
    members: list[Member] = []
    left_out: list[LeftOut] = []
    room = MOST_BYTES
    for path, end in _files(run):
        name = os.fsencode(path.relative_to(run.root)).decode(errors="replace")
        if room <= 0:
            left_out.append(LeftOut(name, f"the bundle has {MOST_BYTES // 2**20} MiB already"))
            continue
        try:
            with open_plain(path, run.root) as file:
                member = _read(file, name, end)
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out.append(LeftOut(name, describe(error)))
            continue
        members.append(member)
        room -= len(member.text)
    return Gathered(tuple(members), tuple(left_out))


def without_secrets(found: Gathered, secrets: Iterable[str]) -> Gathered:
    """Return the files with all secrets masked.

    Masked are `secrets`, values of options and variables with a secret's name, and such values
    wherever else they are; also read-only keys of whatever token.
    """
    texts = [member.text for member in found.members]
    named = frozenset().union(*map(named_secrets, texts), *map(READ_ONLY.findall, texts))
    known = frozenset(form for secret in named.union(secrets) for form in _forms(secret))
    members = (replace(one, text=_masked(one, known)) for one in found.members)
    left_out = (LeftOut(one.name, redact(one.why, known)) for one in found.left_out)
    return Gathered(tuple(members), tuple(left_out))


def _forms(secret: str) -> set[str]:
    """Return a secret as it is, and as JSON and a URL write it."""
    return {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}


def _files(run: RunFiles) -> Iterator[tuple[Path, int]]:
    """Yield the files of a run, each with how many bytes of its end are wanted."""
    yield from ((path, END_BYTES) for path in (run.run, run.result, run.progress, run.phase))
    yield run.journal, JOURNAL_BYTES
    logs = _newest_first(run.logs.rglob("*"))
    yield from ((path, END_BYTES) for path in logs if not path.is_dir())
    yield run.metrics, END_BYTES
    for job in _newest_first(run.jobs.glob("*"))[:MOST_JOBS]:
        yield job / JOB_ENTRY, END_BYTES
        yield from _files(RunFiles(job))


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    found = []
    with suppress(OSError):
        for path in paths:
            with suppress(OSError):
                found.append((path.lstat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def _read(file: IO[bytes], name: str, end: int) -> Member:
    """Return a file, or of a long one beginning and end. Raises OSError."""
    size = file.seek(0, 2)
    file.seek(0)
    if size <= BEGIN_BYTES + end:
        return Member(name, file.read(BEGIN_BYTES + end).decode(errors="replace"))
    begin = file.read(BEGIN_BYTES)
    file.seek(size - end)
    last = file.read(end)
    begin = begin[: begin.rfind(b"\n") + 1]  # whole lines: half a secret would not be masked
    last = last[last.find(b"\n") + 1 or len(last) :]
    note = f"{len(begin)} bytes of its beginning and {len(last)} of its end, of {size}"
    gap = (
        b""
        if _is_json(name)
        else b"[... %d bytes are left out ...]\n" % (size - len(begin) - len(last))
    )
    return Member(name, (begin + gap + last).decode(errors="replace"), note)


def _is_json(name: str) -> bool:
    return name.endswith((".json", ".jsonl")) or Path(name).name == ".phase"


def _masked(member: Member, secrets: frozenset[str]) -> str:
    there = frozenset(secret for secret in secrets if secret in member.text)

    def event(line: str) -> str:
        """With a new checksum if it changes, so that `report` reads the bundle's journal."""
        found = event_of(line.encode())
        masked = redact_all(found, there)
        if found is None or masked == found:
            return redact(line, there)
        return line_of(masked).decode()

    def value(text: str) -> str:
        """JSON, with secrets known by the names of their fields, too."""
        try:
            return json.dumps(redact_all(stored_json.parsed(text.encode()), there))
        except ValueError:
            return redact(text, there)

    if Path(member.name).name == "journal.jsonl":
        return _each_line(member.text, event)
    if member.name.endswith(".jsonl"):
        return _each_line(member.text, value)
    if _is_json(member.name):
        return value(member.text)
    return _each_line(redact_known(member.text, there), redact)


def _each_line(text: str, mask: Callable[[str], str]) -> str:
    return "".join(mask(line.rstrip("\n")) + "\n" for line in io.StringIO(text, newline="\n"))
