"""A stage's flags → the arguments of transformers' Trainer, and DeepSpeed's configuration."""

from __future__ import annotations

import os
from typing import Any

from trainer.supervised import batches, loggers
from trainer.supervised.options import StageFlags


def of_trainer(flags: StageFlags, largest: int, world: int, *, cpu: bool) -> dict[str, Any]:
    """Return the arguments that all stages have.

    `largest`: samples of a pass, unless a flag says. `world`: the number of ranks.
    """
    passes = batches.passes(flags, largest, world)
    interval, evaluates = flags.save_interval, bool(flags.eval_dataset)
    bf16 = not cpu if flags.mixed_precision is None else flags.mixed_precision
    return {
        "output_dir": str(flags.checkpoints if interval or flags.run_dir else flags.exported),
        "per_device_train_batch_size": passes.samples,
        "per_device_eval_batch_size": passes.samples,
        "gradient_accumulation_steps": passes.count,
        "num_train_epochs": flags.max_epochs,
        "max_steps": flags.max_steps or -1,
        "learning_rate": flags.learning_rate,
        "warmup_steps": flags.lr_warmup_ratio,
        "lr_scheduler_type": flags.lr_scheduler,
        **_scheduler(flags),
        "weight_decay": flags.l2,
        "adam_beta1": flags.adam_betas[0],
        "adam_beta2": flags.adam_betas[1],
        "adam_epsilon": flags.adam_eps,
        "max_grad_norm": flags.max_norm,
        "max_length": None,  # `lengths` cuts the rows, and says how many
        "seed": flags.seed,
        "full_determinism": flags.full_determinism,
        "use_cpu": cpu,
        "bf16": bf16,
        "gradient_checkpointing": flags.gradient_checkpointing,
        "dataloader_num_workers": flags.dataloader_num_workers,
        "ddp_timeout": flags.dist_timeout,
        "deepspeed": of_deepspeed(flags) if flags.zero_stage else None,
        "save_strategy": "steps" if interval else "no",
        "save_steps": interval or 500,
        "save_total_limit": flags.max_ckpt_num,
        "eval_strategy": _evaluations(flags) if evaluates else "no",
        "eval_steps": flags.eval_steps if flags.eval_steps > 0 else None,
        "report_to": loggers.reports(flags, os.environ) or "none",
        "run_name": flags.wandb_run_name,
        "logging_steps": flags.logging_steps,
        "disable_tqdm": True,
    }


def of_deepspeed(flags: StageFlags) -> dict[str, Any]:
    """Return DeepSpeed's configuration; `auto` stands for the Trainer's own arguments."""
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "data_types": {"grad_accum_dtype": flags.grad_accum_dtype or None},
        "zero_optimization": {
            "stage": flags.zero_stage,
            "overlap_comm": flags.overlap_comm,
            "reduce_bucket_size": "auto",
            "zero_hpz_partition_size": flags.zpg if flags.zero_stage == 3 else 1,
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "cpu" if flags.adam_offload else "none"},
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _scheduler(flags: StageFlags) -> dict[str, Any]:
    if flags.lr_scheduler != "cosine_with_min_lr":
        return {}
    return {"lr_scheduler_kwargs": {"min_lr_rate": flags.min_lr_ratio}}


def _evaluations(flags: StageFlags) -> str:
    return "steps" if flags.eval_steps > 0 else "epoch"
