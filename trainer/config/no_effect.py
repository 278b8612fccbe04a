"""Warnings for flags that have no effect beside the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from trainer.config import environments, layout, unusual
from trainer.config.config import Config, declared_flags
from trainer.config.data_sets import TRAIN
from trainer.config.policy_losses import FORMULA_SETTINGS, EngineCorrection


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Flags that have no effect if `when` is true of the flags."""

    flags: tuple[str, ...]
    when: Callable[[Config], bool]
    why: str


NO_EFFECT = (
    NoEffect(("lambd",), lambda c: not c.has_critic, "only --advantage_estimator gae has a lambda"),
    NoEffect(
        (
            "critic_pretrain",
            *(n for n, flag in declared_flags().items() if flag.path[0] == "critic_optimizer"),
            "value_clip",
            "save_value_network",
        ),
        lambda c: not c.has_critic,
        "there is no critic without --advantage_estimator gae",
    ),
    NoEffect(
        ("value_head_prefix",),
        lambda c: not (c.has_critic or c.has_reward_model),
        "there is no reward model, and no critic without --advantage_estimator gae",
    ),
    NoEffect(
        ("freezing_actor_steps",),
        lambda c: not c.has_critic and c.train.freezing_actor_steps <= 0,
        "there is no critic without --advantage_estimator gae",
    ),
    NoEffect(
        ("no_advantage_std_norm",),
        lambda c: not c.advantage.whitens,
        "this --advantage_estimator is not whitened; dr_grpo is GRPO without the deviation",
    ),
    NoEffect(
        ("eps_clip",),
        lambda c: c.loss.eps_clip_low_high is not None,
        "--eps_clip_low_high gives both bounds",
    ),
    NoEffect(
        ("is_correction_mode", "is_correction_gating", "is_correction_threshold"),
        lambda c: (
            c.loss.policy_loss.correction is EngineCorrection.ENGINE_RATIO
            and c.correction.level != "off"
        ),
        f"with this --policy_loss_type {EngineCorrection.ENGINE_RATIO}",
    ),
    NoEffect(
        ("environment_args", "max_turns", "max_obs_length"),
        lambda c: not c.has_environment,
        "it needs --environment or --agent_func_path",
    ),
    NoEffect(
        ("max_episode_seconds", "environment_failure"),
        lambda c: not (c.has_environment or c.images),
        "it needs --environment, --agent_func_path, or a --pretrain that takes images",
    ),
    NoEffect(
        ("freeze_visual_encoder", "image_key", "max_images_per_prompt", "image_max_pixels"),
        lambda c: c.images is None,
        "--pretrain takes only text",
    ),
    NoEffect(
        ("environment_args", "max_turns", "max_obs_length"),
        lambda c: bool(c.episodes.agent_func_path),
        "the agent of --agent_func_path runs its own turns",
    ),
    NoEffect(("kl_target",), lambda c: c.kl.init_coef == 0, "--init_kl_coef 0 leaves the KL out"),
    NoEffect(("kl_horizon",), lambda c: c.kl.target is None, "it needs --kl_target"),
    NoEffect(
        ("kl_estimator", "use_kl_loss"),
        lambda c: not c.kl.has_reference,
        "--init_kl_coef 0 leaves the reference out",
    ),
    NoEffect(
        ("kl_unbiased_gradient",),
        lambda c: not c.kl.use_loss,
        "a KL in the reward has no gradient: it needs --use_kl_loss",
    ),
    NoEffect(
        ("ref_reward_offload",),
        lambda c: not (c.kl.has_reference or c.has_reward_model),
        "there is no reference (--init_kl_coef 0) and no reward model",
    ),
    NoEffect(
        (
            "reward_pretrain",
            "reward_combine",
            "reward_num_nodes",
            "reward_num_gpus_per_node",
            "reward_resources",
        ),
        lambda c: not c.has_reward_model,
        "--remote_rm_url or --reward gives the rewards",
    ),
    NoEffect(
        ("reward_combine",),
        lambda c: c.has_reward_model and "," not in c.reward_pretrain,
        "there is one reward model",
    ),
    NoEffect(
        ("colocate_critic_reward",),
        lambda c: not (c.has_critic and c.has_reward_model),
        "it needs a critic and a --reward_pretrain",
    ),
    NoEffect(
        ("colocate_actor_ref", "ref_resources"),
        lambda c: not c.kl.has_reference,
        "--init_kl_coef 0 leaves the reference out",
    ),
    NoEffect(
        ("critic_resources",),
        lambda c: not c.has_critic,
        "there is no critic without --advantage_estimator gae",
    ),
    NoEffect(
        ("dynamic_filtering_reward_range",),
        lambda c: not c.filtering.enabled,
        "it needs --dynamic_filtering",
    ),
    NoEffect(
        ("overlong_penalty_factor",),
        lambda c: c.shaping.overlong_buffer_len is None,
        "it needs --overlong_buffer_len",
    ),
    NoEffect(
        ("is_correction_mode", "is_correction_gating", "is_correction_threshold"),
        lambda c: c.correction.level == "off",
        "it needs --is_correction_level",
    ),
    NoEffect(
        ("lora_alpha", "lora_dropout", "target_modules"),
        lambda c: c.lora.rank == 0,
        "it needs --lora_rank",
    ),
    NoEffect(("ema_beta",), lambda c: not c.train.enable_ema, "it needs --enable_ema"),
    NoEffect(
        ("train_max_tokens_per_gpu", "rollout_max_tokens_per_gpu"),
        lambda c: not c.train.use_dynamic_batch,
        "it needs --use_dynamic_batch",
    ),
    NoEffect(
        ("flash_attn",),
        lambda c: not c.mixed_precision,
        "flash attention computes in bf16: it needs --param_dtype bf16",
    ),
    NoEffect(
        ("micro_train_batch_size",),
        lambda c: c.train.use_dynamic_batch,
        "--use_dynamic_batch cuts passes by tokens",
    ),
    NoEffect(
        (
            "vllm_tensor_parallel_size",
            "vllm_gpu_memory_utilization",
            "vllm_sync_backend",
            "enable_prefix_caching",
            "enforce_eager",
            "vllm_head_dtype",
        ),
        lambda c: c.rollout_engine == "hf",
        "--rollout_engine hf decodes with transformers, not with vLLM",
    ),
    NoEffect(
        ("vllm_head_dtype",),
        lambda c: not c.mixed_precision,
        "--param_dtype fp32 computes everything in fp32",
    ),
    NoEffect(
        ("vllm_tensor_parallel_size",),
        lambda c: c.rollout_engine == "auto" and not layout.is_exact(c),
        "with this --top_p and --temperature --rollout_engine auto is hf: one GPU for each engine",
    ),
    NoEffect(
        ("min_lr_ratio",),
        lambda c: c.policy_optimizer.lr_scheduler != "cosine_with_min_lr",
        "only --lr_scheduler cosine_with_min_lr has a minimum",
    ),
    NoEffect(
        ("lr_warmup_ratio",),
        lambda c: c.policy_optimizer.lr_scheduler == "constant",
        "--lr_scheduler constant has no warm-up; constant_with_warmup has",
    ),
    NoEffect(
        ("eval_steps", "eval_n_samples_per_prompt", "eval_temperature"),
        lambda c: c.eval_dataset is None,
        "it needs --eval_dataset",
    ),
    NoEffect(
        ("prompt_split",),
        lambda c: c.prompt_split != TRAIN and c.prompt_data is not None and c.prompt_data.are_files,
        "a file has no splits; give the file of the split",
    ),
    NoEffect(
        ("eval_split",),
        lambda c: c.eval_split != TRAIN and (c.eval_dataset is None or c.eval_dataset.are_files),
        "it is of an --eval_dataset that has several splits, and no file has",
    ),
    NoEffect(
        ("best_metric_key",),
        lambda c: c.eval_dataset is None and c.best_metric_key != "none",
        "it needs --eval_dataset",
    ),
    NoEffect(
        ("max_staleness", "partial_rollout"),
        lambda c: not c.async_train,
        "it needs --async_train",
    ),
    NoEffect(
        ("partial_rollout",),
        lambda c: c.async_train and c.max_staleness == 0,
        "--max_staleness 0: no completion is unfinished when new weights come",
    ),
    NoEffect(
        ("adam_offload", "overlap_comm", "grad_accum_dtype"),
        lambda c: c.sharding.zero_stage == 0,
        "it needs --zero_stage",
    ),
    NoEffect(("zpg",), lambda c: c.sharding.zero_stage < 3, "only --zero_stage 3 shards weights"),
    NoEffect(
        ("wandb_project", "wandb_run_name", "wandb_group", "wandb_org"),
        lambda c: not c.wandb_wanted,
        "it needs --use_wandb or WANDB_API_KEY",
    ),
    NoEffect(("log_project",), lambda c: not c.log_with, "it needs --log_with"),
    NoEffect(("hub_private_repo",), lambda c: not c.hub_model_id, "it needs --hub_model_id"),
)
"""Flags whose effect depends on other flags."""


