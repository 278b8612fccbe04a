"""Flags: training passes, precision, memory, LoRA."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Training passes, and the length of the run."""

    train_batch_size: int = Group.TRAIN.flag(
        128, "samples of one optimizer step", dotted="train.batch_size", unit="samples", at_least=1
    )
    micro_train_batch_size: int = Group.TRAIN.flag(
        8,
        "samples of one forward and backward pass",
        dotted="train.micro_batch_size",
        unit="samples",
        at_least=1,
    )
    use_dynamic_batch: bool = Group.TRAIN.flag(
        False, "limit passes by tokens instead of samples", dotted="train.dynamic_batch_enable"
    )
    train_max_tokens_per_gpu: int = Group.TRAIN.flag(
        16_192,
        "tokens of a training pass",
        dotted="train.max_tokens_per_gpu",
        unit="tokens",
        at_least=1,
    )
    max_epochs: int = Group.TRAIN.flag(
        1, "passes over each step's samples", dotted="train.max_epochs", at_least=1
    )
    num_episodes: int | None = Group.TRAIN.flag(
        None,
        "passes over the prompts; default: 1, or with --max_steps as many as those take",
        dotted="train.num_episodes",
        at_least=1,
    )
    max_steps: int | None = Group.TRAIN.flag(
        None, "last step of the run, unless --num_episodes ends it earlier", at_least=1
    )
    freezing_actor_steps: int = Group.TRAIN.flag(
        0,
        "first steps in which only the critic learns",
        dotted="critic.freezing_steps",
        unit="steps",
        at_least=-1,
    )
    weight_check_steps: int = Group.CHECKPOINTS.flag(
        1,
        "steps between checks that memory keeps its bits and ranks have equal weights; 0: never",
        unit="steps",
        at_least=0,
    )
    pass_check_steps: int = Group.CHECKPOINTS.flag(
        0,
        "steps between comparisons of one pass of each rank with other ranks; 0: on suspicion only",
        unit="steps",
        at_least=0,
    )
    enable_ema: bool = Group.TRAIN.flag(
        False, "keep a moving average of the policy", dotted="train.enable_ema"
    )
    ema_beta: float = Group.TRAIN.flag(
        0.992, "weight of the old average", dotted="train.ema_beta", at_least=0, at_most=1
    )
    seed: int = Group.TRAIN.flag(42, "seed of everything random", dotted="train.seed", at_least=0)
    full_determinism: bool = Group.TRAIN.flag(
        False, "use deterministic kernels, which are slower", dotted="train.full_determinism_enable"
    )

    @property
    def max_tokens(self) -> int | None:
        """Tokens of one training pass; None: `micro_train_batch_size` is the limit."""
        return self.train_max_tokens_per_gpu if self.use_dynamic_batch else None


@dataclass(frozen=True, kw_only=True)
class MemoryFlags:
    param_dtype: str = Group.MEMORY.flag(
        "fp32",
        "bf16: compute in bf16, with fp32 master weights",
        dotted="ds.param_dtype",
        choices=("fp32", "bf16"),
    )
    bf16: bool = Group.MEMORY.flag(False, "the same as --param_dtype bf16")
    gradient_checkpointing: bool = Group.MEMORY.flag(
        False,
        "recompute activations in the backward pass",
        dotted="actor.gradient_checkpointing_enable",
    )
    gradient_checkpointing_use_reentrant: bool = Group.MEMORY.flag(
        False,
        "torch's older checkpointing",
        dotted="actor.gradient_checkpointing_reentrant",
        no_effect="the newer checkpointing is used, with the same gradients",
    )
    packing_samples: bool = Group.MEMORY.flag(
        False,
        "put sequences end to end, so that no padding passes through the model",
        dotted="ds.packing_samples",
    )
    attn_implementation: str | None = Group.MEMORY.flag(
        None,
        "transformers' attention: eager, sdpa, flash_attention_2 …; default: its own choice",
        dotted="ds.attn_implementation",
    )
    flash_attn: bool = Group.MEMORY.flag(
        False, "the same as --attn_implementation flash_attention_2"
    )
    experts_implementation: str | None = Group.MEMORY.flag(
        None,
        "kernels of a mixture of experts",
        dotted="ds.experts_implementation",
        no_effect="transformers chooses them",
    )
    use_liger_kernel: bool = Group.MEMORY.flag(
        False,
        "Liger's kernels of norms, rotary embeddings and gated MLPs, on GPUs",
        dotted="ds.use_liger_kernel",
    )
    ref_reward_offload: bool = Group.MEMORY.flag(
        False,
        "keep reference and reward models in the CPU's memory between passes",
        dotted=("ref.offload", "reward.offload"),
    )
    load_in_4bit: bool = Group.MEMORY.flag(
        False,
        "weights in 4 bits",
        dotted="ds.load_in_4bit",
        unsupported="Weights are bf16 or fp32; --lora_rank saves memory too",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASettings:
    """Low-rank adapters, which are trained instead of the weights."""

    rank: int = Group.LORA.flag(0, "rank of the adapters; 0: none", dotted="rank", at_least=0)
    alpha: int = Group.LORA.flag(
        16, "scale of the adapters, times the rank", dotted="alpha", at_least=1
    )
    dropout: float = Group.LORA.flag(
        0.0, "dropout before the adapters", dotted="dropout", at_least=0, at_most=1
    )
    target_modules: tuple[str, ...] = Group.LORA.flag(
        ("all-linear",),
        "modules that get an adapter",
        name="target_modules",
        dotted="target_modules",
    )
    """Last parts of the names of modules, or all-linear."""
