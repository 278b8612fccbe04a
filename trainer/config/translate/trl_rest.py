"""TRL's GRPO: flags for data and uploads, those that no flag of ours says, and the whole table."""

from __future__ import annotations

import json

from trainer.config.translate.rows import (
    TRACKERS,
    Answer,
    Row,
    Table,
    Values,
    absent,
    needless,
    several,
    shown,
    switch,
)
from trainer.config.translate.trl import KEYS, LAUNCHER

ROLLCALL = "Rollcall's own supervision, run directory and nodes replace it"


def _optimizer(value: str, values: Values) -> Answer:
    if value.startswith(("adamw_torch", "adamw_hf", "adamw_apex")) and "bit" not in value:
        return needless("AdamW, in both")
    return absent("AdamW is the only optimizer")


def _data_set(value: str, values: Values) -> Answer:
    configuration = values.text("dataset_config")
    return f"{value}:{configuration}" if values.has("dataset_config") else value


def _lowest(value: str, values: Values) -> Answer:
    """Return the lowest rate of cosine_with_min_lr as a share of the peak. Raises ValueError."""
    given = json.loads(value)
    names = set(given) if isinstance(given, dict) else set()
    by_rate, by_number = names == {"min_lr_rate"}, names == {"min_lr"}
    if values.text("lr_scheduler_type") != "cosine_with_min_lr" or not (by_rate or by_number):
        return absent("only the lowest rate of cosine_with_min_lr is here: --min_lr_ratio")
    lowest = float(str(given.popitem()[1]))
    return shown(lowest if by_rate else lowest / values.number("learning_rate"))


def _loggers(value: str, values: Values) -> Answer:
    names = set(value.split())
    if others := names - {"none", "wandb", "tensorboard", "all", *TRACKERS}:
        return absent(f"no {', '.join(sorted(others))} here: W&B, TensorBoard, or --log_with")
    return "yes" if names & {"wandb", "all"} else needless("W&B is off")


def _tensorboard(value: str, values: Values) -> Answer:
    return "tensorboard_log" if "tensorboard" in value.split() else needless("TensorBoard is off")


def _trackers(value: str, values: Values) -> Answer:
    names = [name for name in value.split() if name in TRACKERS]
    return " ".join(names) or needless("no other tracker is on")


def _wandb(value: str, values: Values) -> Answer:
    on = "wandb" in values.text("report_to")
    return value if on else needless("W&B is off")


def _project(value: str, values: Values) -> Answer:
    on = set(values.text("report_to").split()) & set(TRACKERS)
    return value if on else needless("no other tracker is on")


def _pushed(value: str, values: Values) -> Answer:
    if not values.on("push_to_hub"):
        return needless("the model is in RUN/hf")
    if not values.has("hub_model_id"):
        return absent("give --hub_model_id OWNER/NAME")
    return _repository(values.text("hub_model_id"), values)


def _repository(value: str, values: Values) -> Answer:
    if not values.on("push_to_hub"):
        return needless("push_to_hub is off")
    return value if "/" in value else absent("give it with its owner: --hub_model_id OWNER/NAME")


def _private(value: str, values: Values) -> Answer:
    return switch(value, values) if values.on("push_to_hub") else needless("push_to_hub is off")