def warnings_between(config: Config, given: Set[str]) -> Iterator[str]:
    """Yield a sentence for each given flag with no effect, or with an unexpected one."""
    for rule in NO_EFFECT:
        if rule.when(config):
            yield from (f"--{f} has no effect: {rule.why}" for f in rule.flags if f in given)
    if config.max_len is not None and "generate_max_len" not in given:
        most = config.sampling.max_new_tokens
        yield (
            f"--max_len without --generate_max_len: completions have at most {most} tokens, "
            f"prompts {config.prompt_max_len}"
        )
    rates = {
        "actor_learning_rate": config.policy_optimizer.learning_rate,
        "critic_learning_rate": config.critic_optimizer.learning_rate,
    }
    yield from unusual.warnings(rates, given)
    yield from _loss_warnings(config, given)
    yield from _template_warnings(config)
    yield from environments.warnings(config)
    if "micro_rollout_batch_size" in given:
        size, samples = config.micro_rollout_batch_size, config.samples_per_step
        if size > samples:
            yield f"--micro_rollout_batch_size {size} is more than the {samples} samples of a step"
    if config.train.freezing_actor_steps > 0 and not config.has_critic:
        yield (
            "--freezing_actor_steps without a critic: nothing learns in the first "
            f"{config.train.freezing_actor_steps} steps"
        )
    if config.train.train_batch_size < config.policy_ranks:
        yield (
            f"--train_batch_size {config.train.train_batch_size} is less than the "
            f"{config.policy_ranks} ranks of the policy: some have nothing to learn from"
        )
    if config.train.use_dynamic_batch:
        yield from _budget_warnings(config, given)
    if config.runs_ahead and "is_correction_level" not in given:
        yield (
            "--async_train: samples of older policies are corrected by --is_correction_level "
            f"{config.correction.level}; --is_correction_level off leaves it out"
        )
    if config.wandb_key:
        yield "--use_wandb shows its key on the command line: WANDB_API_KEY hides it"
    if config.hub_model_id and not os.environ.get("HF_TOKEN"):
        yield "--hub_model_id without HF_TOKEN: the hub takes the model only from who is logged in"
    if config.kl.has_reference and "kl_estimator" in given:
        yield from _estimator_advice(config)


