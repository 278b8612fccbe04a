"""Flags: how models lie on GPUs; each that has no effect says what is done instead."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import DEEPSPEED, LAYOUT, VLLM, Resources, flag

ONE_GPU_A_LAYER = "a layer lies on one GPU or, by ZeRO-3, on all"
NOT_COMPILED = "models run as they are"


@dataclass(frozen=True, kw_only=True)
class LayoutFlags:
    actor_num_nodes: int = flag(
        1,
        group=LAYOUT,
        dotted="actor.num_nodes",
        at_least=0,
        help="nodes of the policy: ranks are nodes x GPUs per node",
    )
    actor_num_gpus_per_node: int = flag(
        1,
        group=LAYOUT,
        dotted="actor.num_gpus_per_node",
        at_least=0,
        help="its GPUs on each",
    )
    critic_num_nodes: int = flag(
        1,
        group=LAYOUT,
        dotted="critic.num_nodes",
        at_least=0,
        help="nodes of the critic: ranks are nodes x GPUs per node",
    )
    critic_num_gpus_per_node: int = flag(
        1,
        group=LAYOUT,
        dotted="critic.num_gpus_per_node",
        at_least=0,
        help="its GPUs on each",
    )
    ref_num_nodes: int = flag(
        1,
        group=LAYOUT,
        dotted="ref.num_nodes",
        at_least=0,
        help="nodes of the reference: ranks are nodes x GPUs per node",
    )
    ref_num_gpus_per_node: int = flag(
        1,
        group=LAYOUT,
        dotted="ref.num_gpus_per_node",
        at_least=0,
        help="its GPUs on each",
    )
    reward_num_nodes: int = flag(
        1,
        group=LAYOUT,
        dotted="reward.num_nodes",
        at_least=0,
        help="nodes of the reward model",
    )
    reward_num_gpus_per_node: int = flag(
        1,
        group=LAYOUT,
        dotted="reward.num_gpus_per_node",
        at_least=0,
        help="its GPUs on each",
    )
    colocate_actor_ref: bool = flag(
        False,
        group=LAYOUT,
        dotted="train.colocate_actor_ref",
        help="policy and reference on the same GPUs",
    )
    colocate_critic_reward: bool = flag(
        False,
        group=LAYOUT,
        dotted="train.colocate_critic_reward",
        help="critic and reward model on the same GPUs",
    )
    colocate_all_models: bool = flag(
        False,
        group=LAYOUT,
        dotted="train.colocate_all",
        help="all models and engines on the same GPUs",
    )
    actor_resources: Resources = flag(
        Resources(), group=LAYOUT, help='custom Ray resources of each of its ranks: {"a100": 1}'
    )
    critic_resources: Resources = flag(Resources(), group=LAYOUT, help="the same of the critic")
    ref_resources: Resources = flag(Resources(), group=LAYOUT, help="the same of the reference")
    reward_resources: Resources = flag(
        Resources(), group=LAYOUT, help="the same of the reward model"
    )
    vllm_resources: Resources = flag(
        Resources(), group=LAYOUT, help="the same of each GPU of an engine"
    )
    async_train: bool = flag(
        False,
        group=LAYOUT,
        dotted="train.async_enable",
        help="rollouts while the last ones are trained on",
    )
    max_staleness: int = flag(
        1,
        group=LAYOUT,
        dotted="train.async_queue_size",
        aliases=("async_queue_size",),
        at_least=0,
        unit="steps",
        help="the most versions of the policy between a sample's first token and its training",
    )
    partial_rollout: bool = flag(
        False,
        group=LAYOUT,
        dotted="train.partial_rollout_enable",
        help="new weights in the middle of a completion, not only between two",
    )
    ring_attn_size: int = flag(
        1,
        group=LAYOUT,
        dotted="ds.ring_attn_size",
        at_least=1,
        help="GPUs that share a sequence",
        unsupported="A sequence lies on one GPU; only 1 is right",
    )
    ring_head_stride: int = flag(
        1,
        group=LAYOUT,
        dotted="ds.ring_attn_head_stride",
        at_least=1,
        help="heads sent around at a time",
        no_effect="a sequence lies on one GPU",
    )
    local_rank: int = flag(
        -1, group=LAYOUT, help="set by launchers", no_effect="Ray starts the processes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """Settings that only vLLM has."""

    tensor_parallel_size: int = flag(
        1,
        group=VLLM,
        dotted="tensor_parallel_size",
        at_least=1,
        help="GPUs of one engine",
    )
    gpu_memory_utilization: float | None = flag(
        None,
        group=VLLM,
        dotted="gpu_memory_utilization",
        above=0,
        at_most=1,
        help="share of a GPU's memory that an engine takes",
    )
    sync_backend: str = flag(
        "auto",
        group=VLLM,
        dotted="sync_backend",
        choices=("auto", "nccl", "ipc", "shared_memory"),
        synonyms={"gloo": "shared_memory"},
        help="how weights reach the engines: nccl, ipc (CUDA IPC, on GPUs that the policy shares), "
        "shared_memory (gloo: the same), auto: by the GPUs and who shares them",
    )
    """An engine gets the backend that `weight_sync.choose` chose, which is never auto."""
    sync_port: int = flag(
        0,
        group=VLLM,
        at_least=0,
        at_most=65_535,
        help="TCP port of the policy's first node where its weights' group meets, or other nodes "
        "read them; 0: any free one",
    )
    sync_with_ray: bool = flag(
        False,
        group=VLLM,
        dotted="sync_with_ray",
        help="weights through Ray's collectives",
        no_effect="weights go over in vLLM's own way",
    )
    enable_sleep: bool = flag(
        False,
        group=VLLM,
        dotted="enable_sleep",
        help="free the engines' memory while training",
    )
    enable_prefix_caching: bool = flag(
        False,
        name="enable_prefix_caching",
        group=VLLM,
        dotted="enable_prefix_caching",
        help="keep the caches of shared beginnings",
    )
    enforce_eager: bool = flag(
        False,
        name="enforce_eager",
        group=VLLM,
        dotted="enforce_eager",
        help="no CUDA graphs",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What the ranks of a model share among themselves (Rajbhandari et al. 2020, section 5)."""

    zero_stage: int = flag(
        0,
        group=DEEPSPEED,
        dotted="zero_stage",
        at_least=0,
        at_most=3,
        help="what is sharded over ranks: 1 Adam's state, 2 gradients too, 3 weights too",
    )
    zpg: int = flag(
        1,
        group=DEEPSPEED,
        dotted="zpg",
        at_least=1,
        help="ranks of a node that share a copy of the weights (ZeRO++), with --zero_stage 3",
    )
    adam_offload: bool = flag(
        False,
        group=DEEPSPEED,
        dotted="adam_offload",
        help="the optimiser in the CPU's memory, under ZeRO",
    )
    overlap_comm: bool = flag(
        False,
        group=DEEPSPEED,
        dotted="overlap_comm",
        help="communicate while computing, under ZeRO",
    )
    grad_accum_dtype: str = flag(
        "",
        group=DEEPSPEED,
        dotted="grad_accum_dtype",
        help="type of accumulated gradients, under ZeRO; the weights' own where empty",
        choices=("", "fp32", "bf16"),
    )
    sleep: bool = flag(
        False,
        name="deepspeed_enable_sleep",
        group=DEEPSPEED,
        dotted="enable_sleep",
        help="models leave the GPU while others compute",
    )


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFlags:
    """Flags of DeepSpeed that no worker needs."""

    deepcompile: bool = flag(
        False,
        group=DEEPSPEED,
        dotted="ds.deepcompile",
        help="DeepSpeed's compiler",
        no_effect=NOT_COMPILED,
    )
    ds_tensor_parallel_size: int = flag(
        1,
        group=DEEPSPEED,
        dotted="ds.tensor_parallel_size",
        at_least=1,
        help="GPUs that share a layer",
        no_effect=ONE_GPU_A_LAYER,
    )
    use_ds_universal_ckpt: bool = flag(
        False,
        group=DEEPSPEED,
        dotted="ds.use_universal_ckpt",
        help="checkpoints for any ZeRO stage",
        no_effect="checkpoints are of no layout, so that any reads them",
    )
    dist_timeout: int = flag(
        1800,
        group=DEEPSPEED,
        unit="seconds",
        at_least=10,
        help="the longest that ranks wait for one another; who does not answer is named",
    )
