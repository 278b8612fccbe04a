"""Flags: rollouts and passes, the optimiser, precision, memory, LoRA."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import LORA, MEMORY, ROLLOUT, TRAIN, flag


@dataclass(frozen=True, kw_only=True)
class RolloutFlags:
    rollout_batch_size: int = flag(
        1024,
        group=ROLLOUT,
        dotted="rollout.batch_size",
        unit="prompts",
        at_least=1,
        help="prompts of one step",
    )
    n_samples_per_prompt: int = flag(
        1,
        group=ROLLOUT,
        dotted="rollout.n_samples_per_prompt",
        at_least=1,
        help="completions of a prompt",
    )
    micro_rollout_batch_size: int = flag(
        64,
        group=ROLLOUT,
        dotted="rollout.micro_batch_size",
        unit="samples",
        at_least=1,
        help="samples decoded or scored at a time",
    )
    rollout_max_tokens_per_gpu: int | None = flag(
        None,
        group=ROLLOUT,
        dotted="rollout.max_tokens_per_gpu",
        unit="tokens",
        at_least=1,
        help="budget of a scoring pass; --train_max_tokens_per_gpu where absent",
    )
    generate_max_len: int = flag(
        1024,
        group=ROLLOUT,
        dotted="rollout.max_new_tokens",
        aliases=("max_new_tokens",),
        unit="tokens",
        at_least=1,
        help="longest completion",
    )
    temperature: float = flag(
        1.0, group=ROLLOUT, dotted="rollout.temperature", above=0, help="sampling temperature"
    )
    top_p: float = flag(
        1.0, group=ROLLOUT, dotted="rollout.top_p", above=0, at_most=1, help="nucleus sampling"
    )
    vllm_num_engines: int = flag(
        1,
        group=ROLLOUT,
        dotted="vllm.num_engines",
        at_least=1,
        help="rollout engines, whatever their kind",
    )
    vllm_generate_batch_size: int | None = flag(
        None,
        group=ROLLOUT,
        dotted="rollout.vllm_generate_batch_size",
        unit="prompts",
        at_least=1,
        help="prompts sent out at a time",
        no_effect="engines get all prompts of a step at once and take them in as others end",
    )
    rollout_engine: str = flag(
        "auto",
        group=ROLLOUT,
        choices=("auto", "hf", "vllm"),
        help="kind of the engines: vLLM, transformers; auto is vLLM on GPUs where it is installed",
    )


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    train_batch_size: int = flag(
        128,
        group=TRAIN,
        dotted="train.batch_size",
        unit="samples",
        at_least=1,
        help="samples of one optimiser step",
    )
    micro_train_batch_size: int = flag(
        8,
        group=TRAIN,
        dotted="train.micro_batch_size",
        unit="samples",
        at_least=1,
        help="samples of one forward and backward pass",
    )
    use_dynamic_batch: bool = flag(
        False,
        group=TRAIN,
        dotted="train.dynamic_batch_enable",
        help="cut passes by tokens instead of samples",
    )
    train_max_tokens_per_gpu: int = flag(
        16_192,
        group=TRAIN,
        dotted="train.max_tokens_per_gpu",
        unit="tokens",
        at_least=1,
        help="budget of a training pass",
    )
    max_epochs: int = flag(
        1,
        group=TRAIN,
        dotted="train.max_epochs",
        at_least=1,
        help="passes over each step's samples",
    )
    num_episodes: int = flag(
        1, group=TRAIN, dotted="train.num_episodes", at_least=1, help="passes over the prompts"
    )
    max_steps: int | None = flag(None, group=TRAIN, at_least=1, help="stop after so many steps")
    freezing_actor_steps: int = flag(
        0,
        group=TRAIN,
        dotted="critic.freezing_steps",
        unit="steps",
        at_least=-1,
        help="only the critic learns so long",
    )
    enable_ema: bool = flag(
        False, group=TRAIN, dotted="train.enable_ema", help="keep a moving average of the policy"
    )
    ema_beta: float = flag(
        0.992,
        group=TRAIN,
        dotted="train.ema_beta",
        at_least=0,
        at_most=1,
        help="weight of the old average",
    )
    seed: int = flag(
        42, group=TRAIN, dotted="train.seed", at_least=0, help="seed of everything random"
    )
    full_determinism: bool = flag(
        False,
        group=TRAIN,
        dotted="train.full_determinism_enable",
        help="deterministic kernels, slower",
    )


@dataclass(frozen=True, kw_only=True)
class MemoryFlags:
    param_dtype: str = flag(
        "fp32",
        group=MEMORY,
        dotted="ds.param_dtype",
        choices=("fp32", "bf16"),
        help="bf16 computes with fp32 master weights",
    )
    bf16: bool = flag(False, group=MEMORY, help="the same as --param_dtype bf16")
    gradient_checkpointing: bool = flag(
        False,
        group=MEMORY,
        dotted="actor.gradient_checkpointing_enable",
        help="recompute activations",
    )
    gradient_checkpointing_use_reentrant: bool = flag(
        False,
        group=MEMORY,
        dotted="actor.gradient_checkpointing_reentrant",
        help="torch's older checkpointing",
        no_effect="the newer checkpointing is used, with the same gradients",
    )
    packing_samples: bool = flag(
        False,
        group=MEMORY,
        dotted="ds.packing_samples",
        help="sequences end to end, no padding through the model",
    )
    attn_implementation: str | None = flag(
        None,
        group=MEMORY,
        dotted="ds.attn_implementation",
        help="transformers' attention: eager, sdpa, flash_attention_2 …; what fits where absent",
    )
    flash_attn: bool = flag(
        False, group=MEMORY, help="the same as --attn_implementation flash_attention_2"
    )
    experts_implementation: str | None = flag(
        None,
        group=MEMORY,
        dotted="ds.experts_implementation",
        help="kernels of a mixture of experts",
        no_effect="transformers chooses them",
    )
    use_liger_kernel: bool = flag(
        False,
        group=MEMORY,
        dotted="ds.use_liger_kernel",
        help="Liger's fused kernels",
        no_effect="logits are computed in chunks instead",
    )
    ref_reward_offload: bool = flag(
        False,
        group=MEMORY,
        dotted=("ref.offload", "reward.offload"),
        help="the reference in the CPU's memory between its passes",
    )
    load_in_4bit: bool = flag(
        False,
        group=MEMORY,
        dotted="ds.load_in_4bit",
        help="weights in 4 bits",
        unsupported="Weights are bf16 or fp32; --lora_rank saves memory too",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASettings:
    """Low-rank adapters, which are trained in place of the weights."""

    rank: int = flag(0, group=LORA, dotted="rank", at_least=0, help="rank of the adapters; 0: none")
    alpha: int = flag(
        16, group=LORA, dotted="alpha", at_least=1, help="their scale, times the rank"
    )
    dropout: float = flag(
        0.0, group=LORA, dotted="dropout", at_least=0, at_most=1, help="dropout before them"
    )
    target_modules: tuple[str, ...] = flag(
        ("all-linear",),
        name="target_modules",
        group=LORA,
        dotted="target_modules",
        help="modules that get one",
    )
    """Last parts of modules' names, or all-linear."""
