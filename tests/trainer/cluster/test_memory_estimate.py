"""What a step takes, by the papers' own numbers; the size of a model, by its files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster import memory_estimate, model_size, resource_plan
from trainer.cluster.model_size import ModelSize
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
    monkeypatch.setattr(memory_estimate, "known_size", lambda model: size)
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
    memory = memory_estimate.of_pool(config, wanted, wanted.pool_of("policy"))
    assert memory is not None
    return memory.least


def test_each_thing_that_saves_memory_saves_some(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    all_on_one = {"colocate_all_models": True, "bf16": True, "generate_max_len": 1024}
    all_on_one |= {"actor_num_gpus_per_node": 8, "zero_stage": 2, "gradient_checkpointing": True}
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
    models = max(sum(need.at(phase) for need in needs) for phase in memory_estimate.PHASES)
    assert peak(config) == pytest.approx(models / 0.6)


def phases(config: Config) -> dict[str, int]:
    """Return the bytes that the policy's GPU must have for each phase, engines included."""
    wanted = layout.of(config)
    found = memory_estimate.of_pool(config, wanted, wanted.pool_of("policy"))
    assert found is not None
    return {phase: sum(held.values()) for phase, held in found.phases.items()}


SHARED = {
    "colocate_all_models": True,
    "bf16": True,
    "actor_num_gpus_per_node": 8,
    "vllm_num_engines": 8,
    "vllm_enable_sleep": True,
    "deepspeed_enable_sleep": True,
    "advantage_estimator": "group_norm",
}
PSI = 7_500_000_000
ASLEEP = 3_500_000_000
"""What vLLM keeps on one GPU while it sleeps."""


@pytest.mark.parametrize(("stage", "loaded"), [(0, 14 * PSI), (2, 3.5 * PSI), (3, 1.75 * PSI)])
def test_a_model_that_sleeps_is_on_the_gpu_while_it_loads_and_publishes(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize, stage: int, loaded: float
) -> None:
    found = phases(tiny.config(run_dir, **SHARED, zero_stage=stage))
    reference = 2 * PSI // (8 if stage == 3 else 1)
    engine = 2 * PSI + ASLEEP
    assert found["load"] == pytest.approx(loaded + reference + engine)
    assert found["publish"] == pytest.approx(loaded + reference + engine + 4 * 2**30)
    assert found["rollout"] == reference


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ({}, ASLEEP),
        ({"enforce_eager": True}, 2_000_000_000),
        ({"vllm_num_engines": 4, "vllm_tensor_parallel_size": 2}, 7_000_000_000),
    ],
)
def test_a_sleeping_engine_keeps_a_part_of_the_gpu(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize, flags: dict[str, Any], kept: int
) -> None:
    config = tiny.config(run_dir, **{**SHARED, "rollout_engine": "vllm", **flags})
    wanted = layout.of(config)
    pool = memory_estimate.of_pool(config, wanted, wanted.pool_of("engine"))
    assert pool is not None
    assert pool.phases["forward"]["engine"] == pool.phases["update"]["engine"] == kept
    assert "engine" not in pool.phases["rollout"]


@pytest.mark.parametrize(
    "hf", [{"rollout_engine": "hf"}, {"rollout_engine": "auto", "top_p": 0.9, "temperature": 0.9}]
)
@pytest.mark.parametrize("sleeps", [True, False])
def test_an_engine_of_transformers_takes_no_share_but_its_weights_keys_and_values(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, hf: dict[str, Any], sleeps: bool
) -> None:
    size = ModelSize(PSI, hidden=4096, layers=32, intermediate=4 * 4096, heads=32, key_heads=8)
    monkeypatch.setattr(memory_estimate, "known_size", lambda model: size)
    flags = SHARED | {"vllm_enable_sleep": sleeps, "micro_rollout_batch_size": 4} | hf
    flags |= {"prompt_max_len": 128, "generate_max_len": 128, "init_kl_coef": 0}
    config = tiny.config(run_dir, **flags)
    wanted = layout.of(config)
    pool = memory_estimate.of_pool(config, wanted, wanted.pool_of("engine"))
    assert pool is not None
    engine = {phase: held["engine"] for phase, held in pool.phases.items()}
    weights = 2 * PSI
    keys_and_values = 1.5 * 2 * 2 * 32 * 1024 * 4 * 256
    prompts = 2 * 4 * 128 * (4 * 4096 + 3 * 4 * 4096)
    awake = 0 if sleeps else weights
    assert engine == {
        "load": weights,
        "publish": weights + 2**30,
        "rollout": weights + keys_and_values + prompts,
        "forward": awake,
        "update": awake,
    }
    assert max(pool.needs(10**12).values()) == pool.least  # whatever the GPU has


