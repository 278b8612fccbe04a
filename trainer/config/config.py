"""The builtin trainer's flags as one frozen Config. Torch-free.

`trainer.config.options` declares them by concern, each with both of OpenRLHF's spellings. What
workers take is composed of settings (`config.lora`), which go to the workers as they are. The flag
--lora_rank is the field `rank` of LoRASettings: `prefix` below is the beginning of its name.
"""

# ruff: noqa: RUF009 - `composed` makes a dataclass field
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from contract.run_dir import RunFiles
from trainer.config.options.algorithm import (
    AdvantageSettings,
    CorrectionSettings,
    FilteringSettings,
    KLSettings,
    LossSettings,
    ShapingSettings,
)
from trainer.config.options.data import DataFlags, ModelFlags, PreferenceFlags
from trainer.config.options.logging import CheckpointFlags, EvaluationFlags, LoggerFlags
from trainer.config.options.optimizer import (
    CriticOptimizerSettings,
    OptimizerFlags,
    OptimizerSettings,
)
from trainer.config.options.parallelism import (
    DeepSpeedFlags,
    LayoutFlags,
    Sharding,
    VLLMSettings,
)
from trainer.config.options.rollout import RolloutFlags, SamplingSettings
from trainer.config.options.training import LoRASettings, MemoryFlags, TrainSettings
from trainer.config.schema import Declared, composed, flags_of, with_values


@dataclass(frozen=True, kw_only=True)
class Config(  # from the last concern to the first: a dataclass takes its bases in that order
    PreferenceFlags,
    DeepSpeedFlags,
    LayoutFlags,
    LoggerFlags,
    EvaluationFlags,
    CheckpointFlags,
    MemoryFlags,
    OptimizerFlags,
    RolloutFlags,
    DataFlags,
    ModelFlags,
):
    """Every flag of `python -m trainer`; valid in itself once `parse` has returned it."""

    sampling: SamplingSettings = composed(SamplingSettings, dotted="rollout.")
    train: TrainSettings = composed(TrainSettings)
    advantage: AdvantageSettings = composed(AdvantageSettings)
    loss: LossSettings = composed(LossSettings)
    kl: KLSettings = composed(KLSettings, prefix="kl_", dotted="algo.kl.")
    shaping: ShapingSettings = composed(ShapingSettings)
    filtering: FilteringSettings = composed(
        FilteringSettings, prefix="dynamic_filtering_", dotted="algo.dynamic_filtering_"
    )
    correction: CorrectionSettings = composed(
        CorrectionSettings, prefix="is_correction_", dotted="algo.advantage.is_correction_"
    )
    policy_optimizer: OptimizerSettings = composed(OptimizerSettings, dotted="actor.")
    critic_optimizer: CriticOptimizerSettings = composed(
        CriticOptimizerSettings, prefix="critic_", dotted="critic.", critic=True
    )
    lora: LoRASettings = composed(LoRASettings, prefix="lora_", dotted="ds.lora.")
    sharding: Sharding = composed(Sharding, dotted="ds.")
    vllm: VLLMSettings = composed(VLLMSettings, prefix="vllm_", dotted="vllm.")
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
        """Optimizer steps of one training step."""
        return self.samples_per_step // self.train.train_batch_size * self.train.max_epochs

    @property
    def runs_ahead(self) -> bool:
        """Whether samples may be older than the policy that they train."""
        return self.async_train and self.max_staleness > 0

    @property
    def has_critic(self) -> bool:
        return self.advantage.estimator == "gae"

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
    def has_reward_model(self) -> bool:
        """Whether models in the cluster give the rewards; a URL or a function comes before them."""
        return bool(self.reward_pretrain) and not self.reward_spec

    @property
    def reward_spec(self) -> str | tuple[str, ...]:
        """What names the reward functions; empty if models in the cluster give the rewards."""
        return self.rewards or self.remote_rm_url

    @property
    def reward_flag(self) -> str:
        """The flag that names the reward functions, with its value."""
        if self.rewards:
            return f"--reward {' '.join(self.rewards)}"
        return f"--remote_rm_url {self.remote_rm_url}"

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether the policy scores the samples before it is updated.

        With one update a step they are what that update computes itself; a KL in the reward needs
        them before.
        """
        return self.updates_per_step > 1 or (self.kl.has_reference and not self.kl.use_loss)

    @property
    def concurrent_scoring(self) -> int:
        """Ranks that run forward over a step's samples at the same time."""
        return max(
            1,
            self.needs_old_log_probs * self.policy_ranks
            + self.has_critic * self.critic_ranks
            + self.kl.has_reference * self.reference_ranks,
        )

    @property
    def concurrent_training(self) -> int:
        """Ranks that are updated at the same time."""
        return self.policy_ranks + self.has_critic * self.critic_ranks

    @property
    def best_metric(self) -> str | None:
        """The logged name of what the best policy is chosen by; None: it is not kept."""
        key = self.best_metric_key.removeprefix("eval/")
        return None if key == "none" else f"eval/{key or 'pass1'}"

    @property
    def scoring_tokens(self) -> int:
        """Tokens of a pass without gradients, if batches are dynamic."""
        return self.rollout_max_tokens_per_gpu or self.train.train_max_tokens_per_gpu

    @property
    def mixed_precision(self) -> bool:
        return self.param_dtype == "bf16"

    @property
    def wandb_wanted(self) -> bool:
        return bool(self.use_wandb or os.environ.get("WANDB_API_KEY"))

    @property
    def wandb_key(self) -> str | None:
        """The key of --use_wandb; None: the environment may have it."""
        return self.use_wandb if self.use_wandb not in ("", "yes") else None

    def total_steps(self, prompts: int) -> int:
        """Steps of the run on a data set of so many prompts."""
        by_data = max(1, self.train.num_episodes * prompts // self.rollout_batch_size)
        return self.train.max_steps or by_data

    def public(self) -> dict[str, str]:
        """Return every flag's value as text, without secrets."""
        return {
            name: str(flag.value_in(self))
            for name, flag in declared_flags().items()
            if not flag.about.secret
        }

    def with_flags(self, values: Mapping[str, Any]) -> Config:
        """Return the same flags, with these values for the flags of these flat names."""
        declared = declared_flags()
        return with_values(self, {declared[name].path: value for name, value in values.items()})


@cache
def declared_flags() -> Mapping[str, Declared]:
    """Return every flag of the trainer by its flat spelling."""
    return flags_of(Config)
