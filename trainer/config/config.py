"""The builtin trainer's flags as one frozen Config. Torch-free.

The table itself is in `trainer.config.options`, by concern: each flag with both of OpenRLHF's
spellings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path

from contract.os_errors import why_absent
from contract.run_dir import RunFiles
from trainer.config import layout
from trainer.config.no_effect import warnings_between
from trainer.config.options.algorithm import (
    AdvantageFlags,
    CorrectionFlags,
    FilteringFlags,
    KLFlags,
    LossFlags,
    ShapingFlags,
)
from trainer.config.options.data import DataFlags, ModelFlags, PreferenceFlags
from trainer.config.options.logging import CheckpointFlags, EvaluationFlags, LoggerFlags
from trainer.config.options.optimizer import OptimiserFlags
from trainer.config.options.parallelism import DeepSpeedFlags, LayoutFlags, VLLMFlags
from trainer.config.options.training import LoRAFlags, MemoryFlags, RolloutFlags, TrainFlags
from trainer.config.parse import read
from trainer.config.schema import ConfigError, flags_of
from trainer.config.validate import faults_between
from trainer.config.values import FALSE, TRUE

DATA_FILES = (".jsonl", ".json", ".parquet", ".csv", ".txt")
PROG = "python -m trainer"
DESCRIPTION = "Train a policy with PPO, GRPO and their relatives on the Ray cluster at hand."


@dataclass(frozen=True, kw_only=True)
class Config(  # from the last concern to the first: a dataclass takes its bases in that order
    PreferenceFlags,
    DeepSpeedFlags,
    VLLMFlags,
    LayoutFlags,
    LoggerFlags,
    EvaluationFlags,
    CheckpointFlags,
    LoRAFlags,
    MemoryFlags,
    OptimiserFlags,
    CorrectionFlags,
    FilteringFlags,
    ShapingFlags,
    KLFlags,
    LossFlags,
    AdvantageFlags,
    TrainFlags,
    RolloutFlags,
    DataFlags,
    ModelFlags,
):
    """Every flag of `python -m trainer`; valid in itself once `parse` has returned it."""

    warnings: tuple[str, ...] = ()
    """One sentence for each flag that was given and has no effect."""

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
    def exported_critic(self) -> Path:
        return self.exported.with_name(f"{self.exported.name}_critic")

    @property
    def samples_per_step(self) -> int:
        return self.rollout_batch_size * self.n_samples_per_prompt

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps of one training step."""
        return self.samples_per_step // self.train_batch_size * self.max_epochs

    @property
    def runs_ahead(self) -> bool:
        """Whether samples may be older than the policy that they train."""
        return self.async_train and self.max_staleness > 0

    @property
    def has_critic(self) -> bool:
        return self.advantage_estimator == "gae"

    @property
    def policy_ranks(self) -> int:
        """Processes that hold the policy together."""
        return max(1, self.actor_num_nodes * self.actor_num_gpus_per_node)

    @property
    def critic_ranks(self) -> int:
        return max(1, self.critic_num_nodes * self.critic_num_gpus_per_node)

    @property
    def reference_ranks(self) -> int:
        return max(1, self.ref_num_nodes * self.ref_num_gpus_per_node)

    @property
    def has_reference(self) -> bool:
        return self.init_kl_coef > 0

    @property
    def steers_kl(self) -> bool:
        """Whether the weight of the KL changes from step to step."""
        return self.has_reference and self.kl_target is not None

    @property
    def has_reward_model(self) -> bool:
        """Whether models in the cluster give the rewards; a URL or a function comes before them."""
        return bool(self.reward_pretrain) and not self.remote_rm_url

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether the policy scores the samples before it is updated.

        With one update a step they are what that update computes itself; a KL in the reward needs
        them before.
        """
        return self.updates_per_step > 1 or (self.has_reference and not self.use_kl_loss)

    @property
    def scoring_at_once(self) -> int:
        """Ranks that run forward over a step's samples at the same time."""
        return max(
            1,
            self.needs_old_log_probs * self.policy_ranks
            + self.has_critic * self.critic_ranks
            + self.has_reference * self.reference_ranks,
        )

    @property
    def training_at_once(self) -> int:
        """Ranks that are updated at the same time."""
        return self.policy_ranks + self.has_critic * self.critic_ranks

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the policy's ratio may be below and above 1."""
        return self.eps_clip_low_high or (self.eps_clip, self.eps_clip)

    @property
    def best_metric(self) -> str | None:
        """The logged name of what the best policy is chosen by; None: it is not kept."""
        key = self.best_metric_key.removeprefix("eval/")
        return None if key == "none" else f"eval/{key or 'pass1'}"

    @property
    def aggregation(self) -> str:
        """How tokens' losses become one; a ratio for each sequence leaves only one way."""
        return "sequence" if self.policy_loss_type == "gspo" else self.loss_aggregation

    @property
    def correction_bounds(self) -> tuple[float, float]:
        low, high = self.is_correction_threshold
        return low, high

    @property
    def scoring_tokens(self) -> int:
        """Budget of a pass without gradients, where batches are dynamic."""
        return self.rollout_max_tokens_per_gpu or self.train_max_tokens_per_gpu

    @property
    def mixed_precision(self) -> bool:
        return self.param_dtype == "bf16"

    @property
    def wandb_wanted(self) -> bool:
        return bool(self.use_wandb or os.environ.get("WANDB_API_KEY"))

    @property
    def wandb_key(self) -> str | None:
        """The key that --use_wandb was given; None: it is in the environment, if anywhere."""
        return self.use_wandb if self.use_wandb not in ("", "yes") else None

    def total_steps(self, prompts: int) -> int:
        """Steps of the run on a data set of so many prompts."""
        by_data = max(1, self.num_episodes * prompts // self.rollout_batch_size)
        return self.max_steps or by_data

    def public(self) -> dict[str, str]:
        """Every flag's value as text, without secrets."""
        flags = flags_of(type(self))
        return {
            f.name: str(getattr(self, f.name))
            for f in fields(self)
            if f.name in flags and not flags[f.name][1].secret
        }


def parse(argv: Sequence[str]) -> Config:
    """The command line, and the files that it names, as a Config.

    Raises ConfigError with every fault, each with its remedy. What is given and has no effect is
    in the Config's `warnings`.
    """
    reading = read(Config, argv, PROG, DESCRIPTION)
    config = _settled(reading.config, reading.given)
    between = [
        fault
        for fault in faults_between(config)
        if fault.flag.removeprefix("--") not in reading.at_fault
    ]
    if faults := [*reading.faults, *between]:
        raise ConfigError(faults)
    warnings = (*reading.warnings, *warnings_between(config, reading.given))
    return replace(config, warnings=warnings)


def named_in(argv: Sequence[str]) -> frozenset[str]:
    """The fields that `argv` and its files name, in whatever spelling."""
    return read(Config, argv, PROG, DESCRIPTION).given


def _settled(config: Config, given: Set[str]) -> Config:
    """Each thing said in one place: flags that stand for others are folded into those."""
    prompt_limit = config.prompt_max_len
    if config.max_len is not None:
        room = config.max_len - config.generate_max_len
        prompt_limit = min(prompt_limit, room) if "prompt_max_len" in given else room
    threshold = config.is_correction_threshold
    bf16 = config.bf16 or config.mixed_precision
    flash = "flash_attention_2" if config.flash_attn and bf16 else None  # it has no fp32
    correction = config.is_correction_level
    if config.runs_ahead and "is_correction_level" not in given:
        correction = "token"
    return replace(
        layout.settled(config, given),
        is_correction_level=correction,
        pretrain=_located(config.pretrain),
        critic_pretrain=_located(config.critic_pretrain),
        prompt_data=_located_data(config.prompt_data),
        eval_dataset=_located_data(config.eval_dataset),
        reward_pretrain=",".join(
            _located(name.strip()) for name in config.reward_pretrain.split(",")
        ),
        prompt_max_len=prompt_limit,
        param_dtype="bf16" if bf16 else config.param_dtype,
        attn_implementation=config.attn_implementation or flash,
        is_correction_threshold=threshold if len(threshold) > 1 else (0.0, *threshold),
        use_wandb=_switch(config.use_wandb),
    )


def _located(model: str) -> str:
    """A directory's absolute path, as actors may run elsewhere; a name on the hub as it is."""
    return str(Path(model).absolute()) if model and why_absent(Path(model)) is None else model


def _located_data(path: Path | None) -> Path | None:
    """An absolute path; a data set's name on the hub, owner/name, as a relative one."""
    if path is None or why_absent(path) is None or not path.is_relative_to(Path.cwd()):
        return path
    name = path.relative_to(Path.cwd())
    return path if len(name.parts) != 2 or name.suffix in DATA_FILES else name


def _switch(key: str) -> str:
    """A W&B key, or "yes" or nothing for the words that only switch it on or off."""
    if key.lower() in TRUE:
        return "yes"
    return "" if key.lower() in FALSE else key
