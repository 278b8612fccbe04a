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
from pathlib import Path, PurePath
from typing import Any

from contract.redaction import redact
from contract.run_dir import RunFiles
from env.images.rows import ImageColumn
from env.types import IN_PYTHON
from trainer.config import model_files
from trainer.config.options.algorithm import (
    AdvantageSettings,
    CorrectionSettings,
    FilteringSettings,
    KLSettings,
    LossSettings,
    ShapingSettings,
)
from trainer.config.options.checkpoints import CheckpointFlags
from trainer.config.options.data import DataFlags, ModelFlags, PreferenceFlags
from trainer.config.options.episodes import EpisodeSettings
from trainer.config.options.evaluation import EvaluationFlags
from trainer.config.options.logger import LoggerFlags
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
    episodes: EpisodeSettings = composed(EpisodeSettings)
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
    unnamed: frozenset[str] = frozenset()
    """Flags of columns that nobody gave: the data may decide them."""
    notes: tuple[str, ...] = ()
    """One sentence for each value that the data decided."""

    @property
    def files(self) -> RunFiles:
        assert self.run_dir is not None
        return RunFiles(self.run_dir)

    @property
    def checkpoints(self) -> Path:
        return self._below_run(self.ckpt_path) or self.files.checkpoints

    @property
    def exported(self) -> Path:
        return self._below_run(self.save_path) or self.files.exported

    @property
    def exported_critic(self) -> Path:
        return self.exported.with_name(f"{self.exported.name}_critic")

    def _below_run(self, given: PurePath | None) -> Path | None:
        """Return a relative path below the run directory, which all nodes share."""
        return self.files.root / given if given else None

    def has(self, file: object) -> bool:
        """Return whether the run itself writes this file or directory, or lies below it."""
        if self.files.has(file):
            return True
        own, root = (self.checkpoints, self.exported), self.files.root
        return isinstance(file, str) and (
            root.is_relative_to(file) or any(Path(file).is_relative_to(path) for path in own)
        )

    @property
    def models(self) -> dict[str, str]:
        """Flag that names a model → directory, or name on the hub."""
        rewards = self.reward_pretrain.split(",") if self.has_reward_model else []
        found = {
            "--pretrain": self.pretrain,
            "--critic_pretrain": self.critic_pretrain if self.has_critic else "",
            **{f"--reward_pretrain ({n})": name.strip() for n, name in enumerate(rewards, 1)},
        }
        return {flag: name for flag, name in found.items() if name}

    @property
    def samples_per_step(self) -> int:
        return self.rollout_batch_size * self.n_samples_per_prompt

    @property
    def completions_per_step(self) -> int:
        """Samples of a step, and the completions that are not trained on."""
        greedy = self.rollout_batch_size * self.advantage.wants_greedy
        return self.samples_per_step + greedy

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps of one training step."""
        return self.samples_per_step // self.train.train_batch_size * self.train.max_epochs

    @property
    def runs_ahead(self) -> bool:
        """Whether samples may be older than the policy that they train."""
        return self.async_train and self.max_staleness > 0

    @property
    def allowed_staleness(self) -> int:
        """The limit of policy versions between a sample's first token and its training."""
        return self.max_staleness if self.async_train else 0

    @property
    def has_environment(self) -> bool:
        """Whether rollouts are episodes of an environment or an agent."""
        return bool(self.episodes.environment or self.episodes.agent_func_path)

    @property
    def sees_images(self) -> bool:
        """Whether the policy takes images, by its files."""
        return model_files.sees_images(self.pretrain) is True

    @property
    def images(self) -> ImageColumn | None:
        """How rows have their images; None if the policy takes only text, as far as is known."""
        if model_files.sees_images(self.pretrain) is False:
            return None
        named = self.image_key != ImageColumn.DEFAULT
        return ImageColumn(self.image_key, self.max_images_per_prompt, required=named)

    @property
    def runs_episodes(self) -> bool:
        """Whether rollouts are episodes: of an environment, or of one turn with images."""
        return self.has_environment or self.sees_images

    @property
    def renders_chat(self) -> bool:
        """Whether the chat template renders prompts. An image has its place by the template."""
        return self.apply_chat_template or self.sees_images

    @property
    def longest_service_wait(self) -> float:
        """Seconds for which a phase may wait for a reward server or an environment."""
        attempts = 4 * self.has_environment  # of one episode, with the policy `retry`
        return max(self.remote_rm_deadline, attempts * self.episodes.max_episode_seconds)

    @property
    def longest_sample(self) -> int:
        """Most tokens of a sample: of a prompt and its completion, or of an episode."""
        if self.has_environment and self.max_len is not None:
            return self.max_len
        return self.prompt_max_len + self.sampling.max_new_tokens

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
    def wants_columns(self) -> bool:
        """Whether prompts need every column of their row.

        Environments do, TRL's functions, and what a Python program gives.
        """
        texts = self.rewards or (self.remote_rm_url,)
        in_python = IN_PYTHON in texts
        return self.has_environment or in_python or any(".py:" in text for text in texts)

    @property
    def reward_flag(self) -> str:
        """The flag that names the reward functions, with its value, for messages."""
        value = " ".join(self.rewards) or self.remote_rm_url
        return redact(f"{self.reward_flag_name} {value}")

    @property
    def reward_flag_name(self) -> str:
        return "--reward" if self.rewards else "--remote_rm_url"

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
        most, episodes = self.train.max_steps, self.train.num_episodes
        if most is not None and episodes is None:
            return most
        by_data = max(1, (episodes or 1) * prompts // self.rollout_batch_size)
        return by_data if most is None else min(most, by_data)

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


def declared_flags() -> Mapping[str, Declared]:
    """Return every flag of the trainer by its flat spelling."""
    return flags_of(Config)
