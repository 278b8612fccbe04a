"""The table of verl 0.9: its keys that a flag of ours says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trainer.config.translate import policy_loss_conversions as losses
from trainer.config.translate import verl_conversions as by
from trainer.config.translate import verl_rewards as rewards
from trainer.config.translate.rows import (
    TRUE,
    Answer,
    Row,
    Table,
    UnreadError,
    Values,
    always,
    chosen,
    needless,
    number,
    several,
    shown,
    switch,
    whole,
)
from trainer.config.translate.verl_conversions import ACTOR, MEGATRON, MODEL, REF, ROLLOUT

TESTS = f"{ROLLOUT}.val_kwargs"
OWN_REWARD = "as FILE.py:NAME, the name from the key name; the function runs as it is"
KEYS: list[Row] = [
    Row("data.train_files", "prompt_data", by=by.data_sets),
    Row("data.train_files", "remote_rm_url", by=rewards.reward,
        note="the reward, which verl takes from each row's data_source: by the path's name; "
        "dapo, aime: math-verify"),
    Row("data.val_files", "eval_dataset", by=by.data_sets),
    Row("data.prompt_key", "input_key", default="prompt"),
    Row("data.prompt_key", "apply_chat_template", by=always(TRUE), default="prompt",
        note="prompts are messages"),
    Row("data.reward_fn_key", "label_key", by=always("reward_model.ground_truth"),
        default="data_source", note="the labels; the reward is chosen by --remote_rm_url"),
    Row("data.train_max_samples", "max_samples", by=by.limit,
        default="-1"),
    Row("data.max_prompt_length", "prompt_max_len", by=whole, default="512"),
    Row("data.max_response_length", "generate_max_len", by=whole, default="512"),
    Row(f"{ROLLOUT}.response_length", "generate_max_len", by=by.reply_length,
        note="data.max_response_length; another value is absent"),
    Row("data.filter_overlong_prompts", "prompt_overlong", by=by.filtered, default="False"),
    Row("data.truncation", "prompt_overlong", by=by.overlong, default="error",
        note="error: the prompt is dropped and counted, where verl ends"),
    Row("data.train_batch_size", "rollout_batch_size", by=whole, default="1024",
        note="prompts, in both"),
    Row("data.seed", "seed", by=whole),
    Row("data.image_key", "image_key", default="images"),
    Row(f"{MODEL}.path", "pretrain"),
    Row(f"{MODEL}.enable_gradient_checkpointing", "gradient_checkpointing", by=switch,
        default="True"),
    Row(f"{MODEL}.use_remove_padding", "packing_samples", by=switch, default="True"),
    Row(f"{MODEL}.use_liger", "use_liger_kernel", by=switch, default="False"),
    Row(f"{MODEL}.trust_remote_code", "trust_remote_code", by=switch, default="False"),
    Row("data.trust_remote_code", "trust_remote_code", by=switch, default="False"),
    Row("critic.model.trust_remote_code", "trust_remote_code", by=switch, default="False"),
    Row(f"{MODEL}.lora_rank", "lora_rank", by=whole, default="0"),
    Row(f"{MODEL}.lora_alpha", "lora_alpha", by=whole, default="16"),
    Row(f"{MODEL}.target_modules", "target_modules", by=by.modules, default="all-linear"),
    Row(f"{ACTOR}.ppo_mini_batch_size", "train_batch_size", by=by.samples, default="256",
        note="prompts there, samples here: times rollout.n"),
    Row(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "micro_train_batch_size", by=whole),
    Row(f"{ACTOR}.ppo_micro_batch_size", "micro_train_batch_size", by=by.of_all_gpus,
        note="of all GPUs there, of one here"),
    Row(f"{ACTOR}.use_dynamic_bsz", "use_dynamic_batch", by=switch, default="False"),
    Row(f"{ACTOR}.ppo_max_token_len_per_gpu", "train_max_tokens_per_gpu", by=by.dynamic,
        default="16384"),
    Row(f"{ACTOR}.clip_ratio", "eps_clip", by=by.symmetric, default="0.2",
        note="without effect in verl 0.9 unless clip_ratio_low and _high are null"),
    Row(f"{ACTOR}.clip_ratio_low", "eps_clip_low_high", by=by.clip, default="0.2"),
    Row(f"{ACTOR}.clip_ratio_high", "eps_clip_low_high", by=by.clip, default="0.2"),
    Row(f"{ACTOR}.clip_ratio_c", "dual_clip", by=losses.verl_dual_clip, default="3.0",
        note="off here by default"),
    Row(f"{ACTOR}.policy_loss.loss_mode", "policy_loss_type",
        by=chosen(vanilla="ppo", gspo="gspo", cispo="cispo", sapo="sapo", geo_mean="gmpo"),
        default="vanilla", note="geo_mean: gmpo; others are absent"),
    Row(f"{ACTOR}.tau_pos", "sapo_temperature_pos", by=losses.verl_sapo, default="1.0"),
    Row(f"{ACTOR}.tau_neg", "sapo_temperature_neg", by=losses.verl_sapo, default="1.05"),
    Row(f"{ACTOR}.loss_agg_mode", "loss_aggregation",
        by=chosen(token_mean="token", seq_mean_token_mean="sequence",
                  seq_mean_token_sum_norm="constant"),
        default="token-mean", note="token-sum and seq-mean-token-sum are absent"),
    Row(f"{ACTOR}.entropy_coeff", "entropy_loss_coef",
        by=lambda v, _: number(v, _) if float(v) else needless("no bonus, in both"), default="0"),
    Row(f"{ACTOR}.use_kl_loss", "use_kl_loss", by=by.kl_loss, default="False",
        note="with use_kl_in_reward, the reward's alone"),
    Row(f"{ACTOR}.kl_loss_coef", "init_kl_coef", by=by.loss_coef, default="0.001",
        note="with use_kl_loss"),
    Row(f"{ACTOR}.kl_loss_type", "kl_estimator", by=by.loss_type, default="low_var_kl",
        note="kl: k1; mse: k2; low_var_kl: k3; abs and full are absent"),
    Row(f"{ACTOR}.kl_loss_type", "kl_unbiased_gradient", by=by.unbiased, default="low_var_kl",
        note="a name with +"),
    Row(f"{ACTOR}.ppo_epochs", "max_epochs", by=whole, default="1"),
    Row(f"{ACTOR}.optim.clip_grad", "actor.max_norm", by=number, default="1.0"),
    Row(f"{ACTOR}.grad_clip", "actor.max_norm", by=by.clipped_before, default="1.0",
        note=by.CLIPPED_BEFORE),
    Row(f"{ACTOR}.optim.lr", "actor_learning_rate", by=number, default="1e-06"),
    *by.schedule("actor"),
    *by.sequence_parallel(),
    Row(f"{ACTOR}.strategy", "zero_stage", by=by.strategy, default="fsdp",
        note="FSDP shards as ZeRO-3 does"),
    Row(f"{ACTOR}.fsdp_config.reshard_after_forward", "zero_stage", by=by.resharded,
        default="True", note="False: 2"),
    Row(f"{ACTOR}.fsdp_config.dtype", "param_dtype", by=by.precision, default="bfloat16"),
    Row(f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "param_dtype", by=by.precision,
        note="an optional key, given with +", old=True),
    Row(f"{ACTOR}.fsdp_config.model_dtype", "param_dtype", by=by.master_weights, default="fp32",
        note="the optimizer's weights are always fp32"),
    Row(f"{ACTOR}.fsdp_config.param_offload", "deepspeed_enable_sleep", by=switch, default="False"),
    Row(f"{ACTOR}.fsdp_config.optimizer_offload", "adam_offload", by=switch, default="False"),
    Row(f"{ACTOR}.fsdp_config.full_determinism", "full_determinism", by=switch, default="False"),
    Row(f"{REF}.fsdp_config.param_offload", "ref_reward_offload", by=switch, default="False"),
    Row(f"{REF}.log_prob_micro_batch_size_per_gpu", "micro_rollout_batch_size", by=whole,
        note="one size for the reference and the rollouts"),
    Row(f"{REF}.log_prob_micro_batch_size", "micro_rollout_batch_size", by=by.of_all_gpus,
        note="of all GPUs there, of one here"),
    Row(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "micro_rollout_batch_size", by=whole),
    Row(f"{ROLLOUT}.log_prob_micro_batch_size", "micro_rollout_batch_size", by=by.of_all_gpus,
        note="of all GPUs there, of one here"),
    Row(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "rollout_max_tokens_per_gpu", by=by.dynamic),
    Row(f"{ROLLOUT}.name", "rollout_engine", by=by.engine_kind,
        note="vllm or hf; sglang and trtllm are absent"),
    Row(f"{ROLLOUT}.n", "n_samples_per_prompt", by=whole, default="1"),
    Row(f"{ROLLOUT}.temperature", "temperature", by=number, default="1.0"),
    Row(f"{ROLLOUT}.top_p", "top_p", by=number, default="1"),
    Row(f"{ROLLOUT}.top_k", note="all tokens may be sampled", default="-1"),
    Row(f"{ROLLOUT}.gpu_memory_utilization", "vllm_gpu_memory_utilization", by=number,
        default="0.5"),
    Row(f"{ROLLOUT}.tensor_model_parallel_size", "vllm_tensor_parallel_size", by=whole,
        default="2"),
    Row(f"{ROLLOUT}.tensor_model_parallel_size", "vllm_num_engines", by=by.engines, default="2",
        note="all GPUs, divided by this"),
    Row(f"{ROLLOUT}.free_cache_engine", "vllm_enable_sleep", by=switch, default="True"),
    Row(f"{ROLLOUT}.enforce_eager", "enforce_eager", by=switch, default="False"),
    Row(f"{ROLLOUT}.enable_prefix_caching", "enable_prefix_caching", by=switch, default="True"),
    Row(f"{TESTS}.n", "eval_n_samples_per_prompt", by=whole, default="1"),
    Row(f"{TESTS}.temperature", "eval_temperature", by=by.test_temperature, default="0",
        note="0 without do_sample"),
    Row(f"{TESTS}.do_sample", "eval_temperature", by=by.test_sampling, default="False"),
    Row("actor_rollout_ref.hybrid_engine", "colocate_all_models", by=switch, default="True"),
    Row("critic.model.path", "critic_pretrain"),
    Row("critic.optim.lr", "critic_learning_rate", by=number, default="1e-05"),
    *by.schedule("critic"),
    Row("critic.cliprange_value", "value_clip", by=number, default="0.5"),
    Row("critic.optim.clip_grad", "critic_max_norm", by=number, default="1.0"),
    Row("critic.grad_clip", "critic_max_norm", by=by.clipped_before, default="1.0",
        note=by.CLIPPED_BEFORE),
    by.critic_as_policy("ppo_mini_batch_size"),
    by.critic_as_policy("ppo_epochs"),
    *(Row(f"{key}.path", "remote_rm_url", by=rewards.own_reward, note=OWN_REWARD)
      for key in rewards.OWN_REWARD),
    Row("custom_reward_function.name", "remote_rm_url", by=rewards.own_name, old=True,
        note="with the key path"),
    Row("reward.custom_reward_function.name", "remote_rm_url", by=rewards.own_name,
        default="compute_score", note="with the key path"),
    Row("reward_model.model.path", "reward_pretrain", by=rewards.model_path),
    Row("reward.reward_model.model_path", "reward_pretrain", by=rewards.model_path),
    Row("reward_model.enable", "reward_pretrain", by=rewards.model_switch, old=True,
        note="with the model's path"),
    Row("reward.reward_model.enable", "reward_pretrain", by=rewards.model_switch,
        default="False", note="with the model's path"),
    *rewards.overlong_penalty("reward_model.reward_kwargs.overlong_buffer_cfg"),
    *rewards.overlong_penalty("reward.reward_kwargs.overlong_buffer_cfg"),
    *rewards.overlong_penalty("reward_model.overlong_buffer"),
    Row("reward.reward_manager.name", by=rewards.reward_manager, default="naive",
        note="--remote_rm_url is the reward"),
    Row("reward_model.reward_manager", by=rewards.reward_manager, old=True,
        note="--remote_rm_url is the reward"),
    Row("algorithm.adv_estimator", "advantage_estimator", by=by.estimator, default="gae",
        note="grpo: group_norm; reinforce_plus_plus: reinforce; gpg, grpo_passk and the "
        "optimal token baselines are absent"),
    Row("algorithm.norm_adv_by_std_in_grpo", "advantage_estimator", by=by.norm, default="True",
        note="False: dr_grpo"),
    Row("algorithm.gamma", "gamma", by=number, default="1.0"),
    Row("algorithm.lam", "lambd", by=number, default="1.0"),
    Row("algorithm.use_kl_in_reward", "use_kl_loss", by=by.kl_in_reward, default="False",
        note="both off: --init_kl_coef 0, no reference"),
    Row("algorithm.kl_ctrl.kl_coef", "init_kl_coef", by=by.reward_coef, default="0.001",
        note="with use_kl_in_reward; else without effect in verl 0.9"),
    Row("algorithm.kl_penalty", "kl_estimator", by=by.penalty, default="kl",
        note="with use_kl_in_reward"),
    Row("algorithm.kl_ctrl.target_kl", "kl_target", by=by.adaptive, default="0.1",
        note="with kl_ctrl.type=adaptive"),
    Row("algorithm.kl_ctrl.horizon", "kl_horizon", by=by.adaptive, default="10000"),
    Row("algorithm.kl_ctrl.type", "kl_target",
        by=lambda v, values: by.adaptive(values.text("algorithm.kl_ctrl.target_kl"), values),
        default="fixed"),
    Row("algorithm.filter_groups.enable", "dynamic_filtering", by=switch, default="False"),
    Row("algorithm.filter_groups.metric", "dynamic_filtering", by=by.filter_metric,
        default="reward", note="always the score"),
    Row("algorithm.rollout_correction.rollout_is", "is_correction_level", by=by.correction),
    Row("algorithm.rollout_correction.rollout_is_threshold", "is_correction_threshold",
        by=by.threshold, default="2.0"),
    Row("algorithm.rollout_correction.rollout_is_threshold", "is_correction_mode",
        by=by.correction_mode, default="2.0", note="one bound: clip; LOW_HIGH: mask"),
    Row("trainer.total_epochs", "num_episodes", by=whole, default="30"),
    Row("trainer.total_training_steps", "max_steps", by=whole),
    Row("trainer.critic_warmup", "freezing_actor_steps", by=by.frozen, default="0",
        note="one less: verl's first step is 1, and the policy learns from step critic_warmup on"),
    Row("trainer.save_freq", "save_steps", by=whole, default="-1",
        note="-1: never there, at the end here"),
    Row("trainer.test_freq", "eval_steps", by=whole, default="-1",
        note="the first and the last state are always evaluated"),
    Row("trainer.max_actor_ckpt_to_keep", "max_ckpt_num", by=whole, note="3 here by default"),
    Row("trainer.resume_mode", "load_checkpoint", by=by.resume, default="auto",
        note="verl's checkpoints are not read: resume_path is absent"),
    Row("trainer.nnodes", "actor_num_nodes", by=whole, default="1"),
    Row("trainer.n_gpus_per_node", "actor_num_gpus_per_node", by=whole, default="8"),
    by.logger("wandb"),
    by.logger("tensorboard"),
    Row("trainer.logger", "log_with", by=by.loggers, default=by.LOGGERS,
        note="mlflow, swanlab, trackio"),
    Row("trainer.project_name", "wandb_project", by=by.wandb),
    Row("trainer.project_name", "log_project", by=by.project),
    Row("trainer.experiment_name", "wandb_run_name", by=by.wandb),
]  # fmt: skip

AS_HERE = "it is so here, or chosen by the trainer"
SUPERVISED = "Rollcall's own supervision and run directory replace it"
ONE_GPU = "a layer lies on one GPU or, with ZeRO-3, on all"
SPEED = "another implementation of the same numbers"

SANDBOX = "code is run by the reward `code`, in a sandbox of its own"
BEFORE = [
    *several("reward_model.sandbox_fusion.*", SANDBOX, old=True),
    *several(
        "critic.model.lora.rank", "--lora_rank is for policy and critic", default="0", old=True
    ),
    *several(
        "reward_model.overlong_buffer.* reward_model.reward_kwargs.overlong_buffer_cfg.* "
        "reward.reward_kwargs.overlong_buffer_cfg.*",
        "--overlong_buffer_len is the switch, and the metrics have the penalty",
        lost=False,
        old=True,
    ),
]
"""They count before the patterns of NEEDLESS."""
NEEDLESS = [
    *several(
        "trainer.val_before_train",
        "--eval_dataset: the first state is always evaluated",
        lost=False,
    ),
    *several(
        "trainer.balance_batch trainer.device trainer.use_v1 "
        "actor_rollout_ref.nccl_timeout data.return_raw_chat "
        "data.return_raw_input_ids data.return_full_prompt data.return_multi_modal_inputs "
        "data.dataloader_num_workers data.filter_overlong_prompts_workers data.val_batch_size "
        "data.use_shm data.image_patch_size data.validation_shuffle "
        f"{MODEL}.use_shm {MODEL}.use_fused_kernels "
        f"{MODEL}.fused_kernel_options.* {MODEL}.tiled_mlp.* {MODEL}.enable_activation_offload "
        f"{ACTOR}.optim.total_training_steps {ACTOR}.optim.zero_indexed_step "
        "critic.optim.total_training_steps critic.optim.zero_indexed_step "
        "critic.enable critic.strategy critic.rollout_n critic.data_loader_seed "
        f"{ACTOR}.rollout_n {REF}.rollout_n {ROLLOUT}.mode {ROLLOUT}.prompt_length "
        f"{ROLLOUT}.calculate_log_probs {ROLLOUT}.do_sample {ROLLOUT}.agent.num_workers "
        f"{ACTOR}.data_loader_seed {ROLLOUT}.seed "
        f"reward.num_workers "
        "reward_model.num_workers "
        "reward_model.reward_loop_* ",
        AS_HERE,
        lost=False,
    ),
    *several(
        f"{ACTOR}.use_torch_compile {REF}.use_torch_compile {ACTOR}.fsdp_config.* "
        f"{REF}.fsdp_config.* critic.fsdp.* critic.model.* {ACTOR}.use_fused_kernels "
        f"{ACTOR}.use_remove_padding {ACTOR}.use_prefix_grouper {ACTOR}.pad_to_length* "
        f"{REF}.pad_to_length* {ACTOR}.entropy_* {REF}.entropy_* {ACTOR}.calculate_* "
        f"{REF}.strategy {REF}.log_prob_* {ROLLOUT}.log_prob_* critic.use_dynamic_bsz "
        "critic.ppo_micro_batch_size* critic.forward_* critic.ppo_max_token_len_per_gpu "
        f"{ROLLOUT}.cudagraph_capture_sizes {ROLLOUT}.max_num_batched_tokens "
        f"{ROLLOUT}.max_model_len {ROLLOUT}.max_num_seqs {ROLLOUT}.enable_chunked_prefill "
        f"{ROLLOUT}.logprobs_mode {ROLLOUT}.scheduling_policy {ROLLOUT}.load_format "
        f"{ROLLOUT}.layered_summon {ROLLOUT}.disable_log_stats {ROLLOUT}.multi_stage_wake_up "
        f"{ROLLOUT}.engine_kwargs.* {ROLLOUT}.full_determinism "
        f"{ROLLOUT}.skip_tokenizer_init {ROLLOUT}.router_config_path {ROLLOUT}.prometheus.* "
        f"{ROLLOUT}.nnodes {ROLLOUT}.n_gpus_per_node {ROLLOUT}.checkpoint_engine.* "
        f"{ROLLOUT}.trace.* {ROLLOUT}.profiler.* "
        f"{ROLLOUT}.moe_load_balance_metrics_interval {ROLLOUT}.skip* "
        f"{ROLLOUT}.data_parallel_size "
        "critic.loss_agg_mode critic.loss_scale_factor "
        "reward_model.rollout.* reward.reward_model.rollout.* reward_model.model.* "
        "reward.reward_model.* reward_model.* "
        "actor_rollout_ref.actor.checkpoint.* critic.checkpoint.* *.profiler.* global_profiler.* "
        "transfer_queue.*",
        SPEED,
        lost=False,
    ),
    *several(
        "trainer.default_local_dir trainer.default_hdfs_dir trainer.resume_from_path "
        "trainer.del_local_ckpt_after_load trainer.max_critic_ckpt_to_keep "
        "trainer.esi_redundant_time trainer.ray_wait_register_center_timeout "
        "trainer.checkpoint_callback_class ray_kwargs.*",
        SUPERVISED,
        lost=False,
    ),
    *several(
        "trainer.log_val_generations trainer.rollout_data_dir trainer.validation_data_dir",
        "samples of each step are in samples.jsonl: --log_samples",
        lost=False,
    ),
]
ABSENT = [
    *several("data.shuffle", "prompts are always shuffled, by --seed", default="True"),
    *several(
        f"{MODEL}.external_lib {MODEL}.hf_config_path {MODEL}.override_config*",
        "the model is as its files say",
    ),
    *several(f"{MODEL}.lora.*", "Megatron's adapters are absent: --lora_rank"),
    *several(
        f"{ACTOR}.optim.optimizer critic.optim.optimizer",
        "AdamW is the only optimizer",
        default="AdamW",
    ),
    *several(
        f"{ACTOR}.optim.optimizer_impl critic.optim.optimizer_impl",
        "AdamW is the only optimizer",
        default="torch.optim",
    ),
    *several("reward.reward_manager.*", "--remote_rm_url is the reward"),
    *several(
        " ".join(f"{key}.reward_kwargs.*" for key in rewards.OWN_REWARD),
        "write the value into the function, as its parameter's default",
        old=True,
    ),
    *several(f"{ROLLOUT}.val_kwargs.top_k", "all tokens may be sampled", default="-1"),
    *several(f"{ROLLOUT}.val_kwargs.top_p", "evaluation has only a temperature", default="1.0"),
    Row("data.gen_batch_size", by=by.drawn, note="prompts are drawn as they are needed"),
    Row(f"{ROLLOUT}.dtype", by=by.engine_precision, default="bfloat16",
        note="the engines have the policy's: --param_dtype"),
    *several("algorithm.filter_groups.*",
             "filtering ends the run after ten times a step's prompts were replaced"),
    *several(
        f"data.tokenizer {MODEL}.tokenizer_path", "the tokenizer is that of --pretrain", lost=True
    ),
    *several(f"{MODEL}.custom_chat_template data.apply_chat_template_kwargs*",
             "the template is that of --pretrain's tokenizer"),
    *several(f"{MODEL}.exclude_modules {MODEL}.lora_adapter_path",
             "adapters begin anew, on --target_modules"),
    *several(f"{MODEL}.mtp.* {ROLLOUT}.mtp*", "multi-token prediction is absent"),
    *several(
        "data.custom_cls.* data.video_key data.audio_key data.mm_processor_kwargs*",
        "data are rows of text and images: JSONL or Parquet",
    ),
    *several("data.val_max_samples", "all of --eval_dataset are used: cut the file"),
    *several(
        f"data.tool_config_path data.function_tool_path {ROLLOUT}.multi_turn.* {ROLLOUT}.agent.* ",
        "episodes of several turns are environments: --environment or --agent_func_path",
    ),
    *several(f"{ACTOR}.shuffle", "samples of a step are in the same order in every pass",
             default="False"),
    *several("critic.shuffle", "samples of a step are in the same order in every pass"),
    *several(f"{ACTOR}.loss_scale_factor", "the constant is --generate_max_len"),
    *several(f"{ACTOR}.freeze_vision_tower", "give --freeze_visual_encoder"),
    *several(
        f"{ACTOR}.policy_loss.*",
        "only losses have it that --policy_loss_type lacks",
        lost=False,
    ),
    *several(f"{ACTOR}.optim.override_optimizer_config* critic.optim.override_optimizer_config*",
             "AdamW is the only optimizer"),
    *several(
        f"{ROLLOUT}.expert_parallel_size {ROLLOUT}.pipeline_model_parallel_size",
        ONE_GPU,
        default="1",
    ),
    *several(
        f"{REF}.ulysses_sequence_parallel_size {REF}.fsdp_config.ulysses_sequence_parallel_size",
        "the reference shares samples as the policy does: --ring_attn_size",
        lost=False,
    ),
    *several(f"{ROLLOUT}.disaggregation.*", ONE_GPU),
    *several("*.megatron.* *.megatron *.router_replay.* *.veomni.* *.torchtitan.*",
             MEGATRON, old=True),
    *several(f"{ROLLOUT}.ignore_eos {ROLLOUT}.over_sample_rate "
             f"{ROLLOUT}.enable_rollout_routing_replay",
             "the engines sample by temperature and top_p"),
    *several("*.qat.* *.qat *.quantization* *.turbo_config.*", "weights are bf16 or fp32"),
    *several("algorithm.rollout_correction.*",
             "weights or masks within bounds, by token or sequence: --is_correction_level"),
    *several("algorithm.gdpo_reward_keys algorithm.gdpo_reward_weights",
             "each reward is a --reward of its own, with its weight"),
    *several("algorithm.use_pf_ppo algorithm.pf_ppo.*", "PF-PPO is absent"),
    *several("reward.sandbox_fusion.* sandbox_fusion.*",
             SANDBOX),
    *several("trainer.val_only", "evaluation is a part of a run", default="False"),
    *several("trainer.v1.*", "--async_train, --max_staleness and --partial_rollout"),
    *several("distillation.* skip.*", "it is absent"),
]  # fmt: skip
OLD = [
    *several("reward_model.use_reward_loop reward_model.strategy prometheus.*", AS_HERE,
             lost=False, old=True),
    *several("data.datagen.* data.sampler.*", "prompts are rows of a file", old=True),

    Row("algorithm.kl_ctrl.target", note="the name is target_kl", old=True),
    *several("critic.model.fsdp_config.* critic.model.use_remove_padding", SPEED, lost=False,
             old=True),
    *several(
        f"{ROLLOUT}.enforce_eager_mode model_engine trainer.use_legacy_worker_impl hydra.*",
        AS_HERE,
        lost=False,
        old=True,
    ),
]  # fmt: skip

VERL = Table("verl 0.9", [*KEYS, *BEFORE, *NEEDLESS, *ABSENT, *OLD])


def _group(value: str, values: Values) -> Answer:
    return shown(values.whole(f"{ROLLOUT}.n_agent") * values.whole(f"{ROLLOUT}.n"))


def _turns(value: str, values: Values) -> Answer:
    replies = values.whole("max_turns") + 1
    return str(replies) if values.on("do_search") else needless("do_search is off")


def _environment(value: str, values: Values) -> Answer:
    if not values.on("do_search"):
        return needless("do_search is off")
    return json.dumps(
        {"url": values.text("retriever.url").strip("'\""), "topk": values.whole("retriever.topk")}
    )


def _searches(value: str, values: Values) -> Answer:
    return "search" if values.on("do_search") else needless("do_search is off")


def _kl(value: str, values: Values) -> Answer:
    on = values.on(f"{ACTOR}.use_kl_loss")
    return needless("the KL is in the loss") if on else number(value, values)


def _penalty(value: str, values: Values) -> Answer:
    on = values.on(f"{ACTOR}.use_kl_loss")
    return needless("the KL is in the loss") if on else by.kl_type(value, values)


FORK = [
    Row("data.train_data_num", "max_samples", by=whole),
    Row("data.max_start_length", "prompt_max_len", by=whole, default="256"),
    Row("data.max_prompt_length", "max_len", by=whole, default="512",
        note="the context of a whole episode"),
    Row("data.max_obs_length", "max_obs_length", by=whole, default="512"),
    Row("data.prompt_key", "input_key", default="prompt"),
    Row("data.prompt_key", "apply_chat_template", by=always(TRUE), default="prompt"),
    Row("max_turns", "max_turns", by=_turns, default="10",
        note="and one last reply, which counts here"),
    Row("do_search", "environment", by=_searches, default="true"),
    Row("retriever.url", "environment_args", by=_environment,
        default="http://127.0.0.1:8000/retrieve"),
    Row("retriever.topk", "environment_args", by=_environment, default="3"),
    Row(f"{ROLLOUT}.n_agent", "n_samples_per_prompt", by=_group, default="1",
        note="times rollout.n"),
    Row(f"{ROLLOUT}.n", "n_samples_per_prompt", by=_group, default="1", note="times n_agent"),
    Row(f"{ROLLOUT}.top_p", "top_p", by=number, default="0.95"),
    Row(f"{ROLLOUT}.enforce_eager", "enforce_eager", by=switch, default="True"),
    Row(f"{ROLLOUT}.enable_prefix_caching", "enable_prefix_caching", by=switch, default="False"),
    Row(f"{ACTOR}.clip_ratio", "eps_clip", by=number, default="0.2"),
    Row(f"{ACTOR}.grad_clip", "actor.max_norm", by=number, default="1.0"),
    Row("critic.grad_clip", "critic_max_norm", by=number, default="1.0"),
    Row(f"{ACTOR}.entropy_coeff", "entropy_loss_coef", by=number, default="0.001"),
    Row(f"{MODEL}.enable_gradient_checkpointing", "gradient_checkpointing", by=switch,
        default="False"),
    Row(f"{MODEL}.use_remove_padding", "packing_samples", by=switch, default="False"),
    Row("algorithm.kl_ctrl.kl_coef", "init_kl_coef", by=_kl, default="0.001",
        note="in the reward unless use_kl_loss"),
    Row("algorithm.kl_penalty", "kl_estimator", by=_penalty, default="kl"),
    Row(f"{ACTOR}.state_masking", note="what the environment writes is never trained on",
        lost=False),
    Row("algorithm.no_think_rl", note="thoughts are trained on", default="False"),
    *several("data.val_data_num", "all of --eval_dataset are used: cut the file"),
    *several(
        "data.shuffle_train_dataloader algorithm.state_masking.* "
        "reward_model.structure_format_score reward_model.final_format_score "
        "reward_model.retrieval_score",
        AS_HERE,
        lost=False,
    ),
]  # fmt: skip
NOT_IN_FORK = {
    f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high", f"{ACTOR}.clip_ratio_c",
    "algorithm.use_kl_in_reward", "data.truncation", f"{ROLLOUT}.val_kwargs.n",
    f"{ACTOR}.optim.clip_grad", "critic.optim.clip_grad",
    f"{ROLLOUT}.val_kwargs.temperature", f"{ROLLOUT}.val_kwargs.do_sample",
}  # fmt: skip

SEARCH_R1 = Table(
    "Search-R1",
    [row for row in VERL.having("Search-R1", FORK).rows if row.theirs not in NOT_IN_FORK],
)


def evaluation_in(given: Mapping[str, Sequence[str]]) -> str:
    """Return the override by which verl evaluates and trains nothing; "" if it trains.

    As there, `val_only` counts if the run begins with an evaluation.
    """
    values = Values({"trainer.val_before_train": TRUE} | {key: t[0] for key, t in given.items()})
    try:
        only = values.on("trainer.val_only") and values.on("trainer.val_before_train")
    except UnreadError:
        only = False
    return f"trainer.val_only={values.text('trainer.val_only')}" if only else ""


def is_search_r1(keys: set[str]) -> bool:
    """Return whether the keys are of Search-R1's fork."""
    return bool(keys & {row.theirs for row in FORK if row.theirs.startswith(("max_turns", "retr",
                "do_s", "data.max_start", "data.max_obs"))})  # fmt: skip
