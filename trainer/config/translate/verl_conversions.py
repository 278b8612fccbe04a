"""Conversions of values between verl and ours, where a flag's value depends on other flags."""

from __future__ import annotations

from trainer.config.translate.rows import (
    FALSE,
    TRACKERS,
    TRUE,
    Answer,
    Remarked,
    Row,
    Unsaid,
    Values,
    absent,
    idle,
    items,
    needless,
    number,
    shown,
    switch,
    whole,
)

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
MODEL = "actor_rollout_ref.model"
LOGGERS = "['console', 'wandb']"
MEGATRON = (
    "a layer is on one GPU or, with ZeRO-3, on all: Megatron's kinds of parallelism are absent"
)


def sequence_parallel() -> tuple[Row, ...]:
    """Return the rows of the GPUs that share a sequence, which each model has by itself there."""
    owners = (ACTOR, f"{ACTOR}.fsdp_config", "critic", "critic.fsdp")
    return tuple(
        Row(f"{owner}.ulysses_sequence_parallel_size", "ring_attn_size", by=whole, default="1",
            note="one number for policy, critic and reference")
        for owner in owners
    )  # fmt: skip


def data_sets(value: str, values: Values) -> Answer:
    return ",".join(items(value)) or absent("it names no file")


def overlong(value: str, values: Values) -> Answer:
    if value == "error" or values.on("data.filter_overlong_prompts"):
        return "drop"
    return "truncate" if value == "left" else absent(f"a prompt loses its beginning, not {value}")


def filtered(value: str, values: Values) -> Answer:
    return (
        "drop"
        if values.on("data.filter_overlong_prompts")
        else overlong(values.text("data.truncation"), values)
    )


def samples(value: str, values: Values) -> Answer:
    """Return a mini-batch in samples: verl and Search-R1 multiply it by rollout.n alone.

    Raises ValueError.
    """
    return shown(int(value) * values.whole(f"{ROLLOUT}.n"))


