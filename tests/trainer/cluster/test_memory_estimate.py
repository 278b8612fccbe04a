"""What a step takes, by the papers' own numbers; the size of a model, by its files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster import memory_estimate, resource_plan
from trainer.cluster.memory_estimate import ModelSize
from trainer.config import layout
from trainer.config.config import Config

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


@pytest.fixture
def seven_billion(monkeypatch: pytest.MonkeyPatch) -> ModelSize:
    size = ModelSize(7_500_000_000, hidden=1, layers=1, intermediate=4)
    monkeypatch.setattr(memory_estimate, "read_size", lambda model: size)
    return size


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 135), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_the_zero_paper_s_figure_1(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize, stage: int, gigabytes: float
) -> None:
    """7.5 billion parameters on 64 GPUs, mixed precision; at stage 0 with gradients in fp32."""
    config = tiny.config(
        run_dir, zero_stage=stage, bf16=True, actor_num_nodes=8, actor_num_gpus_per_node=8
    )
    need = memory_estimate.of(config, layout.of(config), "policy")
    assert need is not None
    held = need.weights + need.gradients + need.optimizer
    assert held / 1e9 == pytest.approx(gigabytes, rel=0.01)


def peak(config: Config) -> int:
    wanted = layout.of(config)
    found = memory_estimate.least_gpu(config, wanted, wanted.pool_of("policy"))
    assert found is not None
    return found


def test_each_thing_that_saves_memory_saves_some(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    all_on_one = {"colocate_all_models": True, "bf16": True, "generate_max_len": 1024}
    plain = peak(tiny.config(run_dir, **all_on_one))
    previous = plain
    for flag in ("vllm_enable_sleep", "deepspeed_enable_sleep", "adam_offload"):
        all_on_one[flag] = True
        now = peak(tiny.config(run_dir, **all_on_one))
        assert now < previous, flag
        previous = now
    alone = peak(tiny.config(run_dir, bf16=True))
    assert alone < plain


def test_an_engine_beside_models_leaves_them_what_they_need(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    config = tiny.config(
        run_dir, colocate_all_models=True, vllm_gpu_memory_utilization=0.4, lora_rank=8, bf16=True
    )
    wanted = layout.of(config)
    roles = ("policy", "critic", "reference")
    needs = [need for role in roles if (need := memory_estimate.of(config, wanted, role))]
    models = max(sum(need.at(phase) for need in needs) for phase in ("forward", "update"))
    assert peak(config) == pytest.approx(models / 0.6)


def test_gradient_checkpointing_keeps_a_layer_s_input_alone(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ModelSize(1, 4096, 32, 4 * 4096)
    monkeypatch.setattr(memory_estimate, "read_size", lambda model: size)
    flags = {"bf16": True, "micro_train_batch_size": 1, "prompt_max_len": 1024}
    plain, checkpointed = (
        memory_estimate.of(config, layout.of(config), "policy")
        for config in (
            tiny.config(run_dir, **flags, generate_max_len=1024, gradient_checkpointing=on)
            for on in (None, True)
        )
    )
    assert plain is not None
    assert checkpointed is not None
    assert plain.update == 32 * 34 * 2048 * 4096
    assert checkpointed.update == (34 + 32 * 2) * 2048 * 4096


def test_parameters_are_counted_from_the_tensors_headers(tiny: Tiny, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.model)
    stored = sum(p.numel() for p in model.parameters())
    size = memory_estimate.read_size(str(tiny.model))
    assert size is not None
    assert size.parameters == stored
    model.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert memory_estimate.read_size(str(tmp_path)) == size


def test_without_tensors_they_are_computed_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    size = memory_estimate.read_size(str(tmp_path))
    assert size is not None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert size.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-5)


def test_a_model_that_is_not_on_the_disk_has_no_size(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    assert memory_estimate.read_size("meta-llama/Llama-2-70b-hf") is None
    torn = tmp_path / "torn"
    shutil.copytree(tiny.model, torn)
    (torn / "model.safetensors").write_bytes(b"\x01")
    assert memory_estimate.read_size(str(torn)) is not None  # its configuration says enough
    config = replace(tiny.config(run_dir), pretrain="some/name")
    shown = resource_plan.row(config, [NodeResources(name="here", cpus=4)])
    assert [pool["peak_bytes"] for pool in shown["memory"]] == [None] * 4
    assert shown["shortfalls"] == []
