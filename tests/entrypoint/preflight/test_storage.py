"""The run directory and Ray's own directory, on real file systems."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.files import ray_home
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, decide
from entrypoint.preflight import storage
from entrypoint.preflight.check import Context
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.verdict import Finding, Verdict

HEAD = Head(1, 1, "a test")
NOBODY = 65534
OTHER_FILE_SYSTEM = "/dev/shm"
REALLY_MOUNTED = storage.is_mounted


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: for the test, this process is nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def run_dir(path: Path) -> Finding:
    settings = read_settings({"ROLLCALL_RUN_DIR": "/run-of-a-test"})
    return storage.run_dir(Context(HEAD, replace(settings, run_dir=path)))


def temp_dir(path: Path) -> Finding:
    return storage.temp_dir(Context(HEAD, read_settings({"ROLLCALL_RAY_TEMP_DIR": str(path)})))


def test_a_writable_directory_passes_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    finding = run_dir(tmp_path)
    assert finding.verdict in (Verdict.PASS, Verdict.WARN)  # by the free space
    assert "free" in finding.evidence
    assert list(tmp_path.iterdir()) == []


def test_without_the_variable_a_machine_alone_is_told_to_set_it_and_with_it_to_make_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "is_mounted", lambda path: False)
    alone, missing = Head(0, 0, "a test"), tmp_path / "missing"
    default = replace(read_settings({}), run_dir=missing)
    assert "set ROLLCALL_RUN_DIR=$PWD/run" in storage.run_dir(Context(alone, default)).remedy
    given = read_settings({"ROLLCALL_RUN_DIR": str(missing)})
    assert f"mkdir -p {missing}" in storage.run_dir(Context(alone, given)).remedy


def test_a_missing_directory_fails_and_is_not_made_if_nothing_is_mounted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "is_mounted", lambda path: False)
    assert not REALLY_MOUNTED(Path("/no-such-volume/run"))
    finding = run_dir(tmp_path / "missing")
    assert finding.verdict is Verdict.FAIL
    assert "does not exist" in finding.evidence
    assert "ROLLCALL_RUN_DIR" in finding.remedy
    assert not (tmp_path / "missing").exists()


def test_the_remedy_for_one_machine_is_whole_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does what the first finding says gets no second one."""
    monkeypatch.setattr(storage, "is_mounted", lambda path: False)
    made = "`mkdir run`, and set ROLLCALL_RUN_DIR=$PWD/run"
    for given, said in (
        ({}, f". For this machine alone: set EXPECTED_WORKERS=0, {made}"),
        ({"EXPECTED_WORKERS": "0"}, f"{made}; in a container, mount a directory at /no/such"),
        ({"ROLLCALL_RUN_DIR": "/no/such"}, "set EXPECTED_WORKERS=0, `mkdir -p /no/such`"),
    ):
        settings = replace(read_settings(given), run_dir=Path("/no/such"))
        finding = storage.run_dir(Context(decide(settings), settings))
        assert finding.remedy.endswith(said)


def test_a_missing_directory_on_a_mounted_volume_is_made() -> None:
    """The files in `compose/` name /shared/run and /workspace/run; a new volume is empty."""
    with tempfile.TemporaryDirectory(dir=OTHER_FILE_SYSTEM) as volume:
        path = Path(volume) / "team/run"
        assert "does not exist" not in run_dir(path).evidence
        assert path.is_dir()


def test_a_volume_that_takes_no_directory_says_why() -> None:
    evidence = run_dir(Path("/proc/missing/run")).evidence
    assert evidence.startswith("/proc/missing/run does not exist and cannot be made: ")


def test_a_file_in_its_place_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a directory" in run_dir(tmp_path / "file").evidence


def test_a_file_system_that_takes_no_files_fails_even_for_root() -> None:
    finding = run_dir(Path("/proc"))
    assert finding.verdict is Verdict.FAIL
    assert "cannot be written" in finding.evidence


@pytest.mark.usefixtures("unprivileged")
def test_a_read_only_directory_fails_with_the_users_id(open_directory: Path) -> None:
    open_directory.chmod(0o555)
    finding = run_dir(open_directory)
    assert finding.verdict is Verdict.FAIL
    assert "Permission denied" in finding.evidence
    assert f"user {os.geteuid()}" in finding.remedy


@pytest.mark.usefixtures("unprivileged")
def test_a_directory_below_one_that_may_not_be_entered_fails(open_directory: Path) -> None:
    open_directory.chmod(0o600)
    try:
        finding = run_dir(open_directory / "run")
        assert finding.verdict is Verdict.FAIL
        assert "Permission denied" in finding.evidence
        assert temp_dir(open_directory / "ray").verdict is Verdict.FAIL
    finally:
        open_directory.chmod(0o755)


def test_an_unusable_run_directory_ends_with_73(tmp_path: Path) -> None:
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path / "missing")})
    report = run_checks(HEAD, settings, storage.CHECKS)
    assert [result.name for result in report.fails] == ["host.run_dir"]
    assert report.exit_code == 73


def test_free_space_is_judged(tmp_path: Path) -> None:
    assert storage.judge_space(tmp_path, least=1, enough=1).verdict is Verdict.PASS
    assert storage.judge_space(tmp_path, least=1, enough=1 << 62).verdict is Verdict.WARN
    assert storage.judge_space(tmp_path, least=1 << 62, enough=1 << 62).verdict is Verdict.FAIL


def test_a_storage_whose_clock_differs_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    finding = run_dir(tmp_path)
    assert finding.verdict is Verdict.WARN
    assert "in their clocks" in finding.evidence


def test_rays_directory_may_be_made_later_below_one_that_is_there(open_directory: Path) -> None:
    finding = temp_dir(open_directory / "a" / "ray")
    assert finding.verdict in (Verdict.PASS, Verdict.WARN)
    assert str(open_directory) in finding.evidence


def test_rays_directory_cannot_lie_below_a_file(open_directory: Path) -> None:
    (open_directory / "file").touch(mode=0o777)
    assert temp_dir(open_directory / "file").verdict is Verdict.FAIL


def test_a_default_that_is_too_long_for_sockets_fails(open_directory: Path) -> None:
    long = open_directory / ("x" * ray_home.LONGEST)
    finding = storage.temp_dir(Context(HEAD, read_settings({"TMPDIR": str(long)})))
    assert finding.verdict is Verdict.FAIL
    assert f"Ray's sockets there allow {ray_home.LONGEST}" in finding.evidence
    assert "ROLLCALL_RAY_TEMP_DIR" in finding.remedy


def test_no_usable_temporary_directory_fails(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    finding = temp_dir(open_directory)
    assert finding.verdict is Verdict.FAIL
    assert "No usable temporary directory" in finding.evidence
    assert "TMPDIR" in finding.remedy


def test_a_temporary_directory_that_is_not_used_is_a_warning(open_directory: Path) -> None:
    given = {"ROLLCALL_RAY_TEMP_DIR": str(open_directory), "TMPDIR": "/scratch/missing"}
    finding = storage.temp_dir(Context(HEAD, read_settings(given)))
    assert finding.verdict is Verdict.WARN
    assert "TMPDIR=/scratch/missing takes no files" in finding.evidence