def of_all_gpus(value: str, values: Values) -> Answer:
    """Return a batch of all GPUs as that of one. Raises ValueError."""
    return shown(max(1, int(value) // gpus(values)))


def gpus(values: Values) -> int:
    return values.whole("trainer.nnodes") * values.whole("trainer.n_gpus_per_node")


def clip(value: str, values: Values) -> Answer:
    low, high = values.text(f"{ACTOR}.clip_ratio_low"), values.text(f"{ACTOR}.clip_ratio_high")
    ratio = values.text(f"{ACTOR}.clip_ratio")
    low, high = (ratio if one in ("null", "None") else one for one in (low, high))
    float(low), float(high)
    return f"{low} {high}"


def symmetric(value: str, values: Values) -> Answer:
    both = (values.text(f"{ACTOR}.clip_ratio_low"), values.text(f"{ACTOR}.clip_ratio_high"))
    if "null" in both:
        return value
    return needless(
        f"verl 0.9 clips by clip_ratio_low and clip_ratio_high, here {' and '.join(both)}"
    )


def in_loss(values: Values) -> bool:
    """Whether the KL is in the loss here: in both there, it is in the reward alone."""
    return values.on(f"{ACTOR}.use_kl_loss") and not values.on("algorithm.use_kl_in_reward")


def kl_loss(value: str, values: Values) -> Answer:
    if values.on(f"{ACTOR}.use_kl_loss") and not in_loss(values):
        return absent("the KL is in the loss or in the reward, not in both: the loss's is left out")
    return switch(values.text(f"{ACTOR}.use_kl_loss"), values)


def in_reward(values: Values) -> bool:
    """Whether the KL is in the reward; Search-R1 has no switch, and has it unless in the loss."""
    if "algorithm.use_kl_in_reward" in values:
        return values.on("algorithm.use_kl_in_reward")
    return not values.on(f"{ACTOR}.use_kl_loss")


def kl_in_reward(value: str, values: Values) -> Answer:
    if values.on("algorithm.use_kl_in_reward"):
        return needless("the KL is in the reward")
    return kl_loss(value, values)


def loss_coef(value: str, values: Values) -> Answer:
    if not values.on(f"{ACTOR}.use_kl_loss"):
        return idle(f"{ACTOR}.use_kl_loss")
    return number(value, values) if in_loss(values) else needless("the KL is in the reward")


def reward_coef(value: str, values: Values) -> Answer:
    if values.on("algorithm.use_kl_in_reward"):
        return number(value, values)
    without = idle("algorithm.use_kl_in_reward")
    return without if values.on(f"{ACTOR}.use_kl_loss") else Remarked("0", without.why)


def kl_type(value: str, values: Values) -> Answer:
    known = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    return known.get(value.removesuffix("+")) or absent(f"the KL {value} is absent")


def loss_type(value: str, values: Values) -> Answer:
    on = in_loss(values)
    return kl_type(value, values) if on else needless("the KL is not in the loss")


def penalty(value: str, values: Values) -> Answer:
    on = values.on("algorithm.use_kl_in_reward")
    return kl_type(value, values) if on else needless("the KL is not in the reward")


def unbiased(value: str, values: Values) -> Answer:
    if in_loss(values) and value.endswith("+"):
        return TRUE
    return needless("only a name with + has the other gradient")


def adaptive(value: str, values: Values) -> Answer:
    adapts = values.text("algorithm.kl_ctrl.type") == "adaptive"
    if adapts and in_reward(values):
        return value
    return needless("the weight of the KL is fixed")


def estimator(value: str, values: Values) -> Answer:
    named = {
        "gae": "gae",
        "grpo": "group_norm",
        "grpo_vectorized": "group_norm",
        "reinforce_plus_plus": "reinforce",
        "reinforce_plus_plus_baseline": "reinforce_baseline",
        "gdpo": "gdpo",
        "opo": "opo",
        "remax": "remax",
        "rloo": "rloo",
        "rloo_vectorized": "rloo",
    }
    if value in ("grpo", "grpo_vectorized") and not values.on("algorithm.norm_adv_by_std_in_grpo"):
        return "dr_grpo"
    return named.get(value) or absent(f"the estimator {value} is absent")


def norm(value: str, values: Values) -> Answer:
    if values.text("algorithm.adv_estimator").startswith("grpo"):
        return estimator(values.text("algorithm.adv_estimator"), values)
    return needless("only GRPO has it")


def schedule(part: str) -> tuple[Row, ...]:
    prefix, ours = (f"{ACTOR}.optim", "actor") if part == "actor" else ("critic.optim", "critic")

    def kind(value: str, values: Values) -> Answer:
        value = values.text(f"{prefix}.warmup_style") or value
        warms = _ratio(values) not in ("0", "0.0", "0.") or _steps(values) > 0
        if value == "constant":
            return "constant_with_warmup" if warms else "constant"
        lowest = values.text(f"{prefix}.min_lr_ratio")
        if value != "cosine":
            return absent(f"the schedule {value} is absent")
        return "cosine_with_min_lr" if lowest not in ("null", "0", "0.0") else "cosine"

    def _steps(values: Values) -> int:
        """Return the steps of the warm-up; -1 if they are not given. Raises ValueError."""
        name = f"{prefix}.lr_warmup_steps"
        return values.whole(name) if values.has(name) else -1

    def _ratio(values: Values) -> str:
        steps = _steps(values)
        if steps != -1 and values.has("trainer.total_training_steps"):
            return shown(steps / values.whole("trainer.total_training_steps"))
        return values.text(f"{prefix}.lr_warmup_steps_ratio")

    def warm_up(value: str, values: Values) -> Answer:
        ratio = number(_ratio(values), values)
        kinds = (values.text(f"{prefix}.lr_scheduler_type"), values.text(f"{prefix}.warmup_style"))
        is_flat = "cosine" not in kinds and not float(_ratio(values))
        return needless("a constant rate has no warm-up") if is_flat else ratio

    def steps(value: str, values: Values) -> Answer:
        if value == "-1" or values.has("trainer.total_training_steps"):
            return warm_up(value, values)
        return absent(f"a warm-up is a share of the run: give --{ours}.lr_warmup_ratio")

    def old(value: str, values: Values) -> Answer:
        return kind(value, values)

    def lowest(value: str, values: Values) -> Answer:
        return number(value, values) if float(value) else needless("a cosine falls to 0")

    def cycles(value: str, values: Values) -> Answer:
        if float(value) != 0.5 and "cosine" in values.text(f"{prefix}.lr_scheduler_type"):
            return absent("a cosine falls once, from the highest rate to the lowest: 0.5")
        return kind(values.text(f"{prefix}.lr_scheduler_type"), values)

    return (
        Row(f"{prefix}.lr_scheduler_type", f"{ours}.lr_scheduler", by=kind, default="constant"),
        Row(f"{prefix}.warmup_style", f"{ours}.lr_scheduler", by=old, note="the older name"),
        Row(f"{prefix}.lr_warmup_steps_ratio", f"{ours}.lr_warmup_ratio", by=warm_up,
            default="0.0"),
        Row(f"{prefix}.lr_warmup_steps", f"{ours}.lr_warmup_ratio", by=steps, default="-1",
            note="steps there, a share of the run here"),
        Row(f"{prefix}.num_cycles", f"{ours}.lr_scheduler", by=cycles, default="0.5",
            note="a cosine falls once: others are absent"),
        Row(f"{prefix}.min_lr_ratio", f"{ours}.min_lr_ratio", by=lowest, default="0.0"),
        Row(f"{prefix}.weight_decay", f"{ours}.adam.weight_decay", by=number, default="0.01"),
        Row(f"{prefix}.betas", f"{ours}.adam.betas", by=betas, default="[0.9, 0.999]"),
    )  # fmt: skip


def betas(value: str, values: Values) -> Answer:
    return " ".join(items(value))


def modules(value: str, values: Values) -> Answer:
    return " ".join(items(value))


def critic_as_policy(name: str) -> Row:
    def convert(value: str, values: Values) -> Answer:
        if value == values.text(f"{ACTOR}.{name}"):
            return needless("the policy's, which is the same")
        return absent(f"the critic has the policy's, {values.text(f'{ACTOR}.{name}')}")

    return Row(f"critic.{name}", "train_batch_size" if "batch" in name else "max_epochs",
               by=convert, note="the policy's; another value is absent")  # fmt: skip


def engines(value: str, values: Values) -> Answer:
    return shown(max(1, gpus(values) // int(value)))


CLIPPED_BEFORE = "without effect in verl 0.9, which has optim.clip_grad"


def clipped_before(value: str, values: Values) -> Answer:
    return Unsaid(CLIPPED_BEFORE, lost=False, warns=float(value) != 1)


def reply_length(value: str, values: Values) -> Answer:
    longest = values.text("data.max_response_length")
    if value == longest:
        return needless("it is data.max_response_length")
    return absent(f"a reply has at most data.max_response_length tokens, {longest}")


def precision(value: str, values: Values) -> Answer:
    kinds = {"bfloat16": "bf16", "bf16": "bf16", "float32": "fp32", "fp32": "fp32"}
    return kinds.get(value) or absent(f"{value} is absent: bf16 or fp32")


def master_weights(value: str, values: Values) -> Answer:
    is_here = value in ("fp32", "float32")
    return Unsaid("the optimizer's weights are fp32 here", lost=False, warns=not is_here)


def engine_precision(value: str, values: Values) -> Answer:
    if precision(value, values) == precision(values.text(f"{ACTOR}.fsdp_config.dtype"), values):
        return needless("it is the policy's, in both")
    return absent("the engines have the policy's: --param_dtype")


def drawn(value: str, values: Values) -> Answer:
    if values.on("algorithm.filter_groups.enable"):
        return needless("filtering draws as many prompts as are missing")
    if not values.has("trainer.use_v1") or values.on("trainer.use_v1"):
        return needless("verl draws so many prompts at once, and learns from train_batch_size")
    return absent("without trainer.use_v1 it is verl's batch: give --rollout_batch_size")


def resume(value: str, values: Values) -> Answer:
    if value == "resume_path":
        return absent(
            "verl's checkpoints are not read here: give --pretrain the model that "
            "`python3 -m verl.model_merger` makes of one"
        )
    return FALSE if value == "disable" else needless("a run resumes from its newest checkpoint")


def logger(name: str) -> Row:
    def convert(value: str, values: Values) -> Answer:
        if name in items(value):
            return "yes" if name == "wandb" else "tensorboard_log"
        return needless("metrics are in metrics.jsonl and on the page of the run")

    return Row("trainer.logger", f"use_{name}", by=convert, default=LOGGERS,
               note="WANDB_API_KEY also turns W&B on")  # fmt: skip


def loggers(value: str, values: Values) -> Answer:
    names = items(value)
    if others := set(names) - {"console", "file", "wandb", "tensorboard", *TRACKERS}:
        return absent(f"no {', '.join(sorted(others))} here: W&B, TensorBoard, or --log_with")
    trackers = " ".join(name for name in names if name in TRACKERS)
    return trackers or needless("metrics are in metrics.jsonl and on the page of the run")


def wandb(value: str, values: Values) -> Answer:
    return value if "wandb" in values.text("trainer.logger") else needless("W&B is off")


def project(value: str, values: Values) -> Answer:
    on = set(items(values.text("trainer.logger"))) & set(TRACKERS)
    return value if on else needless("no other tracker is on")


def correction(value: str, values: Values) -> Answer:
    return {"token": "token", "sequence": "seq"}.get(value) or absent(f"{value} is absent")


def threshold(value: str, values: Values) -> Answer:
    if not values.has("algorithm.rollout_correction.rollout_is"):
        return needless("there is no correction")
    low, _, high = value.rpartition("_")
    return f"{float(low):g} {float(high):g}" if low else f"0 {float(high):g}"


def correction_mode(value: str, values: Values) -> Answer:
    if not values.has("algorithm.rollout_correction.rollout_is"):
        return needless("there is no correction")
    return (
        "mask"
        if "_" in values.text("algorithm.rollout_correction.rollout_is_threshold")
        else "clip"
    )


def test_temperature(value: str, values: Values) -> Answer:
    if values.on(f"{ROLLOUT}.val_kwargs.do_sample") or not float(value):
        return number(value, values)
    return Remarked("0", idle(f"{ROLLOUT}.val_kwargs.do_sample").why)


def test_sampling(value: str, values: Values) -> Answer:
    temperature = values.text(f"{ROLLOUT}.val_kwargs.temperature")
    return temperature if values.on(f"{ROLLOUT}.val_kwargs.do_sample") else "0"


def dynamic(value: str, values: Values) -> Answer:
    on = values.on(f"{ACTOR}.use_dynamic_bsz")
    return whole(value, values) if on else needless("use_dynamic_bsz is off")


def engine_kind(value: str, values: Values) -> Answer:
    if value in ("vllm", "hf"):
        return value
    return absent(f"there are no engines of {value} here, only vLLM's")


def strategy(value: str, values: Values) -> Answer:
    if value in ("fsdp", "fsdp2"):
        return "3" if values.on(f"{ACTOR}.fsdp_config.reshard_after_forward") else "2"
    return absent(f"{value} is absent: {MEGATRON}")


def resharded(value: str, values: Values) -> Answer:
    return strategy(values.text(f"{ACTOR}.strategy"), values)


def filter_metric(value: str, values: Values) -> Answer:
    if values.on("algorithm.filter_groups.enable") and value not in ("reward", "score", "acc"):
        return absent("groups are filtered by the score")
    return needless("by the score")


def frozen(value: str, values: Values) -> Answer:
    """Return the steps without an update of the policy: verl's first step is 1, and learns at 1."""
    return shown(max(0, Values(it=value).whole("it") - 1))


def limit(value: str, values: Values) -> Answer:
    return needless("all, in both") if value == "-1" else whole(value, values)
