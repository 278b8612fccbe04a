"""Logs that are read piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.files.plain_files import NotPlainError
from entrypoint.run import log_files


def write(directory: Path, name: str, content: bytes) -> None:
    (directory / f"{name}.log").write_bytes(content)


def test_pieces_have_every_character_once_also_one_that_is_half_written(tmp_path: Path) -> None:
    content = "Schritt 1 → weiter\n".encode()
    text, offset = "", 0
    for end in range(len(content) + 1):
        write(tmp_path, "attempt-1", content[:end])
        piece = log_files.read(tmp_path, "attempt-1", offset)
        text, offset = text + piece.text, piece.offset
    assert text == content.decode()
    assert offset == len(content)


def test_a_negative_offset_counts_from_the_end(tmp_path: Path) -> None:
    write(tmp_path, "head", b"one\ntwo\n")
    assert log_files.read(tmp_path, "head", -4) == ("two\n", 8)
    assert log_files.read(tmp_path, "head", -400) == ("one\ntwo\n", 8)


def test_a_log_that_was_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    write(tmp_path, "actors-w", b"one\ntwo\n")
    assert log_files.read(tmp_path, "actors-w", 8) == ("", 8)
    write(tmp_path, "actors-w", b"new\n")
    assert log_files.read(tmp_path, "actors-w", 8) == ("new\n", 4)


def test_a_long_log_comes_in_pieces(tmp_path: Path) -> None:
    write(tmp_path, "head", b"x" * (log_files.MOST_BYTES + 5))
    first = log_files.read(tmp_path, "head", 0)
    assert first.offset == log_files.MOST_BYTES
    assert log_files.read(tmp_path, "head", first.offset).text == "xxxxx"


def test_logs_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("attempt-10", "head", "attempt-9", "worker-a1"):
        write(tmp_path, name, b"")
    (tmp_path / "stacks-attempt-1.txt").touch()
    assert log_files.names(tmp_path) == ["attempt-9", "attempt-10", "head", "worker-a1"]
    assert log_files.names(tmp_path / "absent") == []


def test_a_run_that_has_not_begun_has_an_empty_journal_and_no_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    assert log_files.read(logs, log_files.JOURNAL, -400) == ("", 0)
    with pytest.raises(FileNotFoundError):
        log_files.read(logs, "head", 0)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_log_that_is_a_link_is_neither_listed_nor_read(
    link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    (logs := tmp_path / "logs").mkdir()
    (tmp_path / ".token").write_text("the token")
    link(tmp_path / ".token", logs / "tok.log")
    assert log_files.names(logs) == []
    assert not log_files.is_there(logs, "tok")
    with pytest.raises(NotPlainError):
        log_files.read(logs, "tok", 0)


def test_a_name_with_a_null_character_is_no_log(tmp_path: Path) -> None:
    assert not log_files.is_there(tmp_path, "a\0b")
