"""A layout without flags uses every GPU and fits by the estimate, whatever the nodes and models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.resources import NodeResources
from tests.support import qwen
from trainer.cluster import memory_estimate
from trainer.cluster.auto_layout.api import LayoutChoice, complete, warnings
from trainer.cluster.auto_layout.arrangements import LAYOUT_FLAGS
from trainer.cluster.bin_packing import Assignment, pack
from trainer.cluster.model_size import ModelSize, named_size, read_size
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.parse import named_in, parse

GB = 10**9
GRPO = ("--advantage_estimator", "group_norm", "--n_samples_per_prompt", "8")
REWARD_MODEL = ("--reward_pretrain", "some/judge-1B", "--remote_rm_url", "")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSize]:
    root = tmp_path_factory.mktemp("models")
    sizes = {size: read_size(str(qwen.write_config(root / size, size))) for size in qwen.SHAPES}
    return {name: size for name, size in sizes.items() if size}


def argv_of(*flags: str) -> list[str]:
    common = ["--pretrain", "some/model", "--prompt_data", "some/prompts", "--run_dir", "/run"]
    return [*common, "--remote_rm_url", "arithmetic", "--", *flags]


def nodes(*gpus: int, memory: int = 80 * GB, host: int = 0) -> list[NodeResources]:
    return [
        NodeResources(name=f"n{place}", gpus=count, gpu_memory=memory, cpus=32, memory=host)
        for place, count in enumerate(gpus)
    ]


def chosen(
    size: ModelSize | None, offers: Sequence[NodeResources], *flags: str
) -> tuple[LayoutChoice, Config, Assignment]:
    """Return the choice, and the configuration and nodes of the command line that it makes."""
    argv = argv_of(*flags)
    given_config = parse(argv, incomplete=True)
    choice = complete(given_config, named_in(argv), offers, lambda model: size)
    config = parse([*argv, *choice.words])
    return choice, config, pack(layout.of(config), offers)


def peak(size: ModelSize, config: Config, found: Assignment, memory: int) -> int:
    """Return the estimated bytes that are used of a GPU with `memory` bytes, in any phase."""
    pools = [
        memory_estimate.of_pool(config, found.layout, pool, lambda model: size)
        for pool in found.layout.pools
    ]
    return max(max(pool.needs(memory).values()) for pool in pools if pool)


def test_without_gpus_nothing_is_chosen(models: dict[str, ModelSize]) -> None:
    choice, config, _ = chosen(models["7B"], [NodeResources(name="n", cpus=8)])
    assert choice == LayoutChoice()
    assert config.param_dtype == "fp32"


def test_a_small_model_on_one_gpu_shares_it_with_its_engine(models: dict[str, ModelSize]) -> None:
    choice, config, found = chosen(models["0.5B"], nodes(1, memory=24 * GB), *GRPO)
    assert config.colocate_all_models
    assert config.vllm.enable_sleep
    assert config.mixed_precision
    assert config.sharding.zero_stage == 0
    assert found.layout.slots == 1
    assert any("24" in reason or "22.4 GiB" in reason for reason in choice.reasons)


def test_three_nodes_of_eight_leave_no_gpu_idle(models: dict[str, ModelSize]) -> None:
    _, config, found = chosen(models["7B"], nodes(8, 8, 8))
    assert found.layout.slots == 24
    assert (config.actor_num_nodes, config.actor_num_gpus_per_node) == (3, 8)
    assert config.vllm_num_engines == 24
    assert config.sharding.zero_stage >= 2
    assert peak(models["7B"], config, found, 80 * GB) <= 0.9 * 80 * GB


def test_an_engine_has_as_few_gpus_as_hold_its_weights(models: dict[str, ModelSize]) -> None:
    sizes = {}
    for size in ("7B", "32B", "72B"):
        _, config, found = chosen(models[size], nodes(*[8] * 8))
        sizes[size] = config.vllm.tensor_parallel_size
        assert found.layout.slots == 64
    assert sizes == {"7B": 1, "32B": 4, "72B": 8}


def test_asynchronous_training_gives_the_engines_gpus_of_their_own(
    models: dict[str, ModelSize],
) -> None:
    _, config, found = chosen(models["7B"], nodes(8, 8, 8), "--async_train")
    assert found.layout.slots == 24
    assert [group.role for group in found.layout.pool_of(layout.Role.ENGINE).groups] == ["engine"]
    assert not config.vllm.enable_sleep


def test_nodes_that_differ_are_all_used(models: dict[str, ModelSize]) -> None:
    choice, config, found = chosen(models["7B"], nodes(8, 8, 4))
    assert found.layout.slots == 20
    assert not config.colocate_all_models
    assert any("GPUs of their own" in reason for reason in choice.reasons)


def test_a_gpu_without_work_is_explained(models: dict[str, ModelSize]) -> None:
    flags = ("--vllm_tensor_parallel_size", "2", "--colocate_all_models")
    choice, _, found = chosen(models["0.5B"], nodes(3), *GRPO, *flags)
    assert found.layout.slots == 2
    assert any("no work" in reason for reason in choice.reasons)


def test_a_model_that_fits_nowhere_is_a_fault_that_says_what_helps(
    models: dict[str, ModelSize],
) -> None:
    choice, _, _ = chosen(models["72B"], nodes(8, memory=24 * GB), *GRPO)
    (fault,) = choice.faults
    assert "no layout fits: by the estimate a GPU needs" in fault
    assert "take a smaller model or take GPUs with more memory, since an engine has 8" in fault
    assert not choice.words
    long = ("--generate_max_len", "60000", "--micro_train_batch_size", "1")
    (fault,) = chosen(models["7B"], nodes(4, memory=24 * GB), *GRPO, *long)[0].faults
    assert "--generate_max_len (60000)" in fault


def test_a_layout_by_flags_is_never_refused_for_its_memory(models: dict[str, ModelSize]) -> None:
    choice, _, _ = chosen(models["72B"], nodes(8, memory=24 * GB), "--vllm_num_engines", "1")
    assert not choice.faults
    assert any("may not fit" in reason for reason in choice.reasons)


def test_savings_in_a_layout_by_flags_are_a_warning(models: dict[str, ModelSize]) -> None:
    gpus = ("--actor_num_gpus_per_node", "8", "--critic_num_gpus_per_node", "8")
    sizes = (*gpus, "--generate_max_len", "16384")
    said = {}
    for flags in ((), sizes, (*sizes, "--gradient_checkpointing")):
        choice, config, _ = chosen(models["7B"], nodes(8, 8, 8), *flags)
        assert config.sharding.zero_stage > 0
        said[flags] = warnings(choice.words, named_in(argv_of(*flags)))
    automatic, (savings,), fewer = said.values()
    assert automatic == ()
    assert "gets --gradient_checkpointing true to save GPU memory" in savings
    assert fewer == ()
    small = chosen(models["0.5B"], nodes(8, 8, 8), *sizes)[0]
    assert warnings(small.words, named_in(argv_of(*sizes))) == ()


def test_passes_are_cut_by_tokens_unless_their_samples_are_given(
    models: dict[str, ModelSize],
) -> None:
    lengths = ("--prompt_max_len", "512", "--generate_max_len", "1024")
    batch = (*GRPO, *lengths, "--rollout_batch_size", "128", "--train_batch_size", "512")
    _, config, _ = chosen(models["7B"], nodes(8, host=1800 * GB), *batch)
    assert config.train.use_dynamic_batch
    assert config.train.train_max_tokens_per_gpu >= 2 * config.longest_sample
    assert not config.gradient_checkpointing
    _, config, _ = chosen(models["0.5B"], nodes(8, host=1800 * GB), *batch)
    assert config.train.train_max_tokens_per_gpu == 32_768
    for flags in (("--micro_train_batch_size", "4"), ("--use_dynamic_batch", "false")):
        assert not chosen(models["7B"], nodes(8), *batch, *flags)[1].train.use_dynamic_batch
    given_tokens = ("--train_max_tokens_per_gpu", "2000")
    _, config, _ = chosen(models["7B"], nodes(8), *batch, *given_tokens)
    assert (config.train.use_dynamic_batch, config.train.max_tokens) == (True, 2000)


def test_gpus_that_share_samples_fit_the_longest_one_and_are_as_many_as_divide(
    models: dict[str, ModelSize],
) -> None:
    long = (*GRPO, "--prompt_max_len", "1000", "--generate_max_len", "255000")
    alone, _, _ = chosen(models["7B"], nodes(6, host=1800 * GB), *long)
    assert "let GPUs share each sample by --ring_attn_size" in alone.faults[0]
    choice, config, found = chosen(
        models["7B"], nodes(6, host=1800 * GB), *long, "--ring_attn_size", "4"
    )
    assert not choice.faults
    assert config.policy_ranks == 4
    assert 64_000 <= config.train.train_max_tokens_per_gpu < config.longest_sample
    assert peak(models["7B"], config, found, 80 * GB) <= 0.9 * 80 * GB


@pytest.mark.parametrize("ranks", ["16", "5"])
def test_gpus_that_share_samples_and_divide_no_layout_are_named(
    models: dict[str, ModelSize], ranks: str
) -> None:
    argv = argv_of(*GRPO, "--ring_attn_size", ranks)
    config = parse(argv, incomplete=True)
    for offers in (nodes(4), [NodeResources(name="n", cpus=8)]):
        choice = complete(config, named_in(argv), offers, lambda model: models["0.5B"])
        assert f"does not divide the 1 rank of the policy (given: {ranks})" in choice.faults[0]


def test_gradients_are_sharded_only_if_whole_ones_do_not_fit(models: dict[str, ModelSize]) -> None:
    """Stage 2 reduces after every pass, and stage 1 after an update."""
    stages = {
        memory: chosen(models["7B"], nodes(8, memory=memory * GB), *GRPO)[1].sharding.zero_stage
        for memory in (141, 80, 40)
    }
    assert stages[141] == stages[80] == 1
    assert stages[40] >= 2


def test_little_cpu_memory_keeps_models_on_the_gpus(models: dict[str, ModelSize]) -> None:
    plenty, scarce = (
        chosen(models["7B"], nodes(3, memory=96 * GB, host=host * GB), *GRPO)[1]
        for host in (2000, 300)
    )
    assert plenty.sharding.sleep
    assert not scarce.sharding.sleep
    assert scarce.sharding.zero_stage == 3


def test_too_little_cpu_memory_is_a_fault_with_the_numbers(models: dict[str, ModelSize]) -> None:
    (fault,) = chosen(models["7B"], nodes(2, host=50 * GB), *GRPO)[0].faults
    assert re.search(r"n\d needs \d+\.\d GiB of the CPUs' memory .*, and has 46\.6 GiB", fault)
    assert re.search(r"nodes with \d+\.\d GiB, LoRA adapters by --lora_rank or a smaller", fault)


@pytest.mark.parametrize(
    ("size", "gpus", "memory"),
    [
        ("0.5B", [1], 24),
        ("7B", [3], 80),
        ("7B", [4], 80),
        ("7B", [8], 40),
        ("7B", [8], 24),
        ("32B", [8, 8], 80),
        ("32B", [8] * 4, 80),
        ("72B", [8] * 4, 80),
        ("72B", [8], 192),
    ],
)
def test_common_clusters_have_room_in_every_phase_of_a_step(
    models: dict[str, ModelSize], size: str, gpus: list[int], memory: int
) -> None:
    for flags in ((), GRPO):
        choice, config, found = chosen(models[size], nodes(*gpus, memory=memory * GB), *flags)
        assert not choice.faults
        assert found.layout.slots == sum(gpus)
        assert peak(models[size], config, found, memory * GB) <= 0.9 * memory * GB


def test_flags_that_are_given_are_kept_and_completed(models: dict[str, ModelSize]) -> None:
    given_flags = ("--actor_num_nodes", "1", "--actor_num_gpus_per_node", "8", "--zero_stage", "3")
    _, config, found = chosen(models["7B"], nodes(8, 8, 8), *given_flags)
    assert (config.actor_num_nodes, config.actor_num_gpus_per_node) == (1, 8)
    assert config.sharding.zero_stage == 3
    assert found.layout.slots == 24
    _, config, _ = chosen(models["7B"], nodes(8), "--param_dtype", "fp32", "--lora_rank", "8")
    assert not config.mixed_precision


def test_engines_that_are_given_do_not_share_a_gpu(models: dict[str, ModelSize]) -> None:
    flags = ("--colocate_all_models", "--actor_num_gpus_per_node", "4", "--vllm_num_engines", "4")
    _, config, _ = chosen(models["7B"], nodes(8, 8, 8), *GRPO, *flags)
    assert config.vllm_num_engines * config.vllm.tensor_parallel_size <= config.policy_ranks


def test_the_optimizer_does_not_leave_the_gpus_without_zero(models: dict[str, ModelSize]) -> None:
    choice, _, _ = chosen(models["7B"], nodes(8), *GRPO, "--zero_stage", "0")
    assert choice.faults


def test_an_engine_of_a_model_known_by_its_name_divides_its_heads() -> None:
    size = named_size("Qwen/Qwen2.5-7B-Instruct")
    assert size
    assert [ranks for ranks in range(1, 9) if size.splits_over(ranks)] == [1, 2, 4]
    size = named_size("Qwen/Qwen2.5-1.5B-Instruct")
    assert size
    assert not size.splits_over(6)  # its heads do, its feed-forward layers do not


@pytest.mark.parametrize(
    "flags",
    [
        ("--colocate_all_models", "--vllm_tensor_parallel_size", "2"),
        ("--zero_stage", "3", "--zpg", "8"),
        ("--attn_implementation", "flash_attention_2"),
        ("--colocate_all_models", "--vllm_gpu_memory_utilization", "0.4"),
    ],
)
def test_flags_that_only_the_chosen_layout_makes_valid_are_taken(
    models: dict[str, ModelSize], flags: tuple[str, ...]
) -> None:
    _, config, found = chosen(models["7B"], nodes(8, 8), *flags)
    assert found.layout.slots == 16
    assert config.mixed_precision


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("Tesla T4", "fp32"),
        ("Tesla V100S-PCIE-32GB", "fp32"),
        ("NVIDIA A100-SXM4-80GB", "bf16"),
        ("", "bf16"),
    ],
)
def test_gpus_that_have_no_bf16_compute_in_fp32(
    models: dict[str, ModelSize], model: str, dtype: str
) -> None:
    modern, other = nodes(4, 4, memory=16 * GB)
    for offers in ([replace(other, gpu_model=model)], [modern, replace(other, gpu_model=model)]):
        assert chosen(models["0.5B"], offers, *GRPO)[1].param_dtype == dtype


def test_a_role_with_a_resource_of_its_own_keeps_it(models: dict[str, ModelSize]) -> None:
    offers = [
        *nodes(8, 8),
        NodeResources(name="old", gpus=8, gpu_memory=32 * GB, cpus=32, resources={"v100": 8.0}),
    ]
    _, _, found = chosen(models["7B"], offers, "--ref_resources", '{"v100": 1}')
    assert set(found.nodes["reference"]) == {"old"}
    assert found.layout.slots == 24


def test_models_of_unknown_size_and_gpus_of_unknown_memory_get_a_layout() -> None:
    choice, config, found = chosen(None, nodes(8, 8, memory=0))
    assert found.layout.slots == 16
    assert config.sharding.zero_stage == 3
    assert any("size of some/model is unknown" in reason for reason in choice.reasons)
    assert any("memory is unknown" in reason for reason in choice.reasons)


ROLLS = st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), min_size=1, max_size=4).filter(any)
ALGORITHMS = st.sampled_from([(), GRPO, ("--init_kl_coef", "0"), REWARD_MODEL, ("--async_train",)])
PARTS = st.sampled_from(
    [
        *[(), (), (), ("--zero_stage", "3"), ("--enable_ema",), ("--lora_rank", "8")],
        *[
            ("--rollout_engine", "hf"),
            ("--init_kl_coef", "0"),
            ("--train_batch_size", "4", "--micro_train_batch_size", "4"),
        ],
        *[("--vllm_tensor_parallel_size", "2"), ("--vllm_num_engines", "2")],
        *[("--colocate_actor_ref",), ("--colocate_all_models",), ("--use_dynamic_batch",)],
        *[("--actor_num_gpus_per_node", "2"), ("--ref_num_gpus_per_node", "1")],
    ]
)


@given(
    gpus=ROLLS,
    memory=st.sampled_from([0, 16, 24, 40, 80, 141]),
    size=st.sampled_from([None, "0.5B", "7B", "72B"]),
    algorithm=ALGORITHMS,
    part=PARTS,
)
@settings(max_examples=40)
def test_every_choice_is_valid_uses_all_gpus_and_fits(
    models: dict[str, ModelSize],
    gpus: list[int],
    memory: int,
    size: str | None,
    algorithm: tuple[str, ...],
    part: tuple[str, ...],
) -> None:
    offers, known = nodes(*gpus, memory=memory * GB), models[size] if size else None
    choice, config, found = chosen(known, offers, *algorithm, *part)
    if choice.faults:
        assert not choice.words
        return
    assert named_in(choice.words).isdisjoint(named_in(argv_of(*algorithm, *part)))
    if found.shortfalls:  # the given flags have no room, and nothing was chosen
        assert not choice.words
        assert part or algorithm
        return
    before = parse(argv_of(*algorithm, *part), incomplete=True)
    added = {*config.warnings} - {*before.warnings}
    assert all("is less than the" in warning for warning in added)  # a rank for each sample
    again = [*argv_of(*algorithm, *part), *choice.words]
    assert complete(parse(again), named_in(again), offers, lambda model: known).words == ()
    if found.layout.slots < sum(gpus):
        assert part or any("no work" in reason for reason in choice.reasons)
    if known and memory and not part:
        assert peak(known, config, found, memory * GB) <= memory * GB
        if "--gradient_checkpointing" in choice.words:
            faster = config.with_flags({"gradient_checkpointing": False})
            assert peak(known, faster, found, memory * GB) > 0.9 * memory * GB


def test_every_flag_of_a_choice_is_a_flag_of_the_trainer() -> None:
    from trainer.cluster.auto_layout.savings import SAVERS
    from trainer.config.config import declared_flags

    wanted = {*SAVERS, *LAYOUT_FLAGS}
    assert wanted <= declared_flags().keys()
