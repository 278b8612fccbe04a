"""Flags: the layout of models on GPUs, vLLM and DeepSpeed."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import DEEPSPEED, LAYOUT, VLLM, Resources, flag

ONE_GPU_A_LAYER = "a layer is on one GPU or, with ZeRO-3, on all"
NOT_COMPILED = "models run uncompiled"


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
        help="GPUs on each of its nodes",
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
        help="GPUs on each of its nodes",
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
        help="GPUs on each of its nodes",
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
        help="GPUs on each of its nodes",
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
    critic_resources: Resources = flag(Resources(), group=LAYOUT, help="the same for the critic")
    ref_resources: Resources = flag(Resources(), group=LAYOUT, help="the same for the reference")
    reward_resources: Resources = flag(
        Resources(), group=LAYOUT, help="the same for the reward model"
    )
    vllm_resources: Resources = flag(
        Resources(), group=LAYOUT, help="the same for each GPU of an engine"
    )
    ring_attn_size: int = flag(
        1,
        group=LAYOUT,
        dotted="ds.ring_attn_size",
        at_least=1,
        help="GPUs that share each sample of policy, critic and reference: each has a slice of its "
        "tokens, and of the heads in attention",
    )
    ring_head_stride: int = flag(
        1,
        group=LAYOUT,
        dotted="ds.ring_attn_head_stride",
        at_least=1,
        help="heads that are exchanged at a time",
        no_effect="all heads are exchanged at once",
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
        help="fraction of a GPU's memory for one engine",
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
        help="TCP port on the policy's first node, where engines on other nodes get its weights; "
        "0: any free port",
    )
    sync_with_ray: bool = flag(
        False,
        group=VLLM,
        dotted="sync_with_ray",
        help="send weights by Ray's collectives",
        no_effect="weights are sent by vLLM's own transfer engines",
    )
    enable_sleep: bool = flag(
        False,
        group=VLLM,
        dotted="enable_sleep",
        help="free the engines' memory while training",
    )
    enable_prefix_caching: bool = flag(
        True,
        name="enable_prefix_caching",
        group=VLLM,
        dotted="enable_prefix_caching",
        help="keep the keys and values of what prompts share, as the samples of one prompt do",
    )
    enforce_eager: bool = flag(
        False,
        name="enforce_eager",
        group=VLLM,
        dotted="enforce_eager",
        help="no CUDA graphs",
    )
    head_dtype: str = flag(
        "fp32",
        group=VLLM,
        choices=("fp32", "bf16"),
        help="type of the logits that an engine samples from, if it computes in bf16; fp32 is the "
        "trainer's",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding of a model over its ranks (Rajbhandari et al. 2020, section 5)."""

    zero_stage: int = flag(
        0,
        group=DEEPSPEED,
        dotted="zero_stage",
        at_least=0,
        at_most=3,
        help="shard over ranks: 1 Adam's state, 2 also gradients, 3 also weights",
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
        help="keep the optimizer in the CPU's memory, under ZeRO",
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
        help="type of accumulated gradients, under ZeRO; default: the weights' type",
        choices=("", "fp32", "bf16"),
    )
    sleep: bool = flag(
        False,
        name="deepspeed_enable_sleep",
        group=DEEPSPEED,
        dotted="enable_sleep",
        help="move models off the GPU while others compute",
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
        no_effect="checkpoints do not depend on the layout",
    )
    dist_timeout: int = flag(
        1800,
        group=DEEPSPEED,
        unit="seconds",
        at_least=10,
        help="longest wait of ranks for one another; the error names the silent rank",
    )
