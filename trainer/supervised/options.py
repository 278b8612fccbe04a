"""The flags that all supervised stages have, by concern, in OpenRLHF's spellings. Torch-free.

Flags of the trainer's own options mean the same here (`shared`).
"""

# ruff: noqa: RUF009 - `Group.flag` and `shared` make dataclass fields
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import ClassVar

from contract.run_dir import RunFiles
from trainer.config.config import Config
from trainer.config.data_sets import Shares
from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.options.training import LoRASettings
from trainer.config.schema import Group, shared

SCHEDULERS = ("cosine", "linear", "constant", "constant_with_warmup", "cosine_with_min_lr")
SHARE_BETWEEN_SAVES = 0.1
"""A crash repeats less than this share of a run whose user did not choose an interval."""
ONE_SPLIT = "A data set has its split `train` here; give a directory or a file of the split"


@dataclass(frozen=True, kw_only=True)
class StageModel:
    pretrain: str = shared(
        Config,
        "pretrain",
        dotted="model.model_name_or_path",
        help="the model to begin with: a Hugging Face directory, or a name on the hub",
    )
    save_path: PurePath | None = shared(
        Config,
        "save_path",
        group=Group.MODELS,
        help="where the trained model is written; in a run of Rollcall a relative path is below "
        "RUN; default: RUN/hf",
    )
    trust_remote_code: bool = shared(Config, "trust_remote_code")
    use_ms: bool = shared(Config, "use_ms")


@dataclass(frozen=True, kw_only=True)
class StageData:
    dataset: str = Group.DATA.flag(
        "",
        "JSONL, Parquet, a data set's directory, or its name on the hub; several with commas",
        dotted="data.dataset",
        required=True,
    )
    dataset_probs: Shares | None = Group.DATA.flag(
        None,
        "one number, with one data set: no effect; shares of several are not supported",
        dotted="data.dataset_probs",
    )
    dataset_split: str = Group.DATA.flag(
        "train", "split of the data set", dotted="data.dataset_split", unsupported=ONE_SPLIT
    )
    input_template: str | None = shared(Config, "input_template")
    apply_chat_template: bool = shared(
        Config,
        "apply_chat_template",
        help="make texts turns of user and assistant by the chat template; messages are always",
    )
    tokenizer_chat_template: str | None = Group.DATA.flag(
        None,
        "a chat template in place of the tokeniser's: its text, or a .jinja file",
        dotted="data.tokenizer_chat_template",
    )
    max_len: int = Group.DATA.flag(
        1024, "longest example", dotted="data.max_len", unit="tokens", at_least=2
    )
    max_samples: int | None = shared(
        Config, "max_samples", help="use only the first rows of each data set"
    )
    disable_fast_tokenizer: bool = shared(Config, "disable_fast_tokenizer")
    dataloader_num_workers: int = shared(
        Config, "dataloader_num_workers", no_effect="", help="processes of a rank that load data"
    )
    eval_dataset: str = Group.DATA.flag(
        "", "held-out rows, as --dataset names them", dotted="eval.dataset"
    )
    eval_split: str = shared(Config, "eval_split", group=Group.DATA, unsupported=ONE_SPLIT)
    eval_steps: int = shared(
        Config,
        "eval_steps",
        group=Group.DATA,
        help="steps between evaluations of --eval_dataset; -1: one after each epoch",
    )


