"""The table of TRL 1.16's GRPO: its flags, and those of the launchers before its script."""

from __future__ import annotations

import json
import re

from trainer.config.translate import policy_loss_conversions as losses
from trainer.config.translate.rows import (
    TRACKERS,
    TRUE,
    Answer,
    Conversion,
    Row,
    Table,
    UnreadError,
    Values,
    absent,
    always,
    chosen,
    needless,
    number,
    several,
    shown,
    switch,
    whole,
)

THOUGHTS = "format?pattern=<think>(?!.*<think>).*?</think>.*"
"""The form that think_format_reward asks for."""
REWARDS = {
    "accuracy_reward": "math-verify",
    "reasoning_accuracy_reward": "math-verify",
    "think_format_reward": THOUGHTS,
}
LABELLED = ("accuracy_reward", "reasoning_accuracy_reward")
"""Those that compare with the column `solution`."""
OVERLONG = "get_soft_overlong_punishment"
STAGE = re.compile(r"zero[-_]?(\d)")
BY_FILE = "from the file; by its name, if it is not here"
PARAM_OFFLOAD = "weights stay on the GPUs: --adam_offload is for the optimizer's state"
QUERY_AND_VALUE = "q_proj v_proj"
OF_QUERY_AND_VALUE = re.compile(
    r"(deepseek-r1-distill-(qwen|llama)|(deepseek-r1-0528-)?qwen3|"
    r"qwen(1\.5|2|2\.5|3)(-math|-coder)?|(meta-)?llama-[23](\.[123])?|tinyllama|smollm2?|"
    r"mistral|gemma(-1\.1|-2)?)-[\d.]+[bm]"
    r"(-(instruct|base|chat|hf|it|thinking|\d{4}|v\d+(\.\d+)?))*|gemma-3-1b-(it|pt)",
    re.IGNORECASE,
)
"""Names of models for which peft 0.21 has QUERY_AND_VALUE as its own list."""
ASKS_MODULES = (
    "without lora_target_modules, PEFT adapts modules that it has for the model's family, not all: "
    "give --target_modules, q_proj v_proj for most"
)
OF_VARIABLES = "a variable: of the shell, of env in the file, or of the script"
NO_KL = "--beta is 0: there is no reference"


def processes(values: Values) -> int:
    """Return the number of TRL's processes. Raises UnreadError."""
    if values.has("num_processes"):
        return _first(values, "num_processes")
    return _first(values, "nproc_per_node", "num_gpus") * nodes(values)


def nodes(values: Values) -> int:
    return _first(values, "num_machines", "nnodes", "num_nodes")


def _first(values: Values, *names: str) -> int:
    """Return the number of the first flag that is given, else 1. Raises UnreadError."""
    name = next((one for one in names if values.has(one)), "")
    if name and not values.text(name).isdecimal():
        raise UnreadError(name)
    return int(values.text(name)) if name else 1


def _micro_steps(values: Values) -> int:
    """Return the passes of each process between two generations. Raises ValueError."""
    if values.has("steps_per_generation"):
        return values.whole("steps_per_generation")
    if values.has("generation_batch_size"):
        per_pass = values.whole("per_device_train_batch_size") * processes(values)
        return values.whole("generation_batch_size") // per_pass
    return values.whole("gradient_accumulation_steps")


def _samples(values: Values) -> int:
    """Return the completions of one generation. Raises ValueError."""
    if values.has("generation_batch_size") and not values.has("steps_per_generation"):
        return values.whole("generation_batch_size")
    each = values.whole("per_device_train_batch_size")
    return each * processes(values) * _micro_steps(values)


