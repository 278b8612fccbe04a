"""What people call flags in other trainers and in talk: `--lr` is `--actor_learning_rate`.

Nothing is read by these names. An unknown flag is answered with the flag that it means.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from contract.options import nearest

NAMES: Mapping[str, tuple[str, ...]] = {
    "actor_learning_rate": ("lr", "actor_lr", "policy_lr", "step_size"),
    "learning_rate": ("lr",),
    "critic_learning_rate": ("critic_lr", "value_lr"),
    "lr_scheduler": ("scheduler", "lr_schedule", "schedule"),
    "lr_warmup_ratio": ("warmup", "warmup_ratio", "warmup_steps", "lr_warmup_steps"),
    "l2": ("weight_decay", "wd"),
    "max_norm": ("max_grad_norm", "grad_clip", "gradient_clipping", "clip_grad", "clip_grad_norm"),
    "init_kl_coef": ("kl", "beta", "kl_coef", "kl_loss_coef", "kl_beta", "kl_ctl", "kl_penalty"),
    "entropy_loss_coef": ("ent_coef", "entropy_coef", "entropy_coeff", "entropy_bonus"),
    "eps_clip": ("clip", "epsilon", "cliprange", "clip_range", "clip_ratio", "clip_eps"),
    "value_clip": ("cliprange_value", "vf_clip", "value_clip_range"),
    "lambd": ("lam", "lambda", "gae_lambda"),
    "advantage_estimator": ("algo", "algorithm", "adv_estimator", "estimator"),
    "policy_loss_type": ("loss", "loss_type", "loss_mode"),
    "train_batch_size": ("bs", "batch_size", "mini_batch_size", "ppo_mini_batch_size"),
    "micro_train_batch_size": (
        *("mbs", "micro_batch_size", "per_device_train_batch_size", "per_gpu_batch_size"),
        *("gradient_accumulation_steps", "grad_accum", "accumulation_steps"),
    ),
    "rollout_batch_size": ("rollout_bs", "prompts_per_step", "gen_batch_size"),
    "n_samples_per_prompt": (
        *("n", "n_samples", "num_samples", "group_size", "num_generations", "rollout_n"),
        *("samples_per_prompt", "num_return_sequences"),
    ),
    "num_episodes": ("epochs", "epoch", "num_epochs", "num_train_epochs", "total_epochs"),
    "max_epochs": ("epochs", "num_epochs", "num_train_epochs", "ppo_epochs", "num_ppo_epochs"),
    "max_steps": ("steps", "num_steps", "total_steps", "train_steps", "total_training_steps"),
    "prompt_max_len": ("max_prompt_len", "max_prompt_length", "prompt_length", "input_max_len"),
    "generate_max_len": (
        *("max_new_tokens", "max_tokens", "max_response_length", "response_length"),
        *("max_completion_length", "max_completion_len", "max_gen_len", "output_max_len"),
    ),
    "max_len": ("max_length", "max_seq_len", "max_seq_length", "seq_len", "sequence_length"),
    "temperature": ("temp",),
    "pretrain": (
        *("model", "model_name", "model_path", "model_name_or_path", "base_model", "policy"),
        "actor",
    ),
    "critic_pretrain": ("critic", "critic_model", "value_model"),
    "reward_pretrain": ("rm", "reward_model", "reward_model_path", "reward_model_name_or_path"),
    "remote_rm_url": (
        *("reward_fn", "reward_func", "reward_funcs", "reward_function", "reward_url", "rm_url"),
    ),
    "prompt_data": (
        *("data", "prompts", "dataset_name", "train_data", "train_file", "train_files"),
        *("data_path", "prompt_file"),
    ),
    "dataset": ("data", "dataset_name", "train_data", "train_file", "train_files", "data_path"),
    "eval_dataset": ("eval_data", "val_data", "val_files", "test_data", "eval_file"),
    "input_key": ("prompt_key", "prompt_column", "prompt_field", "input_column"),
    "label_key": ("answer_key", "label_column", "answer_column", "target_key"),
    "save_path": ("output", "output_dir", "out", "out_dir", "save_dir"),
    "save_steps": ("save_freq", "save_interval", "save_every", "checkpoint_interval"),
    "eval_steps": ("test_freq", "eval_interval", "eval_freq", "eval_every"),
    "max_ckpt_num": ("save_total_limit", "keep_checkpoints"),
    "load_checkpoint": ("resume", "resume_from", "resume_from_checkpoint", "resume_mode"),
    "param_dtype": ("dtype", "torch_dtype", "precision", "fp16", "fp32", "mixed_precision"),
    "lora_rank": ("lora", "lora_r", "use_peft", "use_lora", "peft"),
    "zero_stage": ("zero", "stage", "deepspeed", "ds_stage"),
    "gradient_checkpointing": ("grad_ckpt", "activation_checkpointing", "gc"),
    "vllm_tensor_parallel_size": ("tp", "tp_size", "tensor_parallel_size"),
    "vllm_num_engines": ("num_engines", "dp", "num_vllm_engines"),
    "vllm_gpu_memory_utilization": ("gpu_memory_utilization", "gpu_mem_util"),
    "ring_attn_size": ("sp", "sp_size", "cp", "cp_size", "sequence_parallel_size"),
    "actor_num_nodes": ("nnodes", "num_nodes"),
    "actor_num_gpus_per_node": ("num_gpus", "n_gpus", "n_gpus_per_node", "nproc_per_node"),
    "use_wandb": ("wandb", "report_to", "logger"),
    "wandb_run_name": ("run_name", "exp_name", "experiment_name"),
    "wandb_project": ("project", "project_name"),
}
"""Flag → other names for it. A name of several flags means the first that the command has."""
MEANT: Mapping[str, tuple[str, ...]] = {
    name: tuple(flag for flag, names in NAMES.items() if name in names)
    for names in NAMES.values()
    for name in names
}


def flag_meant(spelling: str, known: Iterable[str]) -> str:
    """Return the known flag that an unknown spelling means, or is nearest to; "" if none is."""
    name = spelling.replace("-", "_")
    flags: Container[str] = known if isinstance(known, Container) else (known := tuple(known))
    named = next((flag for flag in MEANT.get(name.lower(), ()) if flag in flags), "")
    return named or nearest(name, known)