@dataclass(frozen=True, kw_only=True)
class StageTraining:
    train_batch_size: int = shared(
        Config, "train_batch_size", help="samples of one optimizer step, of all ranks"
    )
    micro_train_batch_size: int | None = Group.TRAIN.flag(
        None,
        "samples of one pass of a rank; default: what divides the rank's share of a step",
        dotted="train.micro_batch_size",
        unit="samples",
        at_least=1,
    )
    max_epochs: int = shared(Config, "max_epochs", help="passes over the data")
    max_steps: int | None = shared(Config, "max_steps", help="stop after this many steps")
    seed: int = shared(Config, "seed", help="order of the data, and new weights")
    full_determinism: bool = shared(Config, "full_determinism")
    aux_loss_coef: float | None = Group.TRAIN.flag(
        None,
        "weight of the balance of a mixture of experts; default: the model's own",
        dotted="model.aux_loss_coef",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class StageOptimizer:
    learning_rate: float = Group.OPTIMIZER.flag(
        5e-6, "peak learning rate", dotted="adam.lr", above=0
    )
    lr_scheduler: str = shared(OptimizerSettings, "lr_scheduler", dotted=(), choices=SCHEDULERS)
    lr_warmup_ratio: float = shared(OptimizerSettings, "lr_warmup_ratio", dotted=())
    min_lr_ratio: float = shared(OptimizerSettings, "min_lr_ratio", dotted=())
    l2: float = shared(OptimizerSettings, "l2")
    adam_betas: tuple[float, float] = shared(OptimizerSettings, "adam_betas")
    adam_eps: float = shared(OptimizerSettings, "adam_eps")
    max_norm: float = shared(OptimizerSettings, "max_norm", dotted=(), endless=False)
    optim: str = shared(Config, "optim", dotted=())
    muon_lr: float | None = shared(Config, "muon_lr", dotted="muon.lr")
    muon_momentum: float | None = shared(Config, "muon_momentum", dotted="muon.momentum")
    muon_ns_steps: int | None = shared(Config, "muon_ns_steps", dotted="muon.ns_steps")
    muon_nesterov: bool = shared(Config, "muon_nesterov", dotted="muon.nesterov")
    muon_no_nesterov: bool = shared(Config, "muon_no_nesterov", dotted="muon.no_nesterov")


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    param_dtype: str = shared(
        Config,
        "param_dtype",
        "",
        choices=("", "fp32", "bf16"),
        help="bf16: compute in bf16, with fp32 weights; default: bf16 on GPUs, else fp32",
    )
    bf16: bool = shared(Config, "bf16")
    gradient_checkpointing: bool = shared(
        Config, "gradient_checkpointing", dotted="model.gradient_checkpointing_enable"
    )
    gradient_checkpointing_use_reentrant: bool = shared(
        Config,
        "gradient_checkpointing_use_reentrant",
        dotted="model.gradient_checkpointing_reentrant",
    )
    packing_samples: bool = shared(Config, "packing_samples")
    attn_implementation: str | None = shared(Config, "attn_implementation")
    flash_attn: bool = shared(Config, "flash_attn")
    experts_implementation: str | None = shared(Config, "experts_implementation")
    use_liger_kernel: bool = shared(
        Config, "use_liger_kernel", no_effect="logits are computed in chunks instead"
    )
    load_in_4bit: bool = shared(Config, "load_in_4bit")
    lora_rank: int = shared(Config, "lora_rank")
    lora_alpha: int = shared(Config, "lora_alpha")
    lora_dropout: float = shared(Config, "lora_dropout")
    target_modules: tuple[str, ...] = shared(Config, "target_modules")

    @property
    def lora(self) -> LoRASettings:
        return LoRASettings(
            rank=self.lora_rank,
            alpha=self.lora_alpha,
            dropout=self.lora_dropout,
            target_modules=self.target_modules,
        )


@dataclass(frozen=True, kw_only=True)
class StageSharding:
    zero_stage: int = shared(Config, "zero_stage")
    zpg: int = shared(Config, "zpg")
    adam_offload: bool = shared(Config, "adam_offload")
    overlap_comm: bool = shared(Config, "overlap_comm")
    grad_accum_dtype: str = shared(Config, "grad_accum_dtype")
    deepcompile: bool = shared(Config, "deepcompile")
    ds_tensor_parallel_size: int = shared(Config, "ds_tensor_parallel_size")
    use_ds_universal_ckpt: bool = shared(
        Config,
        "use_ds_universal_ckpt",
        no_effect="a resume under ZeRO needs as many ranks as the checkpoint has",
    )
    dist_timeout: int = shared(Config, "dist_timeout")
    ring_attn_size: int = shared(
        Config,
        "ring_attn_size",
        help="GPUs that share each sample",
        unsupported="TRL's trainers have each sample on one GPU here; only 1 is right",
    )
    ring_head_stride: int = shared(Config, "ring_head_stride")
    local_rank: int = shared(Config, "local_rank", no_effect="torchrun's variables set the ranks")


@dataclass(frozen=True, kw_only=True)
class StageCheckpoints:
    run_dir: Path | None = shared(
        Config, "run_dir", required=False, help="run directory; Rollcall gives it: ROLLCALL_RUN_DIR"
    )
    ckpt_path: PurePath | None = shared(
        Config,
        "ckpt_path",
        help="checkpoints to resume from, in checkpoint-STEP; a relative path is below RUN; "
        "default: RUN/checkpoints",
    )
    save_steps: int = shared(
        Config,
        "save_steps",
        0,
        help="steps between checkpoints; 0: every tenth of a run of Rollcall; -1: only when the "
        "run is stopped",
    )
    max_ckpt_num: int = shared(Config, "max_ckpt_num", help="checkpoints to keep")
    max_ckpt_mem: float = shared(
        Config, "max_ckpt_mem", no_effect="--max_ckpt_num limits the checkpoints"
    )
    save_hf_ckpt: bool = shared(
        Config,
        "save_hf_ckpt",
        no_effect="a checkpoint without ZeRO and LoRA is a Hugging Face directory already",
    )
    disable_ds_ckpt: bool = shared(
        Config,
        "disable_ds_ckpt",
        unsupported="A checkpoint without the optimizer's state would not resume as it was",
    )
    load_checkpoint: bool = shared(
        Config,
        "load_checkpoint",
        help="resume from the newest complete checkpoint",
        no_effect="a run of Rollcall resumes; to begin again, take another run directory",
    )
    resume_from_checkpoint: Path | None = Group.CHECKPOINTS.flag(
        None, "a directory checkpoint-STEP to go on from; Rollcall gives the newest complete one"
    )


@dataclass(frozen=True, kw_only=True)
class StageLogger:
    logging_steps: int = shared(Config, "logging_steps", help="steps between lines of the log")
    use_wandb: str = shared(Config, "use_wandb")
    wandb_project: str = shared(Config, "wandb_project")
    wandb_run_name: str | None = shared(Config, "wandb_run_name")
    wandb_group: str | None = shared(Config, "wandb_group")
    wandb_org: str | None = shared(Config, "wandb_org")
    use_tensorboard: Path | None = shared(Config, "use_tensorboard")


@dataclass(frozen=True, kw_only=True)
class StageFlags(  # from the last concern to the first: a dataclass takes its bases in that order
    StageSharding,
    StageLogger,
    StageCheckpoints,
    StageMemory,
    StageOptimizer,
    StageTraining,
    StageData,
    StageModel,
):
    """What every stage has."""

    LARGEST_PASS: ClassVar[int] = 8
    """Samples of a pass, unless a flag says."""

    @property
    def exported(self) -> Path:
        """Where the trained model is written."""
        if self.save_path is None:
            assert self.run_dir is not None
            return RunFiles(self.run_dir).exported
        return self._place(self.save_path)

    @property
    def models(self) -> dict[str, str]:
        """Flag that names a model → directory, or name on the hub."""
        found = {"--pretrain": self.pretrain, "--ref_pretrain": getattr(self, "ref_pretrain", "")}
        return {flag: name for flag, name in found.items() if name}

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        if self.ckpt_path is None and self.run_dir is not None:
            return RunFiles(self.run_dir).checkpoints
        if self.ckpt_path is None:
            return self.exported.with_name(f"{self.exported.name}-checkpoints")
        return self._place(self.ckpt_path)

    def _place(self, given: PurePath) -> Path:
        """Return a relative path below the run directory; outside a run, below this one."""
        return (self.run_dir or Path.cwd()) / given

    @property
    def save_interval(self) -> float | None:
        """Steps between checkpoints; below 1 the share of the run; None: no checkpoints."""
        if self.save_steps > 0:
            return self.save_steps
        return SHARE_BETWEEN_SAVES if self.save_steps == 0 and self.run_dir else None

    @property
    def mixed_precision(self) -> bool | None:
        """Whether the model computes in bf16; None: on GPUs."""
        return self.bf16 or (self.param_dtype == "bf16" if self.param_dtype else None)

    @property
    def attention(self) -> str | None:
        """transformers' name of an attention; None: its own choice."""
        flash = "flash_attention_2" if self.flash_attn else None
        return self.attn_implementation or flash
