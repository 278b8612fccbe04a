"""The check of the store, against a real server."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.config.role import Head, Worker
from entrypoint.preflight import storage
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Verdict
from entrypoint.run.object_store import Store
from tests.support.s3 import S3, s3
from tests.support.stored import run, settings_of

__all__ = ["run", "s3"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server shares this process, which may be slow on a busy machine."""
    monkeypatch.setattr(storage, "STORE_SECONDS", 120.0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-bucket-of-this-name/x", "there is no such bucket"),
        ("gs://bucket", "install gcsfs"),
    ],
)
def test_a_store_that_cannot_be_used_is_a_fault_in_words(
    tmp_path: Path, s3: S3, url: str, words: str
) -> None:
    finding = storage.store(Context(Head(0, 0, "a test"), settings_of(tmp_path, url)))
    assert finding.verdict is Verdict.FAIL
    assert words in finding.evidence
    assert "a-secret-key" not in finding.evidence + finding.remedy


def test_missing_rights_and_a_missing_package_are_faults_in_words(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(Head(0, 0, "a test"), settings_of(tmp_path, s3.url))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "s3fs", None)
        known = sys.modules["fsspec.registry"]._registry  # classes of an import before
        patch.delitem(known, "s3", raising=False)
        assert "install s3fs" in storage.store(context).evidence
    with monkeypatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("HOME", str(tmp_path))
        assert "it has no credentials" in storage.store(context).evidence
    monkeypatch.setattr("moto.core.responses.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
    assert "it does not allow this" in storage.store(context).evidence


def test_a_store_that_is_away_only_warns_a_run_that_has_begun(
    tmp_path: Path, run: RunFiles, s3: S3
) -> None:
    role = Head(0, 0, "a test")
    assert storage.store(Context(role, settings_of(run.root, s3.url))).verdict is Verdict.PASS
    assert s3.names().keys() == set()
    s3.stop()
    (tmp_path / "new").mkdir()
    verdicts = [
        storage.store(Context(role, settings_of(directory, s3.url))).verdict
        for directory in (run.root, tmp_path / "new")
    ]
    assert verdicts == [Verdict.WARN, Verdict.FAIL]
    s3.start()


def test_a_store_that_is_silent_counts_as_one_that_is_away(
    run: RunFiles, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the check's own limit, which fails the check of any run."""
    monkeypatch.setattr(storage, "STORE_SECONDS", 0.1)
    monkeypatch.setattr(Store, "probe", lambda _: threading.Event().wait(5))
    finding = storage.store(Context(Head(0, 0, "a test"), settings_of(run.root, s3.url)))
    assert finding.verdict is Verdict.WARN
    assert "no answer for 0 s" in finding.evidence


def test_only_a_head_with_a_store_is_examined(tmp_path: Path) -> None:
    token = {"ROLLCALL_TOKEN": "a-token-of-sixteen"}
    on_worker = settings_of(tmp_path, "s3://bucket", EXPECTED_WORKERS="1", **token)
    for context in (
        Context(Worker("10.0.0.1", "a test"), on_worker),
        Context(Head(0, 0, "a test"), settings_of(tmp_path, "head")),
    ):
        assert storage.store(context).verdict is Verdict.SKIP
