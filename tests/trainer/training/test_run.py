"""The choice of the engine by the slots of its layout; what the driver imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster import placement
from trainer.cluster.bin_packing import pack
from trainer.config import job_checks, layout
from trainer.config.config import Config
from trainer.training import run
from trainer.types import NotSharedError, UnfitModelError

CPUS = [NodeResources(name="here", cpus=8)]
GPUS = [NodeResources(name="here", cpus=8, gpus=8)]


def settled(config: Config, offers: list[NodeResources]) -> Config:
    return run.choose_engine(config, pack(layout.of(config), offers))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: True)


def test_it_is_vllm_on_gpus_and_transformers_on_cpus(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir)
    assert settled(config, CPUS).rollout_engine == "hf"
    assert settled(config, GPUS).rollout_engine == "vllm"
    assert settled(tiny.config(run_dir, rollout_engine="hf"), GPUS).rollout_engine == "hf"
    assert settled(tiny.config(run_dir, rollout_engine="vllm"), CPUS).rollout_engine == "vllm"


def test_it_is_transformers_where_vllm_is_absent(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert settled(tiny.config(run_dir), GPUS).rollout_engine == "hf"


def test_several_gpus_an_engine_are_never_given_to_transformers_because_vllm_is_absent(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    monkeypatch.setattr(job_checks, "find_spec", lambda name: None)
    config = settled(tiny.config(run_dir, vllm_tensor_parallel_size=2), GPUS)
    lacking, *_ = job_checks.engine_faults(config)
    assert "--vllm_tensor_parallel_size over 1: vLLM is not installed here" in lacking


def test_it_is_transformers_where_vllm_could_not_tell_the_log_probs(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, top_p=0.9, temperature=0.7)
    assert settled(config, GPUS).rollout_engine == "hf"


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        ({}, 0.9),
        ({"colocate_all_models": True}, 0.5),
        ({"colocate_all_models": True, "vllm_num_engines": 2}, 0.25),
        ({"vllm_gpu_memory_utilization": 0.3}, 0.3),
    ],
)
def test_on_gpus_it_takes_the_share_of_memory_that_the_plan_states(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any], share: float
) -> None:
    config = tiny.config(run_dir, **flags)
    assert settled(config, GPUS).vllm.gpu_memory_utilization == share


def test_on_cpus_it_takes_what_the_flag_says_and_nothing_without_it(
    tiny: Tiny, run_dir: Path
) -> None:
    assert settled(tiny.config(run_dir), CPUS).vllm.gpu_memory_utilization is None


def test_the_driver_starts_without_torch_and_transformers() -> None:
    """They take seconds to import, and each attempt would wait for them before it asks Ray."""
    large = "{'torch', 'transformers', 'datasets'}"
    code = f"import sys, trainer.training.run; print({large} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_node_without_shared_storage_that_lacks_a_model_is_named(
    tiny: Tiny, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_each_node(placed: Any, function: Any, config: Config) -> dict[str, Any]:
        here = function(config)
        monkeypatch.setattr(run, "why_absent", lambda path: "no such file")
        return {"head": here, "worker-1": function(config)}

    monkeypatch.setattr(placement, "on_each_node", on_each_node)
    placed: Any = None
    run._check_models(tiny.config(run_dir, storage="shared"), placed)
    with pytest.raises(UnfitModelError, match=f"^worker-1 has no {tiny.model}: a model that"):
        run._check_models(tiny.config(run_dir, storage="head"), placed)


def test_a_model_of_the_hub_is_lacked_by_no_node(tiny: Tiny, run_dir: Path) -> None:
    config = replace(tiny.config(run_dir), pretrain="org/model", critic_pretrain="/not/there")
    assert run.missing_models(config) == ["/not/there"]


def test_a_directory_for_checkpoints_that_a_node_does_not_share_ends_the_run_before_it_begins(
    tiny: Tiny, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks would write their shards to disks of their own, as in containers without a mount."""
    asked: list[Path] = []

    def on_each_node(placed: Any, function: Any, probe: Path) -> dict[str, Any]:
        asked.append(probe.parent)
        return {"head": function(probe), "worker-1": function(tmp_path / "own disk" / probe.name)}

    monkeypatch.setattr(placement, "on_each_node", on_each_node)
    placed: Any = None
    outside = tmp_path / "elsewhere"
    run._check_directories(tiny.config(run_dir, ckpt_path="ckpt", save_path="final"), placed)
    run._check_directories(tiny.config(run_dir, ckpt_path=outside, storage="head"), placed)
    assert asked == []
    for flag in ("ckpt_path", "save_path"):
        with pytest.raises(NotSharedError, match=f"^--{flag} {outside}: worker-1 does not see"):
            run._check_directories(tiny.config(run_dir, **{flag: outside}), placed)
        assert list(outside.iterdir()) == []
    assert run.EXIT_CODES[NotSharedError] == ExitCode.USAGE


def test_a_full_disk_of_checkpoints_elsewhere_is_the_runs_own_trouble(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    config = tiny.config(run_dir, ckpt_path=tmp_path / "elsewhere")
    assert config.has(str(tmp_path / "elsewhere/global_step_1/policy.pt"))
    assert config.has(str(run_dir / "journal.jsonl"))
    assert not config.has(str(tmp_path / "prompts.jsonl"))