DATA = [
    Row("dataset_name", "prompt_data", by=_data_set,
        note="a file, or a data set of the hub, with dataset_config behind a colon"),
    Row("dataset_train_split", "prompt_split", default="train"),
    Row("lr_scheduler_kwargs", "min_lr_ratio", by=_lowest,
        note="min_lr_rate, or min_lr divided by learning_rate"),
    Row("report_to", "use_wandb", by=_loggers, default="none"),
    Row("report_to", "use_tensorboard", by=_tensorboard, default="none"),
    Row("report_to", "log_with", by=_trackers, default="none", note="mlflow, swanlab, trackio"),
    Row("run_name", "wandb_run_name", by=_wandb),
    Row("project", "wandb_project", by=_wandb, default="huggingface"),
    Row("project", "log_project", by=_project, default="huggingface"),
    Row("push_to_hub", "hub_model_id", by=_pushed, default="False"),
    Row("hub_model_id", "hub_model_id", by=_repository, note="with push_to_hub"),
    Row("hub_private_repo", "hub_private_repo", by=_private),
]  # fmt: skip
NEEDLESS = [
    *several("hub_*", "the final model is pushed; HF_TOKEN is the token", lost=False),
    *several("dataset_config", "--prompt_data has it, as NAME:CONFIGURATION", lost=False),
    *several(
        "output_dir resume_from_checkpoint ignore_data_skip overwrite_output_dir "
        "restore_callback_states_from_checkpoint save_on_each_node enable_jit_checkpoint "
        "local_rank ddp_backend log_on_each_node dataset_test_split",
        ROLLCALL,
        lost=False,
    ),
    *several(
        "average_tokens_across_devices prediction_loss_only "
        "gradient_checkpointing_kwargs tf32 torch_compile torch_compile_backend torch_compile_mode "
        "liger_kernel_config use_cache torch_empty_cache_steps "
        "auto_find_batch_size logging_strategy logging_first_step logging_nan_inf_filter "
        "include_num_input_tokens_seen log_level log_level_replica disable_tqdm eval_delay "
        "per_device_eval_batch_size eval_on_start eval_do_concat_batches eval_use_gather_object "
        "eval_accumulation_steps include_for_metrics batch_eval_metrics bf16_full_eval "
        "fp16_full_eval use_cpu accelerator_config dataloader_* data_seed remove_unused_columns "
        "label_names length_column_name train_sampling_strategy ddp_* skip_memory_metrics debug "
        "do_train do_eval do_predict disable_dropout cast_lm_head_to_fp32 "
        "ds3_gather_for_generation pad_to_multiple_of cache_implementation "
        "vllm_model_impl vllm_group_port vllm_max_model_length vllm_server_* "
        "use_transformers_continuous_batching transformers_continuous_batching_config "
        "use_transformers_paged log_completions log_multimodal num_completions_to_print "
        "log_unique_prompts ignore_bias_buffers lora_task_type dataset_streaming "
        "trackio_* group_by_length",
        "it is so here, chosen by the trainer, or without effect on the numbers",
        lost=False,
    ),
    *several(
        "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg "
        "vespo_lambda_neg",
        "only losses that are absent have it",
        lost=False,
    ),
    *several(
        "ref_model_mixup_alpha ref_model_sync_steps",
        "only sync_ref_model uses it",
        lost=False,
    ),
    *several(
        "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
        "only use_adaptive_entropy uses it",
        lost=False,
    ),
    *several("multi_objective_aggregation", "rewards are added up", default="sum_then_normalize"),
    *several("metric_for_best_model greater_is_better load_best_model_at_end",
             "the best state is kept by itself: --best_metric_key", lost=False),
    *several("vllm_importance_sampling_cap", "the name is vllm_importance_sampling_clip_max"),
]  # fmt: skip
ABSENT = [
    *several("shuffle_dataset", "prompts are always shuffled, by --seed", default="True"),
    *several("fp16 half_precision_backend", "weights are bf16 or fp32", default="False"),
    *several("datasets streaming test_split_size",
             "--prompt_data A,B with --prompt_data_probs mixes data sets"),
    *several("top_k", "all tokens may be sampled", default="0"),
    *several("min_p generation_kwargs", "the engines sample by temperature and top_p"),
    *several("repetition_penalty", "the engines sample by temperature and top_p", default="1.0"),
    *several("chat_template_kwargs", "--apply_chat_template is the switch"),
    *several("mask_truncated_completions",
             "--stop_properly_penalty_coef changes their reward; a mask is absent",
             default="False"),
    *several("sync_ref_model", "the reference is the first policy", default="False"),
    *several("top_entropy_quantile", "all tokens are trained on", default="1.0"),
    *several("use_adaptive_entropy", "the entropy bonus is fixed", default="False"),
    *several("off_policy_mask_threshold", "give --is_correction_level"),
    *several("max_tool_calling_iterations",
             "episodes of several turns are environments: --environment or --agent_func_path"),
    *several("vllm_structured_outputs_regex", "completions are free"),
    *several("trust_remote_code", "code that a model brings along is never run", default="False"),
    *several("model_init_kwargs", "the model is as its files say"),
    *several("model_revision", "give a directory with that revision", default="main"),
    *several("load_in_8bit load_in_4bit", "weights are bf16 or fp32", default="False"),
    *several("bnb_4bit_quant_type", "weights are bf16 or fp32", default="nf4"),
    *several("use_bnb_nested_quant", "weights are bf16 or fp32", default="False"),
    *several("bnb_4bit_quant_storage", "weights are bf16 or fp32"),
    *several("lora_target_parameters lora_modules_to_save", "adapters are on --target_modules"),
    *several("use_rslora use_dora", "adapters are plain LoRA", default="False"),
    Row("optim", by=_optimizer, note="AdamW is the only optimizer"),
    *several("optim_args optim_target_modules neftune_noise_alpha", "it is absent"),
    *several("label_smoothing_factor", "it is absent", default="0.0"),
    *several("fsdp fsdp_config", "give --zero_stage"),
    *several("parallelism_config",
             "give --ring_attn_size for its sp_size or cp_size; a layer lies on one GPU, or on all "
             "by ZeRO-3"),
    *several("log_completions_hub_repo", "samples are in samples.jsonl: --log_samples"),
]  # fmt: skip

TRL = Table("TRL 1.16", [*KEYS, *DATA, *LAUNCHER, *NEEDLESS, *ABSENT])
