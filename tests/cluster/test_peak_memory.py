"""A hybrid run's memory, phase by phase: what each process measured against what the plan says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from contract.exit_codes import ExitCode
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.ray_nodes import short_directory
from tests.support.tiny_run import Tiny, metric_rows, to_argv
from trainer.cluster import memory_estimate
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.schema import flags_of

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(300)]

FACTOR = 1.4
"""Between plan and process, either way: the allocator's slack, copies that live for a moment."""
FLAGS = {
    "advantage_estimator": "gae",
    "init_kl_coef": 0.01,
    "colocate_all_models": True,
    "vllm_enable_sleep": True,
    "rollout_engine": "hf",
    "prompt_max_len": 8,
    "max_steps": 4,
}


@pytest.fixture(scope="module")
def ran(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A model of 80 MB, which outweighs what a process holds besides. Each step
    leaves out who does not answer at once: there are several."""
    root = tmp_path_factory.mktemp("hybrid")
    shape = TinyModel(hidden_size=512, layers=6, heads=8, max_length=64)
    write_model(shape, "0123456789+=", root / "model")
    config = replace(tiny, model=root / "model").config(root / "run", **FLAGS)
    names = ("pretrain", "prompt_data", "run_dir", "input_key", "label_key", "remote_rm_url")
    sizes = ("rollout_batch_size", "n_samples_per_prompt", "train_batch_size", "generate_max_len")
    passes = ("micro_train_batch_size", "micro_rollout_batch_size")
    told = {name: flags_of(Config)[name].value_in(config) for name in (*names, *sizes, *passes)}
    with short_directory() as ray:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "WANDB_"))}
        ended = subprocess.run(
            [sys.executable, "-m", "trainer", *to_argv(told | FLAGS)],
            env=inherited | {"RAY_TMPDIR": str(ray), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert ended.returncode == ExitCode.FINISHED, ended.stdout[-5000:]
    return config


def measured(config: Config, *names: str) -> float:
    """GB, in the fullest of these phases and of the steps."""
    keys, rows = [f"memory/{name}_gb" for name in names], metric_rows(config)
    return max(float(row[key]) for row in rows for key in keys if key in row)


@pytest.mark.parametrize(
    ("role", "phases"),
    [
        ("policy", ("forward", "update")),
        ("critic", ("forward", "update")),
        ("reference", ("forward",)),
    ],
)
def test_a_process_takes_at_its_peak_what_the_plan_says(
    ran: Config, role: str, phases: tuple[str, ...]
) -> None:
    need = memory_estimate.of(ran, layout.of(ran), role)
    assert need is not None
    planned = (need.peak + need.host) / 1e9  # without a GPU both are the same memory
    taken = measured(ran, *(f"{role}_{phase}" for phase in phases))
    assert planned / FACTOR < taken < planned * FACTOR


def test_an_engine_s_weights_are_gone_while_the_models_train(ran: Config) -> None:
    need = memory_estimate.of(ran, layout.of(ran), "engine")
    assert need is not None
    weights = need.weights / 1e9
    assert measured(ran, "engine_rollout") > weights
    key = "memory/engine_asleep_gb"
    asleep = min(row[key] for row in metric_rows(ran) if key in row)
    assert asleep < measured(ran, "engine_rollout") - 0.9 * weights


def test_the_plan_is_in_the_journal(ran: Config) -> None:
    events = map(json.loads, ran.files.journal.read_text().splitlines())
    (planned,) = (event["sentence"] for event in events if event["kind"] == "memory")
    assert "policy 0." in planned
    assert "reference 0.0" in planned