def test_a_moving_average_keeps_the_weights_of_the_loaded_model(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    plain, averaged = (
        phases(tiny.config(run_dir, **SHARED, zero_stage=2, enable_ema=on)) for on in (None, True)
    )
    assert averaged["rollout"] - plain["rollout"] == 4 * PSI
    assert averaged["load"] - plain["load"] == 4.5 * PSI  # and is not rounded before


def test_an_update_under_zero_copies_the_gradients_to_fp32(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    short = {"prompt_max_len": 1, "generate_max_len": 1}
    update = phases(tiny.config(run_dir, **SHARED, **short, zero_stage=2))["update"]
    weights, optimizer, gradients = 2 * PSI, 12 * PSI / 8, 2 * PSI / 8
    reference, copies = 2 * PSI, 6 * PSI / 8
    assert update == pytest.approx(weights + optimizer + gradients + reference + copies + ASLEEP)


@pytest.mark.parametrize(("stage", "more"), [(1, 1), (2, 1), (3, 0)])
def test_communication_beside_the_backward_pass_takes_a_second_bucket_but_at_stage_3(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize, stage: int, more: int
) -> None:
    flags = SHARED | {"bf16": None, "zero_stage": stage}
    off, on = (
        phases(tiny.config(run_dir, **flags, overlap_comm=overlap))["update"]
        for overlap in (None, True)
    )
    assert on - off == more * 4 * 500_000_000


def test_a_sample_that_is_longer_than_the_budget_of_tokens_counts_whole(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    lengths = {"prompt_max_len": 1024, "generate_max_len": 7168, "use_dynamic_batch": True}
    short, equal, twice = (
        phases(tiny.config(run_dir, **SHARED, **lengths, train_max_tokens_per_gpu=tokens))
        for tokens in (16, 8192, 16_384)
    )
    assert short == equal
    assert all(twice[phase] > equal[phase] for phase in ("forward", "update"))


def test_ranks_that_share_samples_have_a_part_of_their_activations_each(
    tiny: Tiny, run_dir: Path
) -> None:
    size = ModelSize(7_500_000_000, hidden=4096, layers=32, intermediate=16_384)
    four = {"actor_num_gpus_per_node": 4, "critic_num_nodes": 4, "ref_num_nodes": 4}
    lengths = {"prompt_max_len": 1000, "generate_max_len": 63_000, "bf16": True}
    for limit in ({"use_dynamic_batch": True, "train_max_tokens_per_gpu": 16}, {}):
        alone, shared = (
            tiny.config(run_dir, **four, **lengths, **limit, ring_attn_size=ranks)
            for ranks in (1, 4)
        )
        samples = 1 if limit else alone.train.micro_train_batch_size
        exchanged = 2 * 8 * 4096 * samples * 16_000
        whole = memory_estimate._activations(alone, size)
        assert memory_estimate._activations(shared, size) == whole // 4 + exchanged
        assert memory_estimate._forward(shared, "critic", size) < whole / 4
        judges = [memory_estimate._forward(one, "reward", size) for one in (alone, shared)]
        assert judges[0] == judges[1]


def test_a_reward_model_that_scores_an_evaluation_does_so_beside_the_engines(
    tiny: Tiny, run_dir: Path, seven_billion: ModelSize
) -> None:
    judged = SHARED | {"reward_pretrain": "some/judge", "remote_rm_url": None}
    judged["ref_reward_offload"] = True
    found = [
        phases(tiny.config(run_dir, **judged, eval_dataset=rows))["rollout"]
        for rows in (None, tiny.held_out)
    ]
    assert found[0] == 0
    assert found[1] >= 2 * PSI


@pytest.mark.parametrize(("gated", "layer"), [(False, 34 * 4096), (True, 20 * 4096 + 8 * 4 * 4096)])
def test_gradient_checkpointing_keeps_a_layer_s_input_alone(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, gated: bool, layer: int
) -> None:
    size = ModelSize(1, 4096, 32, 4 * 4096, gated=gated)
    monkeypatch.setattr(memory_estimate, "known_size", lambda model: size)
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
    assert plain.update == 32 * layer * 2048
    assert checkpointed.update == (layer + 32 * 2 * 4096) * 2048


def test_parameters_are_counted_from_the_tensors_headers(tiny: Tiny, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.model)
    stored = sum(p.numel() for p in model.parameters())
    size = model_size.read_size(str(tiny.model))
    assert size is not None
    assert size.parameters == stored
    model.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert model_size.read_size(str(tmp_path)) == size


def test_without_tensors_they_are_computed_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    size = model_size.read_size(str(tmp_path))
    assert size is not None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert size.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-5)


def test_a_model_that_is_not_on_the_disk_has_no_size(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    assert model_size.read_size("meta-llama/Llama-2-70b-hf") is None
    torn = tmp_path / "torn"
    shutil.copytree(tiny.model, torn)
    (torn / "model.safetensors").write_bytes(b"\x01")
    assert model_size.read_size(str(torn)) is not None  # its configuration says enough
    config = replace(tiny.config(run_dir), pretrain="some/name")
    shown = resource_plan.row(config, [NodeResources(name="here", cpus=4)])
    assert [pool["peak_bytes"] for pool in shown["memory"]] == [None] * 4
    assert shown["shortfalls"] == []
