"""A local working directory as an archive, made by the program that makes it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.job.working_dir import PackError, pack


def test_a_file_name_that_is_not_utf_8_is_named_with_a_remedy(tmp_path: Path) -> None:
    given, into = tmp_path / "given", tmp_path / "into"
    for directory in (given / "sub", into):
        directory.mkdir(parents=True)
    name = os.path.join(os.fsencode(given), b"sub", b"caf\xe9.py")  # noqa: PTH118 - bytes
    with open(name, "w"):  # noqa: PTH123
        pass
    with pytest.raises(PackError, match=r"b'sub/caf\\xe9.py' is not UTF-8: rename it") as caught:
        pack({"working_dir": str(given)}, into)
    assert "\n" not in str(caught.value)
    (given / ".rayignore").write_text("sub/\n")
    package = pack({"working_dir": str(given)}, into).path
    assert ".rollcall" in zipfile.ZipFile(package).namelist()


def _run(root: Path) -> RunFiles:
    """Make a directory with what each run leaves."""
    run = RunFiles(root)
    for directory in (run.leases, run.logs, run.jobs):
        directory.mkdir(parents=True)
    for file in (run.token, run.journal, run.logs / "head.log"):
        file.write_text("x")
    return run


KEY = "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n"


def test_run_directories_and_files_with_keys_are_never_packed_and_are_named(tmp_path: Path) -> None:
    given, into = tmp_path / "given", tmp_path / "into"
    into.mkdir()
    _run(given / "run [1] #a")
    _run(given / "deep" / "run2")
    (given / "tls").mkdir()
    (given / "tls" / "key.pem").write_text(KEY)
    (given / "copy").mkdir()
    (given / "copy" / ".token").write_text("x")
    (given / "rollcall-run1.tar.gz").write_text("x")
    (given / "latest").symlink_to(given / "deep" / "run2")
    for name in ("job.py", "journal.jsonl", "cert.pem"):
        (given / name).write_text("-----BEGIN CERTIFICATE-----\n")
    (given / "test_keys.py").write_text(f'KEY = """\n{KEY}"""\n')
    package = pack({"working_dir": str(given)}, into)
    packed = {name for name in zipfile.ZipFile(package.path).namelist() if not name.endswith("/")}
    assert packed == {".rollcall", "job.py", "journal.jsonl", "cert.pem", "test_keys.py"}
    assert package.left_out == (
        "copy/.token",
        "deep/run2",
        "latest",
        "rollcall-run1.tar.gz",
        "run [1] #a",
        "tls/key.pem",
    )
    assert "copy/.token, deep/run2" in package.note
    assert package.note.count("1 more") == 1


def test_a_working_directory_that_is_a_run_directory_has_only_the_users_files(
    tmp_path: Path,
) -> None:
    given, into = tmp_path / "given", tmp_path / "into"
    into.mkdir()
    _run(given)
    (given / "job.py").write_text("")
    package = pack({"working_dir": str(given)}, into)
    names = set(zipfile.ZipFile(package.path).namelist())
    assert names == {".rollcall", "job.py", "journal.jsonl"}
    assert package.left_out == (".leases", ".token", "jobs", "logs")


def test_what_a_pattern_leaves_out_already_is_not_named(tmp_path: Path) -> None:
    given, into = tmp_path / "given", tmp_path / "into"
    into.mkdir()
    _run(given / "runs" / "one")
    (given / ".gitignore").write_text("runs/\n")
    (given / "job.py").write_text("")
    assert pack({"working_dir": str(given)}, into).note == ""
