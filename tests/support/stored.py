"""Runs whose checkpoints go to a store: a run directory, its checkpoints, and its uploads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.journal import read_events
from contract.manifest import checkpoint_path, write_manifest
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import run_identity
from entrypoint.run import upload
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import Store
from entrypoint.run.upload import Uploads
from tests.support.s3 import S3

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(upload, "LONGEST_PAUSE_SECONDS", 0.2)


def settings_of(run: Path, url: str, **more: str) -> Settings:
    environ = {
        "ROLLCALL_RUN_DIR": str(run),
        "ROLLCALL_STORAGE": url,
        "ROLLCALL_NODE_NAME": "head",
        "EXPECTED_WORKERS": "0",
        "ROLLCALL_REWARD_TIMEOUT": "20",
    }
    return read_settings(environ | more)


def begun(run: Path, url: str) -> RunFiles:
    """A run directory as the first head of a run leaves it."""
    run.mkdir(parents=True, exist_ok=True)
    files = RunFiles(run)
    run_identity.identify(settings_of(run, url), files)
    Journal(files.journal, "head").write("start", "this is the head")
    return files


def write_checkpoint(run: RunFiles, step: int, content: bytes = b"weights") -> None:
    directory = checkpoint_path(run.checkpoints, step)
    (directory / "hf").mkdir(parents=True)
    (directory / "policy.pt").write_bytes(content * step)
    (directory / "hf" / "config.json").write_text("{}")
    write_manifest(directory, step)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kinds(run: RunFiles, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run.journal) if event["kind"] == kind]


def uploaded(run: RunFiles) -> list[int]:
    return [event["details"]["step"] for event in kinds(run, "upload")]


@pytest.fixture
def run(tmp_path: Path, s3: S3) -> RunFiles:
    return begun(tmp_path / "run", s3.url)


@pytest.fixture
def uploads(run: RunFiles, s3: S3) -> Iterator[Uploads]:
    with Uploads(Store(s3.url), run, Journal(run.journal, "head")) as found:
        yield found


def finish(uploads: Uploads, patience: float = PATIENCE) -> None:
    uploads.finish(threading.Event(), grace=0.0, patience=patience)


def newest_in(s3: S3) -> int:
    return max(step for step, whole in Store(s3.url).checkpoints().items() if whole)
