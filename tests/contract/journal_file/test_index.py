"""The landmarks of a journal: what a start reads of it, however long the run is."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from contract.files import lines
from contract.journal import EventSource, append_event, newest_finished, read_events
from contract.journal_file import index as journal_index
from contract.journal_file import lines as journal_lines
from contract.journal_file.index import ROUTINE, landmarks, newest_first, renew
from contract.journal_file.lines import line_of
from contract.run_dir import RunFiles
from tests.support.damage import flipped


@pytest.fixture(autouse=True)
def short_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_index, "STRIDE", 2**14)
    monkeypatch.setattr(lines, "BLOCK", 2**13)
    forget()


def forget() -> None:
    """As a new process knows nothing of the journal."""
    journal_index._read_before.clear()


def event(kind: str, attempt: int, **details: Any) -> dict[str, Any]:
    own = {"at": "2026-01-01T00:00:01.000+00:00", "node": 'a "head"', "epoch": 1}
    return {**own, "attempt": attempt, "kind": kind, "sentence": kind, "details": details}


def long_run(path: Path, steps: int, attempts: int = 2) -> None:
    with path.open("wb") as file:
        for attempt in range(1, attempts + 1):
            rows = [event("attempt", attempt), event("resume", attempt, step=0)]
            rows += [event("step", attempt, step=n + 1) for n in range(steps)]
            rows += [event("checkpoint", attempt, step=steps)]
            rows += [event("failure", attempt, failure="unknown")]
            file.write(b"".join(line_of(row) + b"\n" for row in rows))


def read_bytes(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[int]:
    """Lists how much is read of a file whose lines are looked at."""
    seen = [0]
    known = journal_lines.glance

    def counted(line: bytes) -> Any:
        seen[0] += len(line)
        return known(line)

    monkeypatch.setattr(journal_index, "glance", counted)
    return seen


def test_a_start_reads_as_much_of_a_long_journal_as_of_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, read = read_bytes(monkeypatch, tmp_path), {}
    for steps in (500, 5_000):
        journal = tmp_path / str(steps) / "journal.jsonl"
        journal.parent.mkdir()
        long_run(journal, steps)
        renew(journal)
        forget()
        seen[0] = 0
        assert newest_finished(journal) == steps
        assert sum(1 for _ in landmarks(journal).events(["attempt"])) == 2
        read[steps] = seen[0]
    assert read[5_000] <= read[500] + journal_index.STRIDE
    assert journal.stat().st_size > 50 * read[5_000]


def test_who_appends_renews_the_index_as_the_journal_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.jsonl"
    seen = read_bytes(monkeypatch, journal)
    for step in range(1, 401):
        source = EventSource(node="driver", attempt=1)
        append_event(journal, "step", "x" * 100, {"step": step}, source=source)
    assert journal.stat().st_size > 4 * journal_index.STRIDE
    assert seen[0] < 2 * journal.stat().st_size, "each line is looked at about once"
    forget()
    seen[0] = 0
    assert newest_finished(journal) == 400
    assert seen[0] <= 1.5 * journal_index.STRIDE


def test_landmarks_are_all_events_but_routine_ones_with_and_without_an_index(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal.jsonl"
    long_run(journal, 300, attempts=5)
    with journal.open("ab") as file:
        file.write(line_of(event("stop", 5)))  # a crash came before the line's end
    rare = [one for one in read_events(journal) if one["kind"] not in ROUTINE]
    for _ in range(2):
        found = list(landmarks(journal).events())
        assert [one for one in found if one["kind"] not in ROUTINE] == rare
        assert [(one["attempt"], one["details"]["step"]) for one in found if one["kind"] == "step"]
        firsts = [one["details"]["step"] for one in found if one["kind"] == "step"]
        assert firsts == [1] * 5
        renew(journal)
        assert RunFiles(tmp_path).journal_index.exists()
        forget()


@pytest.mark.parametrize("harm", ["torn", "flipped", "empty", "of another journal", "too long"])
def test_an_index_that_does_not_fit_counts_for_nothing(tmp_path: Path, harm: str) -> None:
    journal = tmp_path / "journal.jsonl"
    long_run(journal, 300)
    renew(journal)
    index = RunFiles(tmp_path).journal_index
    content = index.read_bytes()
    if harm == "torn":
        index.write_bytes(content[: len(content) // 2])
    elif harm == "flipped":
        index.write_bytes(flipped(content, 8 * (len(content) - 40)))
    elif harm == "empty":
        index.write_bytes(b"")
    elif harm == "of another journal":
        long_run(journal, 310, attempts=3)
    else:
        os.truncate(journal, journal.stat().st_size // 2)
    forget()
    rare = [one for one in read_events(journal) if one["kind"] not in ROUTINE]
    assert [one for one in landmarks(journal).events() if one["kind"] not in ROUTINE] == rare


def test_the_newest_events_come_first_without_those_of_an_older_head(tmp_path: Path) -> None:
    journal, random_state = tmp_path / "journal.jsonl", random.Random(7)
    with journal.open("wb") as file:
        for number in range(800):
            epoch = 1 + number // 200 - (random_state.random() < 0.1)
            kind = random_state.choice(["step", "checkpoint", "roll"])
            row = {**event(kind, 1, step=number), "epoch": max(epoch, 1)}
            file.write(line_of(row)[: None if random_state.random() < 0.95 else 30] + b"\n")
    counted = list(read_events(journal))
    for kinds in (["step"], ["checkpoint", "roll"], []):
        wanted = [one for one in counted if not kinds or one["kind"] in kinds]
        assert list(newest_first(journal, *kinds)) == wanted[::-1]
    assert list(newest_first(journal, "outcome")) == []
    assert landmarks(journal).epoch() == 4


def test_a_journal_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    long_run(journal, 30)
    assert newest_finished(journal) == 30
    long_run(journal, 20)
    assert newest_finished(journal) == 20
    assert sum(1 for _ in landmarks(journal).events(["failure"])) == 2


def test_a_directory_that_takes_no_index_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.jsonl"
    long_run(journal, 300)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_index, "write_atomically", full)
    append_event(journal, "stop", "so it ends")
    assert newest_finished(journal) == 300
    assert not RunFiles(tmp_path).journal_index.exists()
