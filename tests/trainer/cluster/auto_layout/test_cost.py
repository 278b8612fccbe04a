"""The estimated seconds of a step: each term by hand, and what every means to save memory costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from contract.resources import NodeResources
from tests.support.tiny_run import Tiny
from trainer.cluster.auto_layout import cost
from trainer.cluster.auto_layout.cost import H100, StepCost
from trainer.cluster.model_size import ModelSize
from trainer.config import layout

PSI = 7_000_000_000
SIZE = ModelSize(PSI, hidden=4096, layers=32, intermediate=11_008, heads=32, key_heads=8)
GRPO = {
    **{"advantage_estimator": "group_norm", "init_kl_coef": 0, "bf16": True},
    **{"colocate_all_models": True, "actor_num_gpus_per_node": 8, "vllm_num_engines": 8},
    **{"rollout_batch_size": 64, "n_samples_per_prompt": 8, "train_batch_size": 512},
    **{"prompt_max_len": 1000, "generate_max_len": 3000, "micro_train_batch_size": None},
    **{"use_dynamic_batch": True, "train_max_tokens_per_gpu": 16_000, "max_epochs": 1},
}
TOKENS = 512 * 2000 / 8
"""Of a rank's samples in a step, each of half of the longest length."""
PASSES = 8
SCORED = 8
"""Passes that score."""


def of_step(tiny: Tiny, run_dir: Path, **flags: Any) -> StepCost:
    config = tiny.config(run_dir, **{**GRPO, **flags})
    found = cost.of_step(config, layout.of(config), lambda model: SIZE)
    assert found is not None
    return found


def test_each_term_is_what_its_formula_says(tiny: Tiny, run_dir: Path) -> None:
    found = of_step(tiny, run_dir)
    assert found.arithmetic == pytest.approx(6 * PSI * TOKENS / H100.flops)
    assert found.passes == pytest.approx(PASSES * (32 * cost.START + 6 * PSI / H100.read))
    assert found.gradients == pytest.approx(8 * PSI / H100.inside)
    assert found.moves == 0
    assert found.seconds == pytest.approx(sum(asdict(found).values()))


@pytest.mark.parametrize(("checkpointed", "passes"), [(False, 2), (True, 3)])
def test_ranks_that_share_samples_exchange_queries_keys_values_and_outputs(
    tiny: Tiny, run_dir: Path, checkpointed: bool, passes: int
) -> None:
    """Each of 4 keeps a quarter of what it has, in bf16: in updates, and in no pass that scores."""
    flags = {"ring_attn_size": 4, "gradient_checkpointing": checkpointed}
    found, plain = (of_step(tiny, run_dir, **one) for one in (flags, flags | {"ring_attn_size": 1}))
    sent = 2 * 4 * 4096 * 32 * TOKENS * 3 / 4
    assert found.exchanged == pytest.approx(passes * sent / H100.inside)
    assert plain.exchanged == 0
    assert found.arithmetic == plain.arithmetic
    apart = of_step(tiny, run_dir, **flags, actor_num_nodes=4, actor_num_gpus_per_node=2)
    assert apart.exchanged == pytest.approx(passes * sent / cost.BETWEEN)


