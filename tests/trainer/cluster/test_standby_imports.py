"""Which of Ray's workers import what a rank needs before they have work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray

from contract.launch.standby_ranks import VARIABLE
from trainer.cluster import rank_imports, standby_imports


class Context:
    """Ray's context of a process with this job."""

    def __init__(self, job: str) -> None:
        self._job = job

    def get_job_id(self) -> str:
        return self._job


@pytest.mark.parametrize(
    ("variables", "job", "stands_by"),
    [
        ({VARIABLE: "1"}, "ffffffff", True),
        ({VARIABLE: "1"}, "01000000", False),
        ({}, "ffffffff", False),
    ],
    ids=["for a rank, no job", "for a rank of a job", "for no rank"],
)
def test_a_worker_imports_ahead_if_it_is_for_a_rank_and_for_no_job_yet(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], job: str, stands_by: bool
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: Context(job))
    assert standby_imports.stands_by() is stands_by


def test_imports_that_open_a_gpu_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rank_imports.open_gpu() == ""
    device = tmp_path / "nvidia-uvm"
    monkeypatch.setattr(rank_imports, "DEVICES", (str(device),))
    opened = os.open(device, os.O_CREAT)
    try:
        assert rank_imports.open_gpu() == str(device)
    finally:
        os.close(opened)
