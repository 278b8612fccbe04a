"""Flags: training passes, precision, memory, LoRA."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import LORA, MEMORY, TRAIN, flag


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Training passes, and the length of the run."""

    train_batch_size: int = flag(
        128,
        group=TRAIN,
        dotted="train.batch_size",
        unit="samples",
        at_least=1,
        help="samples of one optimizer step",
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
        help="limit passes by tokens instead of samples",
    )
    train_max_tokens_per_gpu: int = flag(
        16_192,
        group=TRAIN,
        dotted="train.max_tokens_per_gpu",
        unit="tokens",
        at_least=1,
        help="tokens of a training pass",
    )
    max_epochs: int = flag(
        1,
        group=TRAIN,
        dotted="train.max_epochs",
        at_least=1,
        help="passes over each step's samples",
    )
    num_episodes: int | None = flag(
        None,
        group=TRAIN,
        dotted="train.num_episodes",
        at_least=1,
        help="passes over the prompts; default: 1, or with --max_steps as many as those take",
    )
    max_steps: int | None = flag(
        None,
        group=TRAIN,
        at_least=1,
        help="last step of the run, unless --num_episodes ends it earlier",
    )
    freezing_actor_steps: int = flag(
        0,
        group=TRAIN,
        dotted="critic.freezing_steps",
        unit="steps",
        at_least=-1,
        help="first steps in which only the critic learns",
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
        help="use deterministic kernels, which are slower",
    )

    @property
    def max_tokens(self) -> int | None:
        """Tokens of one training pass; None: `micro_train_batch_size` is the limit."""
        return self.train_max_tokens_per_gpu if self.use_dynamic_batch else None


@dataclass(frozen=True, kw_only=True)
class MemoryFlags:
    param_dtype: str = flag(
        "fp32",
        group=MEMORY,
        dotted="ds.param_dtype",
        choices=("fp32", "bf16"),
        help="bf16: compute in bf16, with fp32 master weights",
    )
    bf16: bool = flag(False, group=MEMORY, help="the same as --param_dtype bf16")
    gradient_checkpointing: bool = flag(
        False,
        group=MEMORY,
        dotted="actor.gradient_checkpointing_enable",
        help="recompute activations in the backward pass",
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
        help="put sequences end to end, so that no padding passes through the model",
    )
    attn_implementation: str | None = flag(
        None,
        group=MEMORY,
        dotted="ds.attn_implementation",
        help="transformers' attention: eager, sdpa, flash_attention_2 …; default: its own choice",
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
        help="Liger's kernels of norms, rotary embeddings and gated MLPs, on GPUs",
    )
    ref_reward_offload: bool = flag(
        False,
        group=MEMORY,
        dotted=("ref.offload", "reward.offload"),
        help="keep reference and reward models in the CPU's memory between passes",
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
    """Low-rank adapters, which are trained instead of the weights."""

    rank: int = flag(0, group=LORA, dotted="rank", at_least=0, help="rank of the adapters; 0: none")
    alpha: int = flag(
        16, group=LORA, dotted="alpha", at_least=1, help="scale of the adapters, times the rank"
    )
    dropout: float = flag(
        0.0, group=LORA, dotted="dropout", at_least=0, at_most=1, help="dropout before the adapters"
    )
    target_modules: tuple[str, ...] = flag(
        ("all-linear",),
        name="target_modules",
        group=LORA,
        dotted="target_modules",
        help="modules that get an adapter",
    )
    """Last parts of the names of modules, or all-linear."""
