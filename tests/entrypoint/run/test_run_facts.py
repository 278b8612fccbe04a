"""Names of runs, from what their directories say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.run_dir import RunFiles, name_of
from entrypoint.run import run_facts
from trainer.config.estimators import ESTIMATORS
from trainer.config.options.algorithm import AdvantageSettings


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
    assert run_facts.read(run)["name"] == run_facts.name(run) == name


@pytest.mark.parametrize(
    ("path", "name"), [("demo-1/run", "demo-1"), ("demo-1", "demo-1"), ("/run", "run")]
)
def test_a_run_without_a_name_has_that_of_its_directory_or_of_the_one_above_run(
    path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name_of(tmp_path / path) == name
    (tmp_path / path).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / path)
    assert name_of(Path()) == name


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"recipe": "builtin", "flags": {"pretrain": "/m/tiny", "prompt_data": "/d/t.jsonl"}},
            ("/m/tiny", "/d/t.jsonl", "PPO (gae)"),
        ),
        (
            {"recipe": "builtin", "flags": {"advantage_estimator": "group_norm"}},
            ("", "", "GRPO (group_norm)"),
        ),
        (
            {
                "recipe": "verl",
                "flags": {
                    "critic.model.path": "/m/critic",
                    "actor_rollout_ref.model.path": "/m/policy",
                    "data.train_files": "/d/gsm8k.parquet",
                    "algorithm.adv_estimator": "grpo",
                },
            },
            ("/m/policy", "/d/gsm8k.parquet", "grpo"),
        ),
        (
            {"recipe": "supervised", "command": ["sft"], "flags": {"dataset": "/d/sft.jsonl"}},
            ("", "/d/sft.jsonl", "SFT"),
        ),
        ({"recipe": "command", "command": ["python", "x.py"]}, ("", "", "")),
        ({"recipe": "builtin", "command": 7, "flags": ["damaged"]}, ("", "", "")),
        ({"recipe": "builtin", "command": [], "flags": {}}, ("", "", "")),  # it waits for jobs
        (
            {"recipe": "trl", "command": ["/v/bin/trl", "grpo"], "flags": {"dataset_name": "/d"}},
            ("", "/d", "GRPO"),
        ),
    ],
)
def test_the_flags_say_model_data_and_algorithm(
    row: object, told: tuple[str, str, str], tmp_path: Path
) -> None:
    run = RunFiles(tmp_path)
    run.run.write_text(json.dumps(row))
    found = run_facts.read(run)
    assert tuple(found.get(name, "") for name in ("model_path", "data", "algorithm")) == told


def test_the_estimator_of_a_run_that_gives_none_is_the_trainers_default() -> None:
    assert AdvantageSettings().estimator == run_facts.DEFAULT_ESTIMATOR
    assert run_facts.KNOWN_AS.keys() <= ESTIMATORS.keys()
