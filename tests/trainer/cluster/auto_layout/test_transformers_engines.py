"""A layout whose engines are transformers' takes no share of a GPU for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from contract.resources import NodeResources
from trainer.cluster.auto_layout.api import LayoutChoice, complete
from trainer.cluster.auto_layout.memory_fit import MemoryCheck
from trainer.cluster.bin_packing import Assignment, pack
from trainer.cluster.memory_estimate import PoolMemory, of_pool
from trainer.cluster.model_size import ModelSize
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.config.parse import named_in, parse

GB = 10**9
SIZE = ModelSize(7 * GB, hidden=4096, layers=32, intermediate=4 * 4096, heads=32, key_heads=8)
GIVEN = (
    *("--pretrain", "some/model", "--prompt_data", "some/prompts", "--run_dir", "/run"),
    *("--remote_rm_url", "arithmetic", "--advantage_estimator", "group_norm"),
    *("--n_samples_per_prompt", "8", "--lora_rank", "8"),
)
HF = ("--rollout_engine", "hf")


def nodes(gpus: int, memory: int) -> list[NodeResources]:
    return [NodeResources(name="n", gpus=gpus, gpu_memory=memory, cpus=32)]


def chosen(offers: Sequence[NodeResources], *flags: str) -> tuple[LayoutChoice, Config, Assignment]:
    argv = [*GIVEN, *flags]
    choice = complete(parse(argv, incomplete=True), named_in(argv), offers, lambda model: SIZE)
    config = parse([*argv, *choice.words])
    return choice, config, pack(layout.of(config), offers)


def of_engines(config: Config, found: Assignment) -> PoolMemory:
    pool = found.layout.pool_of(Role.ENGINE)
    made = of_pool(config, found.layout, pool, lambda model: SIZE)
    assert made is not None
    return made


@pytest.mark.parametrize("hf", [HF, ("--top_p", "0.9", "--temperature", "0.9")])
def test_the_plan_and_the_choice_say_the_same_number(hf: tuple[str, ...]) -> None:
    choice, config, found = chosen(nodes(1, 140 * GB), *hf)
    assert config.colocate_all_models
    made = of_engines(config, found)
    needs = f"by the estimate a GPU needs {made.least / 2**30:.1f} GiB of its 130.4 GiB"
    assert needs in choice.reasons
    assert "--vllm_tensor_parallel_size" not in choice.words


def test_with_vllm_the_engine_takes_its_share_of_whatever_gpu() -> None:
    _, config, found = chosen(nodes(1, 140 * GB), "--rollout_engine", "vllm")
    assert max(of_engines(config, found).needs(140 * GB).values()) >= 70 * GB


def test_engines_with_gpus_of_their_own_are_counted() -> None:
    _, config, found = chosen(nodes(8, 80 * GB), *HF, "--async_train")
    made = of_engines(config, found)
    assert made.least == made.phases["rollout"]["engine"] > 2 * SIZE.parameters
    small = nodes(8, made.least)
    use = MemoryCheck(small, {"some/model": SIZE}).of(config, pack(layout.of(config), small))
    assert use.gpu.need >= made.least