def contradicted_precision(given_flags: Config, given: Set[str]) -> Iterator[str]:
    """Yield a sentence if --bf16 and --param_dtype say different things: bf16 counts.

    `given_flags`: as they were given, since one flag then stands for both.
    """
    if {"bf16", "param_dtype"} <= given and given_flags.bf16 is not given_flags.mixed_precision:
        loses = "--param_dtype fp32" if given_flags.bf16 else "--bf16 false"
        wins = "--bf16" if given_flags.bf16 else "--param_dtype bf16"
        yield f"{loses} has no effect: {wins} contradicts it. Give one of the two"


def _budget_warnings(config: Config, given: Set[str]) -> Iterator[str]:
    ranks = config.ring_attn_size
    longest = -(-config.longest_sample // ranks)
    where = f" on each of {ranks} GPUs" if ranks > 1 else ""
    budgets = {
        "train_max_tokens_per_gpu": config.train.train_max_tokens_per_gpu,
        "rollout_max_tokens_per_gpu": config.scoring_tokens,
    }
    for flag, tokens in budgets.items():
        if flag in given and tokens < longest:
            yield (
                f"--{flag} {tokens} is less than the {longest} tokens of the longest sample{where},"
                f" which has a pass of its own and needs that memory: give at least {longest}, or "
                "lower --generate_max_len"
            )


def _loss_warnings(config: Config, given: Set[str]) -> Iterator[str]:
    """Yield a sentence for each given flag that the policy's loss does not read."""
    loss = config.loss.policy_loss
    this = f"--policy_loss_type {config.loss.policy_loss_type}"
    for flag in sorted((FORMULA_SETTINGS - loss.settings) & given):
        yield f"--{flag} has no effect: {this} does not read it"
    if "loss_aggregation" in given and config.loss.loss_aggregation not in loss.aggregations:
        yield f"--loss_aggregation has no effect: {this} uses {config.loss.policy_aggregation}"


def _template_warnings(config: Config) -> Iterator[str]:
    template = config.input_template or ""
    if template and config.renders_chat:
        yield (
            "--input_template is put around texts before the chat template is, where OpenRLHF "
            "leaves it out; messages stay as they are"
        )
    if "\\n" in template:
        yield (
            "--input_template has a backslash and an n, and no line break: write $'…\\n…' in a "
            "shell"
        )


def _estimator_advice(config: Config) -> Iterator[str]:
    biased = config.kl.use_loss and not config.kl.unbiased_gradient
    if biased and config.kl.estimator == "k1":
        yield (
            "--kl_estimator k1 has no expected gradient as a loss: k2 or k3 has, and "
            "--kl_unbiased_gradient gives it one"
        )
    if not config.kl.use_loss and config.kl.estimator != "k1":
        yield f"--kl_estimator {config.kl.estimator} is biased in the reward: k1 is not"