def _prompts(value: str, values: Values) -> Answer:
    samples, group = _samples(values), values.whole("num_generations")
    if samples % group:
        return absent(f"{samples} completions are not a multiple of num_generations {group}")
    return shown(samples // group)


def _of_generation(value: str, values: Values) -> Answer:
    if values.has("steps_per_generation"):
        return absent("TRL refuses it beside steps_per_generation: give one of both")
    return _prompts(value, values)


def _update(value: str, values: Values) -> Answer:
    each = values.whole("per_device_train_batch_size") * processes(values)
    return shown(each * values.whole("gradient_accumulation_steps"))


def _updates_a_step(values: Values) -> float:
    """Return TRL's steps, which are updates, for each of ours, which is a generation."""
    if not values.has("steps_per_generation") and not values.has("generation_batch_size"):
        return max(1, values.whole("num_iterations"))  # a generation is for one update
    passes = _micro_steps(values) * values.whole("num_iterations")
    return max(1, passes / values.whole("gradient_accumulation_steps"))


def _steps(value: str, values: Values) -> Answer:
    """Return steps of TRL as ours. Raises ValueError."""
    if float(value) <= 0:
        return needless("the length is --num_train_epochs")
    if float(value) < 1:
        return absent("give a number of steps, not a share of the run")
    return shown(max(1, round(float(value) / _updates_a_step(values))))


def _saves(value: str, values: Values) -> Answer:
    return "-1" if values.text("save_strategy") == "no" else _steps(value, values)


def _save_strategy(value: str, values: Values) -> Answer:
    if value == "epoch":
        return absent("checkpoints are by steps: give --save_steps")
    return _saves(values.text("save_steps"), values)


def _evaluates(value: str, values: Values) -> Answer:
    if values.text("eval_strategy") != "steps":
        return needless("eval_strategy is no")
    return _steps(value, values)


def _eval_strategy(value: str, values: Values) -> Answer:
    return absent("give --eval_dataset FILE with the held-out prompts, and --eval_steps")


def _epochs(value: str, values: Values) -> Answer:
    if values.has("max_steps") and values.number("max_steps") > 0:
        return needless("max_steps is given")
    passes = float(value)
    return (
        shown(passes) if passes == int(passes) else absent("a run has whole passes over its data")
    )


def _warm_up(value: str, values: Values) -> Answer:
    if float(value) < 1:
        return number(value, values)
    if values.has("max_steps") and values.number("max_steps") > 0:
        return shown(float(value) / values.number("max_steps"))
    return absent("a warm-up is a share of the run here: give --lr_warmup_ratio")


def _betas(value: str, values: Values) -> Answer:
    return f"{values.text('adam_beta1')} {values.text('adam_beta2')}"


def _schedule(value: str, values: Values) -> Answer:
    known = ("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr")
    return value if value in known else absent(f"the schedule {value} is absent")


def _in_loss(value: str, values: Values) -> Answer:
    return TRUE if float(value) else needless(NO_KL)


def _k3(value: str, values: Values) -> Answer:
    return "k3" if float(value) else needless(NO_KL)


def _unbiased(value: str, values: Values) -> Answer:
    return switch(value, values) if values.number("beta") else needless(NO_KL)


def _estimator(value: str, values: Values) -> Answer:
    if values.text("multi_objective_aggregation") == "normalize_then_sum":
        return "gdpo"
    named = {"group": "group_norm", "true": "group_norm", "none": "dr_grpo", "false": "dr_grpo"}
    return named.get(value.lower()) or absent("a deviation of the whole batch is absent")


def _reward(value: str, values: Values) -> Answer:
    """Return rewards for --reward, each with its weight; those without a counterpart are left out.

    Raises ValueError for a weight that is no number.
    """
    weights = values.text("reward_weights").split()
    found = []
    for place, name in enumerate(value.split()):
        weight = weights[place] if place < len(weights) else "1"
        if spec := reward_of(name):
            found.append(f"{spec}:{float(weight):g}")
    return " ".join(found) or needless("none has a counterpart")


def _weights(value: str, values: Values) -> Answer:
    names = values.text("reward_funcs").split()
    count, given = len(names) + values.has("reward_model_name_or_path"), len(value.split())
    if count != given:
        return absent(f"TRL needs a weight for each reward: {count}, not {given}")
    return _reward(" ".join(names), values)


def reward_of(name: str) -> str:
    """Return the reward for a name of TRL's, or a function's dotted path; "" if there is none."""
    module, _, function = name.rpartition(".")
    if not module or module.partition(".")[0] == "trl":
        return REWARDS.get(function, "")
    return f"{module.replace('.', '/')}.py:{function}"


def _other_rewards(value: str, values: Values) -> Answer:
    """Return what to give for those rewards that are left out."""
    weights = [f":{one}" for one in values.text("reward_weights").split()]
    said = []
    for place, name in enumerate(value.split()):
        if name.endswith(OVERLONG):
            given = "give --overlong_buffer_len 256 and --overlong_penalty_factor 1"
            said.append(f"for {name} {given}")
        elif not reward_of(name):
            own = f"{name.rpartition('.')[2]}{''.join(weights[place : place + 1])}"
            said.append(f"{name} is not a reward of TRL's: add --reward FILE.py:{own}")
    return absent("; ".join(said)) if said else needless("all have a counterpart")


def _label(value: str, values: Values) -> Answer:
    known = any(name.rpartition(".")[2] in LABELLED for name in value.split())
    return "solution" if known else needless("functions get all columns")


def _model_reward(value: str, values: Values) -> Answer:
    if values.has("reward_funcs"):
        return absent("a model and functions together: serve the model, and give both by --reward")
    return value


def _adapter(value: str, values: Values) -> Answer:
    return value if values.on("use_peft") else needless("use_peft is off")


def _rank(value: str, values: Values) -> Answer:
    return _adapter(values.text("lora_r"), values)


def _modules(value: str, values: Values) -> Answer:
    if not values.on("use_peft"):
        return needless("use_peft is off")
    return " ".join(part for part in re.split(r"[,\s]+", value) if part)


def _usual_modules(value: str, values: Values) -> Answer:
    """Return the modules that PEFT takes by itself, for a model whose name tells its family."""
    if not values.on("use_peft"):
        return needless("use_peft is off")
    if values.has("lora_target_modules"):
        return _modules(values.text("lora_target_modules"), values)
    model = values.text("model_name_or_path").rstrip("/").rpartition("/")[2]
    return QUERY_AND_VALUE if OF_QUERY_AND_VALUE.fullmatch(model) else absent(ASKS_MODULES)


def _precision(value: str, values: Values) -> Answer:
    off = values.has("bf16") and not values.on("bf16")
    is_bf16 = values.text("dtype") in ("bfloat16", "bf16") or not off
    return "bf16" if is_bf16 and not values.on("use_cpu") else "fp32"


def _stage(value: str, values: Values) -> Answer:
    if found := STAGE.search(value.lower()):
        return found[1]
    if value in ("single_gpu", "multi_gpu"):
        return "0"
    return "3" if "fsdp" in value else absent("give --zero_stage: the file is not read")


def _offload(value: str, values: Values) -> Answer:
    if value == "none":
        return needless("nothing is in the CPU's memory")
    return TRUE if value == "cpu" else absent("--adam_offload is to the CPU's memory alone")


def _param_offload(value: str, values: Values) -> Answer:
    return needless("weights are on the GPUs") if value == "none" else absent(PARAM_OFFLOAD)


def _per_node(value: str, values: Values) -> Answer:
    if value in ("gpu", "auto", "cpu", "xpu"):
        return absent("the machine decides it, and batches depend on it: give the number instead")
    return shown(processes(values) // nodes(values))


def _nodes(value: str, values: Values) -> Answer:
    return shown(nodes(values))


def _engine(value: str, values: Values) -> Answer:
    return "vllm" if values.on("use_vllm") else needless("vLLM if it is installed, on GPUs")


def _with_vllm(value: str, values: Values) -> Answer:
    return value if values.on("use_vllm") else needless("use_vllm is off")


def _sleeps(value: str, values: Values) -> Answer:
    return switch(value, values) if values.on("use_vllm") else needless("use_vllm is off")


def _shares(value: str, values: Values) -> Answer:
    if value == "colocate" or not values.on("use_vllm"):
        return TRUE
    return needless("engines have GPUs of their own: --vllm_num_engines")


def _engines(value: str, values: Values) -> Answer:
    if not values.on("use_vllm"):
        return shown(processes(values))
    if values.text("vllm_mode") == "server":
        return absent("give --vllm_num_engines, the engines in place of the server")
    return shown(max(1, processes(values) // int(value)))


def _corrects(values: Values) -> bool:
    return values.on("use_vllm") and values.on("vllm_importance_sampling_correction")


def _level(value: str, values: Values) -> Answer:
    if not values.on("use_vllm"):
        return needless("without vLLM there is no difference to correct")
    if not _corrects(values):
        return needless("there is no correction, in both")
    return "seq" if values.text("vllm_importance_sampling_mode").startswith("seq") else "token"


def _mode(value: str, values: Values) -> Answer:
    if not _corrects(values):
        return needless("there is no correction")
    return "mask" if values.text("vllm_importance_sampling_mode").endswith("mask") else "clip"


def _bounds(value: str, values: Values) -> Answer:
    if not _corrects(values):
        return needless("there is no correction")
    low = values.text("vllm_importance_sampling_clip_min") or "0"
    return f"{low} {values.text('vllm_importance_sampling_clip_max')}"


def _entropy(value: str, values: Values) -> Answer:
    return number(value, values) if float(value) else needless("no bonus, in both")


KEYS = [
    Row("model_name_or_path", "pretrain"),
    Row("dataset_name", "input_key", by=always("prompt"), note="TRL's column"),
    Row("reward_funcs", "reward", by=_reward,
        note="accuracy_reward: math-verify; think_format_reward: format; a dotted path: "
        "FILE.py:NAME"),
    Row("reward_funcs", "reward", by=_other_rewards),
    Row("reward_funcs", "label_key", by=_label, note="solution, for accuracy_reward"),
    Row("reward_weights", "reward", by=_weights, note="behind each reward"),
    Row("reward_model_name_or_path", "reward_pretrain", by=_model_reward),
    Row("per_device_train_batch_size", "micro_train_batch_size", by=whole, default="8"),
    Row("per_device_train_batch_size", "train_batch_size", by=_update, default="8",
        note="times processes, times gradient_accumulation_steps"),
    Row("per_device_train_batch_size", "rollout_batch_size", by=_prompts, default="8",
        note="times processes and passes of a generation, divided by num_generations"),
    Row("gradient_accumulation_steps", "train_batch_size", by=_update, default="1"),
    Row("num_generations", "n_samples_per_prompt", by=whole, default="8"),
    Row("num_generations", "rollout_batch_size", by=_prompts, default="8",
        note="completions of a generation there, prompts here: divided by num_generations"),
    Row("generation_batch_size", "rollout_batch_size", by=_of_generation,
        note="completions there, prompts here"),
    Row("steps_per_generation", "rollout_batch_size", by=_prompts,
        note="times per_device_train_batch_size, times processes, divided by num_generations"),
    Row("num_iterations", "max_epochs", by=whole, default="1"),
    Row("num_train_epochs", "num_episodes", by=_epochs, default="3.0"),
    Row("max_steps", "max_steps", by=_steps, default="-1",
        note="updates there, generations here: one step has several updates"),
    Row("max_completion_length", "generate_max_len", by=whole, default="512"),
    Row("max_prompt_length", "prompt_max_len", by=whole, old=True),
    Row("temperature", "temperature", by=number, default="1.0"),
    Row("top_p", "top_p", by=number, default="1.0"),
    Row("learning_rate", "actor_learning_rate", by=number, default="1e-06"),
    Row("lr_scheduler_type", "lr_scheduler", by=_schedule, default="linear"),
    Row("warmup_steps", "lr_warmup_ratio", by=_warm_up, default="0",
        note="steps there, a share of the run here"),
    Row("warmup_ratio", "lr_warmup_ratio", by=number, old=True),
    Row("weight_decay", "l2", by=number, default="0.0"),
    Row("adam_beta1", "adam_betas", by=_betas, default="0.9"),
    Row("adam_beta2", "adam_betas", by=_betas, default="0.999"),
    Row("adam_epsilon", "adam_eps", by=number, default="1e-08"),
    Row("max_grad_norm", "max_norm", by=number, default="1.0"),
    Row("beta", "init_kl_coef", by=number, default="0.0", note="0: no reference, in both"),
    Row("beta", "use_kl_loss", by=_in_loss, default="0.0", note="the KL is in the loss"),
    Row("beta", "kl_estimator", by=_k3, default="0.0", note="k3"),
    Row("use_bias_correction_kl", "kl_unbiased_gradient", by=_unbiased, default="True",
        note="with one ratio for each token the gradient is the same, with the ratio at most 10"),
    Row("epsilon", "eps_clip", by=losses.trl_epsilon, default="0.2"),
    Row("epsilon_high", "eps_clip_low_high", by=losses.trl_clip),
    Row("delta", "dual_clip", by=number, note="the same bound, for negative advantages"),
    Row("importance_sampling_level", "policy_loss_type", by=losses.trl_policy_loss,
        default="token"),
    Row("loss_type", "policy_loss_type", by=losses.trl_policy_loss, default="dapo",
        note=f"{' and '.join(losses.TRL_OTHERS)}; others: ppo, or gspo with "
        "importance_sampling_level sequence"),
    Row("loss_type", "loss_aggregation",
        by=chosen(**{theirs: how for theirs, (_, how) in losses.TRL_LOSSES.items()}),
        default="dapo", note="bnpo, luspo and vespo are absent"),
    Row("sapo_temperature_pos", "sapo_temperature_pos", by=losses.trl_sapo, default="1.0"),
    Row("sapo_temperature_neg", "sapo_temperature_neg", by=losses.trl_sapo, default="1.05"),
    Row("scale_rewards", "advantage_estimator", by=_estimator, default="group",
        note="group: group_norm; none: dr_grpo; batch is absent"),
    Row("multi_objective_aggregation", "advantage_estimator",
        by=lambda v, values: _estimator(values.text("scale_rewards"), values),
        default="sum_then_normalize", note="normalize_then_sum: gdpo"),
    Row("entropy_coef", "entropy_loss_coef", by=_entropy, default="0.0"),
    Row("router_aux_loss_coef", "aux_loss_coef", by=number,
        note="left out there: what the model's config.json says"),
    Row("gradient_checkpointing", "gradient_checkpointing", by=switch, default="True"),
    Row("use_liger_kernel", "use_liger_kernel", by=switch, default="False"),
    Row("trust_remote_code", "trust_remote_code", by=switch, default="False"),
    Row("bf16", "param_dtype", by=_precision, note="on if it is not given"),
    Row("dtype", "param_dtype", by=_precision, default="float32",
        note="bf16 has fp32 master weights here"),
    Row("attn_implementation", "attn_implementation"),
    Row("use_peft", "lora_rank", by=_rank, default="False"),
    Row("lora_r", "lora_rank", by=_adapter, default="16"),
    Row("lora_alpha", "lora_alpha", by=_adapter, default="32"),
    Row("lora_dropout", "lora_dropout", by=_adapter, default="0.05"),
    Row("lora_target_modules", "target_modules", by=_modules,
        note="left out there: PEFT's list for the model, such as q_proj v_proj"),
    Row("use_peft", "target_modules", by=_usual_modules, default="False"),
    Row("use_vllm", "rollout_engine", by=_engine, default="False"),
    Row("vllm_mode", "colocate_all_models", by=_shares, default="colocate"),
    Row("vllm_enable_sleep_mode", "vllm_enable_sleep", by=_sleeps, default="False"),
    Row("vllm_gpu_memory_utilization", "vllm_gpu_memory_utilization", by=_with_vllm,
        default="0.3"),
    Row("vllm_tensor_parallel_size", "vllm_tensor_parallel_size", by=_with_vllm, default="1"),
    Row("vllm_tensor_parallel_size", "vllm_num_engines", by=_engines, default="1",
        note="all processes, divided by this"),
    Row("vllm_importance_sampling_correction", "is_correction_level", by=_level, default="True",
        note="for a sequence, the geometric mean of the ratios here, their product there"),
    Row("vllm_importance_sampling_mode", "is_correction_mode", by=_mode, default="sequence_mask"),
    Row("vllm_importance_sampling_clip_max", "is_correction_threshold", by=_bounds, default="3.0"),
    Row("vllm_importance_sampling_clip_min", "is_correction_threshold", by=_bounds),
    Row("save_steps", "save_steps", by=_saves, default="500", note="updates there"),
    Row("save_strategy", "save_steps", by=_save_strategy, default="steps"),
    Row("save_total_limit", "max_ckpt_num", by=whole),
    Row("save_only_model", "disable_ds_ckpt", by=switch, default="False"),
    Row("logging_steps", "logging_steps", by=_steps, default="10", note="updates there"),
    Row("eval_steps", "eval_steps", by=_evaluates, note="updates there"),
    Row("eval_strategy", "eval_dataset",
        by=lambda v, values: needless("no evaluation") if v == "no" else _eval_strategy(v, values),
        default="no", note="a file of its own"),
    Row("num_generations_eval", "eval_n_samples_per_prompt", by=whole),
    Row("seed", "seed", by=whole, default="42"),
    Row("full_determinism", "full_determinism", by=switch, default="False"),
    Row("deepspeed", "zero_stage", by=_stage, note=BY_FILE),
    Row("ddp_timeout", "dist_timeout", by=whole, default="1800"),
]  # fmt: skip
LAUNCHER = [
    Row("num_processes", "actor_num_gpus_per_node", by=_per_node, old=True,
        note="divided by num_machines"),
    Row("nproc_per_node", "actor_num_gpus_per_node", by=_per_node, old=True),
    Row("num_gpus", "actor_num_gpus_per_node", by=_per_node, old=True),
    Row("num_machines", "actor_num_nodes", by=_nodes, old=True),
    Row("nnodes", "actor_num_nodes", by=_nodes, old=True),
    Row("parallelism_config_sp_size", "ring_attn_size", by=whole, default="1", old=True),
    Row("parallelism_config_cp_size", "ring_attn_size", by=whole, default="1", old=True,
        note="by exchanging heads, as sp_size does"),
    Row("accelerate_config", "zero_stage", by=_stage, note=BY_FILE, old=True),
    Row("config_file", "zero_stage", by=_stage, note=BY_FILE, old=True),
    Row("zero_stage", "zero_stage", by=whole, old=True, note="also of the file"),
    Row("offload_optimizer_device", "adam_offload", by=_offload, old=True,
        note="also of the file; FSDP's offload, too"),
    Row("offload_param_device", by=_param_offload, old=True, note=PARAM_OFFLOAD),
]  # fmt: skip
"""Of accelerate, torchrun and deepspeed; not of TRL's own parser."""

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


def _of_tracker(name: str) -> Conversion:
    def convert(value: str, values: Values) -> Answer:
        on = name in values.text("report_to").split()
        return value if on else needless(f"{name} is off")

    return convert


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
    Row("WANDB_PROJECT", "wandb_project", by=_wandb, default="huggingface", old=True,
        note=OF_VARIABLES),
    Row("project", "log_project", by=_of_tracker("trackio"), default="huggingface",
        note="of trackio alone"),
    Row("MLFLOW_EXPERIMENT_NAME", "log_project", by=_of_tracker("mlflow"), old=True,
        note=OF_VARIABLES),
    Row("SWANLAB_PROJECT", "log_project", by=_of_tracker("swanlab"), old=True,
        note=OF_VARIABLES),
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
        "vespo_k_pos vespo_lambda_pos vespo_k_neg "
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

VARIABLES = ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", "SWANLAB_PROJECT")
"""Rows that are variables of the environment, and no flags."""
TRL = Table("TRL 1.16", [*KEYS, *DATA, *LAUNCHER, *NEEDLESS, *ABSENT])
