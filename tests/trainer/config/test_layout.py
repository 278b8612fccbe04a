"""Flags → groups and the slots that they share, or what no cluster could place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.options import ConfigError
from tests.support.tiny_run import Tiny
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.layout import Layout


def pools(config: Config) -> dict[str, tuple[int, int]]:
    return {pool.name: (pool.nodes, pool.per_node) for pool in layout.of(config).pools}


def faults(tiny: Tiny, run_dir: Path, **flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        tiny.config(run_dir, **flags)
    return [str(fault) for fault in caught.value.faults]


def test_each_role_has_slots_of_its_own_unless_it_shares(tiny: Tiny, run_dir: Path) -> None:
    one = (1, 1)
    assert pools(tiny.config(run_dir)) == dict.fromkeys(
        ("reference", "critic", "policy", "engine"), one
    )
    assert pools(tiny.config(run_dir, init_kl_coef=0, advantage_estimator="rloo")) == {
        "policy": one,
        "engine": one,
    }
    assert pools(tiny.config(run_dir, colocate_actor_ref=True)) == {
        "critic": one,
        "policy+reference": one,
        "engine": one,
    }


def test_zero_and_unsaid_sizes_of_a_guest_are_its_host_s(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        actor_num_nodes=2,
        actor_num_gpus_per_node=8,
        colocate_all_models=True,
        critic_num_nodes=0,
        critic_num_gpus_per_node=0,
        vllm_num_engines=4,
        vllm_tensor_parallel_size=4,
    )
    assert pools(config) == {"policy+reference+critic+engine": (2, 8)}
    sizes = {
        role: len(layout.of(config).pools[0].slots_of(role)) for role in ("critic", "reference")
    }
    assert sizes == {"critic": 16, "reference": 16}
    assert layout.of(config).pools[0].procs_per_slot == 4


def test_engines_that_write_while_others_learn_have_slots_of_their_own(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, colocate_all_models=True, async_train=True)
    assert pools(config) == {"policy+reference+critic": (1, 1), "engine": (1, 1)}


def test_an_engine_s_slots_lie_side_by_side_on_one_node(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        actor_num_nodes=2,
        actor_num_gpus_per_node=4,
        colocate_all_models=True,
        vllm_num_engines=4,
        vllm_tensor_parallel_size=2,
    )
    (pool,) = layout.of(config).pools
    assert pool.slots_of("engine") == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_smaller_guest_has_the_first_slots_of_each_node(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        actor_num_nodes=2,
        actor_num_gpus_per_node=4,
        ref_num_nodes=2,
        ref_num_gpus_per_node=2,
        colocate_actor_ref=True,
    )
    pool = layout.of(config).pool_of("reference")
    assert pool.slots_of("reference") == [(0,), (1,), (4,), (5,)]
    assert pool.procs_per_slot == 2
    assert len(pool.slots_of("policy")) == 8


def test_shared_slots_need_what_every_tenant_asks_for(tiny: Tiny, run_dir: Path) -> None:
    asked = {"ref_resources": '{"v100": 1}', "actor_resources": '{"v100": 2, "fast": 1}'}
    apart: Layout = layout.of(tiny.config(run_dir, **asked))
    assert apart.pool_of("reference").resources == {"v100": 1}
    shared = layout.of(tiny.config(run_dir, colocate_actor_ref=True, **asked))
    assert shared.pool_of("reference").resources == {"v100": 2, "fast": 1}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"actor_num_nodes": 0}, "--actor_num_nodes: leaves the policy no GPU"),
        ({"critic_num_gpus_per_node": 0}, "or --colocate_all_models"),
        ({"ref_num_nodes": 0}, "or --colocate_actor_ref"),
        (
            {"colocate_actor_ref": True, "ref_num_nodes": 2},
            "2 x 1 GPUs). Give 0 for all of them",
        ),
        (
            {
                "colocate_all_models": True,
                "actor_num_gpus_per_node": 4,
                "vllm_tensor_parallel_size": 3,
            },
            "does not divide the 4 GPUs of a node, which the engines share (given: 3). "
            "Give one of 1, 2, 4",
        ),
        (
            {"colocate_all_models": True, "vllm_tensor_parallel_size": 2},
            "does not divide the 1 GPU of a node, which the engines share (given: 2). Give 1",
        ),
        (
            {
                "colocate_all_models": True,
                "vllm_num_engines": 2,
                "vllm_gpu_memory_utilization": 0.6,
            },
            "adds up to 1.2 of a GPU",
        ),
        (
            {
                "ring_attn_size": 3,
                "critic_num_gpus_per_node": 6,
                "ref_num_nodes": 3,
                "actor_num_gpus_per_node": 4,
            },
            "--ring_attn_size: does not divide the 4 ranks of the policy (given: 3). 1 or 2 or 4 "
            "would, or other GPUs by --actor_num_nodes",
        ),
        (
            {
                "ring_attn_size": 2,
                "actor_num_nodes": 2,
                "colocate_all_models": True,
                "ref_num_gpus_per_node": 1,
                "ref_num_nodes": 1,
            },
            "1 rank of the reference",
        ),
        ({"ref_resources": '{"v100": 0}'}, 'must be a JSON object such as {"v100": 1}'),
        ({"ref_resources": "v100"}, "must be a JSON object"),
        ({"ref_resources": '{"GPU": 1}'}, "no GPU"),
    ],
)
def test_what_no_cluster_could_place_is_a_fault(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any], said: str
) -> None:
    (fault,) = faults(tiny, run_dir, **flags)
    assert said in fault


def test_engines_of_their_own_need_not_divide_anything(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, vllm_tensor_parallel_size=3, vllm_gpu_memory_utilization=0.9)
    assert pools(config)["engine"] == (1, 3)
