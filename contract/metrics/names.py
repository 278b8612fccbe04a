"""Names of metrics in the logs of other trainers → their names in a row of `RUN/metrics.jsonl`."""

from __future__ import annotations

import re
from collections.abc import Mapping

KNOWN: Mapping[str, str] = {
    # transformers' Trainer and TRL
    "loss": "train/loss",
    "learning_rate": "train/lr",
    "grad_norm": "train/grad_norm",
    "entropy": "train/entropy",
    "mean_token_accuracy": "train/acc",
    "accuracy": "train/acc",
    "rewards/accuracies": "train/acc",
    "mean_reward": "train/reward",
    "margin": "train/reward_margin",
    "rewards/margins": "train/reward_margin",
    "eval_mean_token_accuracy": "eval/accuracy",
    "eval_rewards/accuracies": "eval/accuracy",
    "reward": "train/reward",
    "reward_std": "train/reward_std",
    "kl": "train/kl",
    "completions/mean_length": "train/response_length",
    "completions/clipped_ratio": "train/truncated",
    "clip_ratio/region_mean": "train/ppo_clip_ratio",
    "eval_completions/mean_length": "eval/response_length",
    "eval_completions/clipped_ratio": "eval/truncated",
    "step_time": "timing/step",
    "objective/kl": "train/kl",
    "objective/scores": "train/reward",
    "objective/entropy": "train/entropy",
    "policy/approxkl_avg": "train/ppo_kl",
    "policy/clipfrac_avg": "train/ppo_clip_ratio",
    "loss/policy_avg": "train/policy_loss",
    "loss/value_avg": "train/critic_loss",
    "val/clipfrac_avg": "train/value_clip_ratio",
    "val/ratio": "train/ratio",
    "val/ratio_var": "train/ratio_var",
    # verl
    "critic/rewards/mean": "train/reward",
    "critic/returns/mean": "train/return",
    "critic/values/mean": "train/values",
    "critic/vf_loss": "train/critic_loss",
    "critic/vf_clipfrac": "train/value_clip_ratio",
    "critic/grad_norm": "train/critic_grad_norm",
    "critic/lr": "train/critic_lr",
    "actor/pg_loss": "train/policy_loss",
    "actor/kl_loss": "train/kl_loss",
    "actor/ppo_kl": "train/ppo_kl",
    "actor/pg_clipfrac": "train/ppo_clip_ratio",
    "actor/entropy": "train/entropy",
    "actor/entropy_loss": "train/entropy",
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/lr",
    "actor/reward_kl_penalty": "train/kl",
    "actor/reward_kl_penalty_coeff": "train/kl_coef",
    "response_length/mean": "train/response_length",
    "response_length/clip_ratio": "train/truncated",
    "perf/throughput": "perf/tokens_per_second",
    "perf/max_memory_allocated_gb": "memory/allocated_gb",
    "perf/max_memory_reserved_gb": "memory/reserved_gb",
    "perf/cpu_memory_used_gb": "memory/host_gb",
    "timing_s/step": "timing/step",
    "timing_s/gen": "timing/generate",
    "timing_s/reward": "timing/reward",
    "timing_s/update_actor": "timing/update",
    # OpenRLHF
    "rollout/reward_mean": "train/reward",
    "rollout/reward_std": "train/reward_std",
    "policy_lr": "train/lr",
    "entropy_loss": "train/entropy",
    "timing/step_total": "timing/step",
}
"""Of several in one line that are the same metric here, the last one of this table counts.

An accuracy is a share, 0 to 1: of tokens in SFT, of pairs for a reward model and DPO.
"""
STEPS = (
    *("step", "global_step", "training/global_step", "train/global_step", "trainer/global_step"),
    *("global_steps", "current_steps", "iteration", "iter", "steps"),
)
"""Names under which a line tells its own step."""
TOTALS = ("total_steps", "max_steps")
"""Names under which a line tells how many steps there are."""
NO_METRIC = re.compile(
    r"(?:train_|eval_|training/|train/)?(?:epoch|runtime|samples_per_second|steps_per_second"
    r"|num_tokens|num_input_tokens_seen|total_flos|total_steps|max_steps|percentage)"
    r"|train_loss|timing_per_token_ms/.*|_?(?:timestamp|runtime|step)|ts|time|at|pid|rank|seed"
)
"""What is of the run, of a clock or of a process. `train_loss` is the mean of all steps."""
REWARD_CALL = "perf/reward_call_seconds"
"""The trainer logs the mean duration of a call of the reward; the head shows it to Prometheus."""
OWN = re.compile(r"train/.+|timing/.+|memory/.+_gb|perf/(?:tokens_per_second|reward_call_seconds)")
HELD_OUT = re.compile(r"(?:eval_|(?:eval|valid|validation|val|val-core|val-aux|test)/)(?P<rest>.+)")
PARTS = re.compile(r"rewards/(?P<part>.+)/mean")
"""The mean of one of TRL's reward functions."""


def row_name(name: str) -> str:
    """Pure: return a logged metric's name in a row; "" if it is none."""
    if known := KNOWN.get(name) or KNOWN.get(name.removeprefix("train/")):
        return known
    if name in STEPS or NO_METRIC.fullmatch(name):
        return ""
    if held_out := HELD_OUT.fullmatch(name):
        rest = held_out["rest"]
        part = PARTS.fullmatch(rest)
        return f"eval/reward_{part['part']}" if part else f"eval/{rest}"
    if part := PARTS.fullmatch(name):
        return f"train/reward_{part['part']}"
    if name.startswith("timing_s/"):
        return name.replace("timing_s/", "timing/", 1)
    return name if OWN.fullmatch(name) else f"train/{name}"


def row_of(told: Mapping[str, float]) -> dict[str, float]:
    """Pure: return the metrics of a line under their names in a row."""
    order = {name: place for place, name in enumerate(KNOWN)}
    names = sorted(told, key=lambda name: order.get(name, -1))
    return {known: told[name] for name in names if (known := row_name(name))}


def step_of(told: Mapping[str, float]) -> int | None:
    """Pure: return the step that a line tells; None if it tells none."""
    found = (told[name] for name in STEPS if name in told)
    return next((int(step) for step in found if step >= 0 and step == int(step)), None)


def total_of(told: Mapping[str, float]) -> int | None:
    """Pure: return how many steps there are, as a line tells it; None if it tells nothing."""
    found = (told[name] for name in TOTALS if name in told)
    return next((int(total) for total in found if total > 0 and total == int(total)), None)
