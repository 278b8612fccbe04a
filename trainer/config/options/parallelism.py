"""Flags: the layout of models on GPUs, vLLM and DeepSpeed."""

# ruff: noqa: RUF009 - `Group.flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.config.schema import Group
from trainer.config.values import Resources

ONE_GPU_A_LAYER = "a layer is on one GPU or, with ZeRO-3, on all"
NOT_COMPILED = "models run uncompiled"


def _nodes(model: str, whose: str) -> Any:
    return Group.LAYOUT.flag(1, f"nodes of {whose}", dotted=f"{model}.num_nodes", at_least=0)


def _gpus(model: str) -> Any:
    dotted = f"{model}.num_gpus_per_node"
    return Group.LAYOUT.flag(1, "GPUs on each of its nodes", dotted=dotted, at_least=0)


@dataclass(frozen=True, kw_only=True)
class LayoutFlags:
    actor_num_nodes: int = _nodes("actor", "the policy: ranks are nodes x GPUs per node")
    actor_num_gpus_per_node: int = _gpus("actor")
    critic_num_nodes: int = _nodes("critic", "the critic: ranks are nodes x GPUs per node")
    critic_num_gpus_per_node: int = _gpus("critic")
    ref_num_nodes: int = _nodes("ref", "the reference: ranks are nodes x GPUs per node")
    ref_num_gpus_per_node: int = _gpus("ref")
    reward_num_nodes: int = _nodes("reward", "the reward model")
    reward_num_gpus_per_node: int = _gpus("reward")
    colocate_actor_ref: bool = Group.LAYOUT.flag(
        False, "policy and reference on the same GPUs", dotted="train.colocate_actor_ref"
    )
    colocate_critic_reward: bool = Group.LAYOUT.flag(
        False, "critic and reward model on the same GPUs", dotted="train.colocate_critic_reward"
    )
    colocate_all_models: bool = Group.LAYOUT.flag(
        False, "all models and engines on the same GPUs", dotted="train.colocate_all"
    )
    actor_resources: Resources = Group.LAYOUT.flag(
        Resources(), 'custom Ray resources of each of its ranks: {"a100": 1}'
    )
    critic_resources: Resources = Group.LAYOUT.flag(Resources(), "the same for the critic")
    ref_resources: Resources = Group.LAYOUT.flag(Resources(), "the same for the reference")
    reward_resources: Resources = Group.LAYOUT.flag(Resources(), "the same for the reward model")
    vllm_resources: Resources = Group.LAYOUT.flag(Resources(), "the same for each GPU of an engine")
    ring_attn_size: int = Group.LAYOUT.flag(
        1,
        "GPUs that share each sample of policy, critic and reference: each has some of its tokens, "
        "and of attention's heads",
        dotted="ds.ring_attn_size",
        at_least=1,
    )
    ring_head_stride: int = Group.LAYOUT.flag(
        1,
        "heads that are exchanged at a time",
        dotted="ds.ring_attn_head_stride",
        at_least=1,
        no_effect="all heads are exchanged at once",
    )
    local_rank: int = Group.LAYOUT.flag(
        -1, "set by launchers", no_effect="Ray starts the processes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """Settings that only vLLM has."""

    tensor_parallel_size: int = Group.VLLM.flag(
        1, "GPUs of one engine", dotted="tensor_parallel_size", at_least=1
    )
    gpu_memory_utilization: float | None = Group.VLLM.flag(
        None,
        "fraction of a GPU's memory for one engine",
        dotted="gpu_memory_utilization",
        above=0,
        at_most=1,
    )
    sync_backend: str = Group.VLLM.flag(
        "auto",
        "how weights reach the engines: nccl, ipc (CUDA IPC, on the policy's GPUs), "
        "shared_memory (gloo); auto: by the GPUs",
        dotted="sync_backend",
        choices=("auto", "nccl", "ipc", "shared_memory"),
        synonyms={"gloo": "shared_memory"},
    )
    """An engine gets the backend that `weight_sync.choose` chose, which is never auto."""
    sync_port: int = Group.VLLM.flag(
        0,
        "TCP port on the policy's first node, where engines on other nodes get its weights; "
        "0: any free port",
        at_least=0,
        at_most=65_535,
    )
    sync_with_ray: bool = Group.VLLM.flag(
        False,
        "send weights by Ray's collectives",
        dotted="sync_with_ray",
        no_effect="weights are sent by vLLM's own transfer engines",
    )
    enable_sleep: bool = Group.VLLM.flag(
        False, "free the engines' memory while training", dotted="enable_sleep"
    )
    enable_prefix_caching: bool = Group.VLLM.flag(
        True,
        "keep the keys and values of what prompts share, as the samples of one prompt do",
        name="enable_prefix_caching",
        dotted="enable_prefix_caching",
    )
    enforce_eager: bool = Group.VLLM.flag(
        False, "no CUDA graphs", name="enforce_eager", dotted="enforce_eager"
    )
    head_dtype: str = Group.VLLM.flag(
        "fp32",
        "type of the logits that an engine samples from, if it computes in bf16; fp32 is the "
        "trainer's",
        choices=("fp32", "bf16"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding of a model over its ranks (Rajbhandari et al. 2020, section 5)."""

    zero_stage: int = Group.DEEPSPEED.flag(
        0,
        "shard over ranks: 1 Adam's state, 2 also gradients, 3 also weights",
        dotted="zero_stage",
        at_least=0,
        at_most=3,
    )
    zpg: int = Group.DEEPSPEED.flag(
        1,
        "ranks of a node that share a copy of the weights (ZeRO++), with --zero_stage 3",
        dotted="zpg",
        at_least=1,
    )
    adam_offload: bool = Group.DEEPSPEED.flag(
        False, "keep the optimizer in the CPU's memory, under ZeRO", dotted="adam_offload"
    )
    overlap_comm: bool = Group.DEEPSPEED.flag(
        False, "communicate while computing, under ZeRO", dotted="overlap_comm"
    )
    grad_accum_dtype: str = Group.DEEPSPEED.flag(
        "",
        "type of accumulated gradients, under ZeRO; default: the weights' type",
        dotted="grad_accum_dtype",
        choices=("", "fp32", "bf16"),
    )
    sleep: bool = Group.DEEPSPEED.flag(
        False,
        "move models off the GPU while others compute",
        name="deepspeed_enable_sleep",
        dotted="enable_sleep",
    )


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFlags:
    """Flags of DeepSpeed that no worker needs."""

    deepcompile: bool = Group.DEEPSPEED.flag(
        False, "DeepSpeed's compiler", dotted="ds.deepcompile", no_effect=NOT_COMPILED
    )
    ds_tensor_parallel_size: int = Group.DEEPSPEED.flag(
        1,
        "GPUs that share a layer",
        dotted="ds.tensor_parallel_size",
        at_least=1,
        no_effect=ONE_GPU_A_LAYER,
    )
    use_ds_universal_ckpt: bool = Group.DEEPSPEED.flag(
        False,
        "checkpoints for any ZeRO stage",
        dotted="ds.use_universal_ckpt",
        no_effect="checkpoints do not depend on the layout",
    )
    dist_timeout: int = Group.DEEPSPEED.flag(
        1800,
        "longest wait of ranks for one another; the error names the silent rank",
        unit="seconds",
        at_least=10,
    )
