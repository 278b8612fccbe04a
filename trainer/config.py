"""The builtin trainer's flags: the one table that --help, validation and the code read.

Torch-free. Spelling follows OpenRLHF's flat flags, as the guides use them.
"""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.contract import RunFiles
from trainer.flags import ConfigError, Fault, flag, read

PROG = "python -m trainer"
DESCRIPTION = "Train a policy with PPO or GRPO on the Ray cluster at hand."

MODELS = "models and rewards"
DATA = "data"
ROLLOUT = "rollout"
TRAIN = "training"
OPTIMISER = "optimiser"
ALGORITHM = "algorithm"
CHECKPOINTS = "checkpoints"
EVALUATION = "evaluation"
LOGGER = "logger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every flag of `python -m trainer`; valid in itself once `parse` has returned it."""

    pretrain: str = flag("", group=MODELS, required=True, help="policy: a Hugging Face directory")
    critic_pretrain: str = flag("", group=MODELS, help="critic's start; --pretrain where absent")
    remote_rm_url: str = flag(
        "",
        group=MODELS,
        required=True,
        help="reward: URL (several with commas), a .py file with reward_func, or a registered name",
    )

    remote_rm_deadline: float = flag(
        600.0, group=MODELS, unit="seconds", above=0, help="wait so long for a reward server"
    )

    prompt_data: Path | None = flag(
        None, group=DATA, required=True, help="prompts: JSONL, Parquet, or a dataset directory"
    )
    input_key: str = flag("input", group=DATA, help="column of the prompt")
    label_key: str | None = flag(None, group=DATA, help="column of the reference answer")
    input_template: str | None = flag(None, group=DATA, help="text with {} for the prompt")
    apply_chat_template: bool = flag(False, group=DATA, help="use the tokeniser's chat template")
    max_samples: int | None = flag(None, group=DATA, at_least=1, help="use only the first so many")
    prompt_max_len: int = flag(
        1024, group=DATA, unit="tokens", at_least=1, help="longer prompts lose their beginning"
    )

    rollout_batch_size: int = flag(
        1024, group=ROLLOUT, unit="prompts", at_least=1, help="prompts of one step"
    )
    n_samples_per_prompt: int = flag(1, group=ROLLOUT, at_least=1, help="completions of a prompt")
    micro_rollout_batch_size: int = flag(
        64, group=ROLLOUT, unit="samples", at_least=1, help="samples decoded or scored at a time"
    )
    generate_max_len: int = flag(
        1024,
        group=ROLLOUT,
        alias="max_new_tokens",
        unit="tokens",
        at_least=1,
        help="longest completion",
    )
    temperature: float = flag(1.0, group=ROLLOUT, above=0, help="sampling temperature")
    top_p: float = flag(1.0, group=ROLLOUT, above=0, at_most=1, help="nucleus sampling")
    vllm_num_engines: int = flag(
        1, group=ROLLOUT, at_least=1, help="rollout engines, whatever their kind"
    )
    rollout_engine: str = flag("hf", group=ROLLOUT, choices=("hf",), help="kind of the engines")

    train_batch_size: int = flag(
        128, group=TRAIN, unit="samples", at_least=1, help="samples of one optimiser step"
    )
    micro_train_batch_size: int = flag(
        8, group=TRAIN, unit="samples", at_least=1, help="samples of one forward and backward pass"
    )
    max_epochs: int = flag(1, group=TRAIN, at_least=1, help="passes over each step's samples")
    num_episodes: int = flag(1, group=TRAIN, at_least=1, help="passes over the prompts")
    max_steps: int | None = flag(None, group=TRAIN, at_least=1, help="stop after so many steps")
    seed: int = flag(42, group=TRAIN, at_least=0, help="seed of everything random")
    bf16: bool = flag(False, group=TRAIN, help="the same as --param_dtype bf16")
    param_dtype: str = flag(
        "fp32", group=TRAIN, choices=("fp32", "bf16"), help="bf16 computes with fp32 master weights"
    )
    gradient_checkpointing: bool = flag(False, group=TRAIN, help="recompute activations")

    actor_learning_rate: float = flag(1e-6, group=OPTIMISER, above=0, help="peak, policy")
    critic_learning_rate: float = flag(9e-6, group=OPTIMISER, above=0, help="peak, critic")
    lr_scheduler: str = flag(
        "cosine_with_min_lr",
        group=OPTIMISER,
        choices=("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr"),
        help="learning rate over the run; the minimum of cosine_with_min_lr is a tenth of the peak",
    )
    lr_warmup_ratio: float = flag(
        0.03, group=OPTIMISER, at_least=0, at_most=1, help="share of the run with a rising rate"
    )
    l2: float = flag(0.0, group=OPTIMISER, at_least=0, help="weight decay, not on norms and biases")
    adam_betas: tuple[float, float] = flag((0.9, 0.95), group=OPTIMISER, help="AdamW's betas")
    max_norm: float = flag(1.0, group=OPTIMISER, above=0, help="gradients are clipped to this norm")

    advantage_estimator: str = flag(
        "gae",
        group=ALGORITHM,
        choices=("gae", "group_norm"),
        help="gae: PPO with a critic; group_norm: GRPO",
    )
    gamma: float = flag(1.0, group=ALGORITHM, at_least=0, at_most=1, help="discount")
    lambd: float = flag(1.0, group=ALGORITHM, at_least=0, at_most=1, help="GAE's lambda")
    eps_clip: float = flag(0.2, group=ALGORITHM, above=0, help="clip range of the policy's ratio")
    value_clip: float = flag(0.5, group=ALGORITHM, above=0, help="clip range of the value")
    init_kl_coef: float = flag(
        0.01, group=ALGORITHM, at_least=0, help="weight of the KL to the reference; 0: no reference"
    )
    kl_estimator: str = flag("k1", group=ALGORITHM, choices=("k1", "k2", "k3"), help="see docs")
    use_kl_loss: bool = flag(False, group=ALGORITHM, help="KL in the loss, not in the reward")
    reward_clip_range: tuple[float, float] = flag(
        (-10.0, 10.0), group=ALGORITHM, help="rewards are clipped to this range"
    )
    freezing_actor_steps: int = flag(
        0, group=ALGORITHM, unit="steps", at_least=0, help="only the critic learns so long"
    )

    run_dir: Path | None = flag(
        None, group=CHECKPOINTS, required=True, help="run directory, shared by all nodes"
    )
    ckpt_path: Path | None = flag(None, group=CHECKPOINTS, help="default: RUN/checkpoints")
    save_path: Path | None = flag(None, group=CHECKPOINTS, help="final model; default: RUN/hf")
    save_steps: int = flag(
        -1, group=CHECKPOINTS, unit="steps", at_least=-1, help="between checkpoints; -1: at the end"
    )
    max_ckpt_num: int = flag(3, group=CHECKPOINTS, at_least=1, help="whole checkpoints kept")
    save_hf_ckpt: bool = flag(
        False, group=CHECKPOINTS, help="a Hugging Face model in each checkpoint too"
    )
    load_checkpoint: bool = flag(
        False, group=CHECKPOINTS, help="go on from the newest whole checkpoint, if there is one"
    )

    eval_dataset: Path | None = flag(None, group=EVALUATION, help="held-out prompts")
    eval_steps: int = flag(
        -1,
        group=EVALUATION,
        unit="steps",
        at_least=-1,
        help="between evaluations; before the first step and at the end in any case",
    )

    logging_steps: int = flag(1, group=LOGGER, unit="steps", at_least=1, help="between metric rows")
    use_wandb: bool = flag(False, group=LOGGER, help="log to W&B; on with WANDB_API_KEY")
    wandb_project: str = flag("rollcall", group=LOGGER, help="W&B project")
    wandb_run_name: str | None = flag(None, group=LOGGER, help="W&B run name")
    wandb_group: str | None = flag(None, group=LOGGER, help="W&B group")
    wandb_org: str | None = flag(None, group=LOGGER, help="W&B entity")

    @property
    def files(self) -> RunFiles:
        assert self.run_dir is not None
        return RunFiles(self.run_dir)

    @property
    def checkpoints(self) -> Path:
        return self.ckpt_path or self.files.checkpoints

    @property
    def exported(self) -> Path:
        return self.save_path or self.files.exported

    @property
    def samples_per_step(self) -> int:
        return self.rollout_batch_size * self.n_samples_per_prompt

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps of one training step."""
        return self.samples_per_step // self.train_batch_size * self.max_epochs

    @property
    def has_critic(self) -> bool:
        return self.advantage_estimator == "gae"

    @property
    def has_reference(self) -> bool:
        return self.init_kl_coef > 0

    @property
    def mixed_precision(self) -> bool:
        return self.bf16 or self.param_dtype == "bf16"

    @property
    def wandb_wanted(self) -> bool:
        return self.use_wandb or bool(os.environ.get("WANDB_API_KEY"))

    def total_steps(self, prompts: int) -> int:
        """Steps of the run on a data set of so many prompts."""
        by_data = max(1, self.num_episodes * prompts // self.rollout_batch_size)
        return self.max_steps or by_data


def parse(argv: Sequence[str]) -> Config:
    """The command line as a Config. Raises ConfigError with every fault, each with its remedy."""
    config, faults = read(Config, argv, PROG, DESCRIPTION)
    config = replace(
        config,
        pretrain=_located(config.pretrain),
        critic_pretrain=_located(config.critic_pretrain),
    )
    at_fault = {fault.flag for fault in faults}
    faults += [fault for fault in _faults(config) if fault.flag not in at_fault]
    if faults:
        raise ConfigError(faults)
    return config


def _located(model: str) -> str:
    """A directory's absolute path, as actors may run elsewhere; a name on the hub as it is."""
    return str(Path(model).absolute()) if model and Path(model).exists() else model


