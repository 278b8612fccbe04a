"""Files of a run directory are read as they seem to be: no link, no other user's file, no pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contract.files.plain_files import (
    NotPlainError,
    append_plain,
    create_plain,
    open_plain,
    plain_names,
)

NOBODY = 65534


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("the token")
    return file


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (made := tmp_path / "run" / "logs").mkdir(parents=True)
    return made


def test_a_plain_file_is_read_and_appended_to(logs: Path) -> None:
    append_plain(logs / "a.log", b"one ")
    append_plain(logs / "a.log", b"two")
    with open_plain(logs / "a.log", below=logs.parent) as file:
        assert file.read() == b"one two"
    assert plain_names(logs) == ["a.log"]
    with pytest.raises(FileNotFoundError):
        open_plain(logs / "b.log")


def planted(way: str, logs: Path, secret: Path) -> Path:
    """Return the path of a log by which a reader would reach the secret."""
    place = logs / "a.log"
    if way == "link":
        place.symlink_to(secret)
    elif way == "relative link":
        place.symlink_to("../../secret")
    elif way == "hard link":
        os.link(secret, place)
    elif way == "linked directory":
        logs.rmdir()
        logs.symlink_to(secret.parent)
        return logs / secret.name
    elif way == "parent":
        return logs / ".." / ".." / secret.name
    elif way == "pipe":
        os.mkfifo(place)
    elif way == "directory":
        place.mkdir()
    else:
        place.write_text("planted")
        os.chown(place, NOBODY, NOBODY)
    return place


WAYS = ("link", "relative link", "hard link", "linked directory", "parent", "pipe", "directory")


@pytest.mark.parametrize("way", WAYS)
def test_what_leads_elsewhere_is_refused(way: str, logs: Path, secret: Path) -> None:
    path = planted(way, logs, secret)
    with pytest.raises(NotPlainError):
        open_plain(path, below=logs.parent)
    if logs.is_symlink():
        with pytest.raises(NotPlainError):
            plain_names(logs)
    else:
        assert plain_names(logs) == []
    assert secret.read_text() == "the token"


@pytest.mark.parametrize("way", ["link", "hard link"])
def test_nothing_is_written_through_a_link(way: str, logs: Path, secret: Path) -> None:
    path = planted(way, logs, secret)
    with pytest.raises(NotPlainError):
        append_plain(path, b"more")
    with create_plain(path, below=logs.parent) as file:
        file.write(b"new")
    assert secret.read_text() == "the token"
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_another_users_file_is_refused_but_not_the_owners(logs: Path, secret: Path) -> None:
    path = planted("another user's", logs, secret)
    with pytest.raises(NotPlainError, match="another user"):
        open_plain(path, below=logs.parent)
    os.chown(logs, NOBODY, NOBODY)  # as an NFS server gives away what root makes
    with open_plain(path, below=logs.parent) as file:
        assert file.read() == b"planted"
    with open_plain(planted("another user's", logs.parent, secret)) as file:
        assert file.read() == b"planted"


def test_a_name_that_is_not_utf_8_is_left_out(logs: Path) -> None:
    Path(os.fsdecode(bytes(logs) + b"/\xff.log")).touch()
    assert plain_names(logs) == []
