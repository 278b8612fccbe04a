"""Names of runs, from what their directories say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.run import run_facts


@pytest.mark.parametrize(
    ("told", "entry", "name"),
    [
        (None, None, "job-1"),
        (None, {"name": "low-rate", "stage": "ppo"}, "low-rate"),
        (None, {"name": "", "stage": "ppo"}, "ppo"),
        ({"name": "as it runs"}, {"name": "low-rate"}, "as it runs"),
        ({"name": ["damaged"]}, {"name": 7}, "job-1"),
    ],
)
def test_a_run_has_the_name_of_its_job_before_it_begins(
    told: object, entry: object, name: str, tmp_path: Path
) -> None:
    run = RunFiles(tmp_path / "job-1")
    run.root.mkdir()
    for path, row in ((run.run, told), (run.root / "job.json", entry)):
        if row is not None:
            path.write_text(json.dumps(row))
    assert run_facts.read(run)["name"] == name