def _faults(config: Config) -> Iterator[Fault]:
    """What is wrong between flags, or between a flag and the disk."""
    yield from _missing_files(config)
    yield from _batch_faults(config)
    if config.advantage_estimator == "group_norm" and config.n_samples_per_prompt < 2:
        yield Fault(
            "--n_samples_per_prompt",
            str(config.n_samples_per_prompt),
            "group_norm compares the completions of one prompt",
            "Give at least 2",
        )
    low, high = config.reward_clip_range
    if not low < high:
        yield Fault("--reward_clip_range", f"{low:g} {high:g}", "is empty", "Give LOW then HIGH")
    if not all(0 <= beta < 1 for beta in config.adam_betas):
        shown = " ".join(f"{beta:g}" for beta in config.adam_betas)
        yield Fault("--adam_betas", shown, "must lie in [0, 1)", "Commonly 0.9 0.95")
    if config.input_template is not None and "{}" not in config.input_template:
        yield Fault("--input_template", config.input_template, "has no {}", "Put {} for the prompt")


def _missing_files(config: Config) -> Iterator[Fault]:
    for name in ("prompt_data", "eval_dataset"):
        path: Path | None = getattr(config, name)
        if path is not None and not path.exists():
            yield Fault(f"--{name}", str(path), "no such file", "Give a path that all nodes see")
    for name in ("pretrain", "critic_pretrain"):
        model: str = getattr(config, name)
        # A name with at most one slash that is not on disk may be a model of the hub's.
        on_disk = Path(model).is_absolute() or model.startswith(".") or model.count("/") > 1
        if model and on_disk and not (Path(model) / "config.json").is_file():
            yield Fault(
                f"--{name}",
                model,
                "no model there (no config.json)",
                "Give a directory in Hugging Face's layout, or a name on the hub",
            )
    reward = config.remote_rm_url
    if reward.endswith(".py") and "://" not in reward and not Path(reward).is_file():
        yield Fault("--remote_rm_url", reward, "no such file", "Give a file with reward_func")


def _batch_faults(config: Config) -> Iterator[Fault]:
    samples, batch = config.samples_per_step, config.train_batch_size
    if samples % batch:
        yield Fault(
            "--train_batch_size",
            str(batch),
            f"does not divide the {samples} samples of a step "
            f"(rollout_batch_size {config.rollout_batch_size} x "
            f"n_samples_per_prompt {config.n_samples_per_prompt})",
            f"{_nearest_divisors(samples, batch)} would",
        )
    if batch % config.micro_train_batch_size:
        yield Fault(
            "--micro_train_batch_size",
            str(config.micro_train_batch_size),
            f"does not divide train_batch_size {batch}",
            f"{_nearest_divisors(batch, config.micro_train_batch_size)} would",
        )


def _nearest_divisors(total: int, wanted: int) -> str:
    """The divisors of `total` next to `wanted`, in words."""
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return " or ".join(str(d) for d in below + above)
