"""An exception class is the user's if a file of the user's defines it, wherever that file lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint.job.failures.classes import AttemptResult, classify, error_of_code, explain
from entrypoint.job.failures.evidence_log import EvidenceLog
from entrypoint.job.failures.user_modules import is_of_user, looked_up
from entrypoint.run.failure_classes import FailureClass

BAD = "class Bad(Exception): ...\nclass Table:\n    class Empty(Exception): ...\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A user's files; `datasets` has data, and `vendored` lies among installed packages."""
    for name in ("myerrors.py", "lib/__init__.py", "lib/errors.py", "rewards/near.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BAD)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "vendored.py").write_text(BAD)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "is_users"),
    [
        *(("reward", True), ("near", True), ("myerrors", True), ("lib.errors", True)),
        *(("lib", True), ("myerrors.Table", True), ("rewards.near", True)),
        *(("httpx", False), ("datasets.exceptions", False), ("errors", False)),
    ],
)
def test_a_module_is_the_users_if_its_file_lies_beside_or_above(
    job: Path, module: str, *, is_users: bool
) -> None:
    assert is_of_user(module, str(job / "rewards" / "reward.py")) is is_users


def test_no_module_among_installed_packages_is_the_users(job: Path) -> None:
    assert not is_of_user("vendored", str(job / "site-packages" / "more" / "reward.py"))


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("from myerrors import Bad\nraise Bad('row 3')\n", FailureClass.CODE),
        ("from lib.errors import Bad\nraise Bad\n", FailureClass.CODE),
        ("from myerrors import Table\nraise Table.Empty('no row')\n", FailureClass.CODE),
        ("from http.client import BadStatusLine\nraise BadStatusLine('?')\n", FailureClass.UNKNOWN),
        ("from myerrors import Bad\nraise Bad('the server answered 503')\n", FailureClass.UNKNOWN),
    ],
)
def test_what_a_program_raises_of_an_imported_class_is_of_the_code(
    job: Path, source: str, failure: FailureClass
) -> None:
    (job / "reward.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "reward.py"], cwd=job, capture_output=True, text=True, check=False
    )
    log = EvidenceLog(lambda: 0)
    for line in done.stderr.splitlines():
        log.read(line)
    seen = AttemptResult(
        status="FAILED",
        exit_code=done.returncode,
        last_error=log.last_error,
        evidence=log.at(0),
        told_error=log.told_error(0),
        told_place=log.told_place(),
        told_is_raised_there=log.told_is_raised_there(),
    )
    result = looked_up(seen)
    assert classify(result) is failure
    place = error_of_code(explain(result, failure), failure).place
    assert place == (f"{job / 'reward.py'}:2" if failure is FailureClass.CODE else "")