@pytest.mark.parametrize(
    ("flags", "term", "more"),
    [
        ({"gradient_checkpointing": True}, "arithmetic", 2 * PSI * TOKENS / H100.flops),
        ({"zero_stage": 1}, "gradients", -2 * PSI / H100.inside),
        ({"zero_stage": 2}, "gradients", (PASSES * 4 - 6) * PSI / H100.inside),
        ({"zero_stage": 3}, "gradients", (PASSES * 8 - 8) * PSI / H100.inside),
        ({"deepspeed_enable_sleep": True}, "moves", 2 * (2 + 12) * PSI / H100.pcie),
        (
            {"deepspeed_enable_sleep": True, "zero_stage": 2},
            "moves",
            2 * (2 + 12 / 8) * PSI / H100.pcie,
        ),
        (
            {"deepspeed_enable_sleep": True, "zero_stage": 3},
            "moves",
            2 * 14 / 8 * PSI / H100.pcie,
        ),
        ({"init_kl_coef": 0.1, "use_kl_loss": True}, "arithmetic", 2 * PSI * TOKENS / H100.flops),
        ({"max_epochs": 2}, "arithmetic", 8 * PSI * TOKENS / H100.flops),  # and scores before
        (
            {"init_kl_coef": 0.1, "use_kl_loss": True, "ref_reward_offload": True},
            "moves",
            2 * PSI / H100.pcie,
        ),
        (  # the reference's passes gather its weights, too
            {"init_kl_coef": 0.1, "use_kl_loss": True, "zero_stage": 3},
            "gradients",
            (PASSES * 8 - 8 + SCORED * 2) * PSI / H100.inside,
        ),
        (
            {"init_kl_coef": 0.1, "use_kl_loss": True, "zero_stage": 3, "ref_reward_offload": True},
            "moves",
            2 * PSI / 8 / H100.pcie,
        ),
        ({"lora_rank": 8}, "arithmetic", -2 * PSI * TOKENS / H100.flops),
    ],
)
def test_a_means_costs_its_bytes_or_its_arithmetic(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any], term: str, more: float
) -> None:
    plain, made = of_step(tiny, run_dir), of_step(tiny, run_dir, **flags)
    assert asdict(made)[term] - asdict(plain)[term] == pytest.approx(more)


def test_the_rates_are_those_of_the_slowest_gpu() -> None:
    nodes = [
        NodeResources(name=name, gpus=8, gpu_model=name)
        for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
    ]
    h200, a100, h100 = (cost.rates_of([node]) for node in nodes)
    assert cost.rates_of(nodes) == a100
    assert a100.gpu == "A100-SXM4-80GB"
    assert (a100.flops, a100.read) == pytest.approx((0.4 * 312e12, 0.8 * 2039e9))
    assert h200.flops == h100.flops
    assert h200.read > h100.read
    assert h100 == H100


@pytest.mark.parametrize("name", ["NVIDIA A10", "NVIDIA L40S", "NVIDIA GeForce RTX 4090"])
def test_gpus_without_links_send_over_pcie(name: str) -> None:
    rates = cost.rates_of([NodeResources(name="node", gpus=1, gpu_model=name)])
    assert rates.inside == rates.pcie == H100.pcie / 2
    assert not rates.assumed


@pytest.mark.parametrize(("name", "said"), [("NVIDIA X1", "NVIDIA X1"), ("", "unknown")])
def test_a_gpu_of_unknown_rates_is_taken_for_an_h100(name: str, said: str) -> None:
    rates = cost.rates_of([NodeResources(name="node", gpus=1, gpu_model=name)])
    assert (rates.gpu, rates.flops, rates.assumed) == ("H100", H100.flops, said)


def test_a_step_on_slower_gpus_takes_longer(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, **GRPO)
    a100 = cost.rates_of([NodeResources(name="node", gpus=8, gpu_model="A100-SXM4-80GB")])
    fast, slow = (
        cost.of_step(config, layout.of(config), lambda model: SIZE, rates) for rates in (H100, a100)
    )
    assert fast is not None
    assert slow is not None
    assert slow.arithmetic / fast.arithmetic == pytest.approx(989 / 312)
    assert slow.decoding > fast.decoding


def test_nodes_apart_reduce_gradients_over_the_network(tiny: Tiny, run_dir: Path) -> None:
    near = of_step(tiny, run_dir)
    apart = of_step(tiny, run_dir, actor_num_nodes=8, actor_num_gpus_per_node=1)
    assert apart.gradients / near.gradients == pytest.approx(H100.inside / cost.BETWEEN)


def test_passes_of_fewer_tokens_are_more(tiny: Tiny, run_dir: Path) -> None:
    wide, narrow = (
        of_step(tiny, run_dir, train_max_tokens_per_gpu=tokens) for tokens in (64_000, 4000)
    )
    assert narrow.passes == pytest.approx(16 * wide.passes)


def test_a_model_of_unknown_size_has_no_cost(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, **GRPO)
    assert cost.of_step(config, layout.of(config), lambda model: None) is None
