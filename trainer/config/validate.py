"""Flags that are valid alone and wrong together, or do not fit the disk: all faults at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from contract.durations import counted
from contract.files.hf_cache import cached
from contract.files.os_errors import why_absent
from contract.options import Fault, MissingFile, MissingFlag, nearest
from trainer.config import (
    data_sets,
    environments,
    images,
    layout,
    own_functions,
    reward_models,
)
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.config.values import shown

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
FILE = re.compile(r"(?P<file>.+\.py)(?::[A-Za-z_]\w*)?(?::[-+.\deE]+)?")
"""A reward in a Python file, perhaps with the name of a function, and with a weight."""


def faults_between(config: Config) -> Iterator[Fault]:
    """Yield each fault with its remedy."""
    yield from _missing_files(config)
    yield from _batch_faults(config)
    yield from _length_faults(config)
    yield from _group_faults(config)
    yield from _parts_faults(config)
    yield from _range_faults(config)
    yield from _kl_faults(config)
    yield from _correction_faults(config)
    yield from _best_metric_faults(config)
    yield from _beginning_faults(config)
    yield from _sharding_faults(config)
    yield from _vllm_faults(config)
    yield from _asynchronous_faults(config)
    yield from layout.faults(config)
    yield from reward_models.faults(config)
    yield from images.faults(config)
    yield from _hub_faults(config)


def _hub_faults(config: Config) -> Iterator[Fault]:
    if config.hub_model_id and not REPOSITORY.fullmatch(config.hub_model_id):
        yield Fault(
            "--hub_model_id",
            config.hub_model_id,
            "is not a name of a repository",
            "Give OWNER/NAME, of letters, digits, '-', '_' and '.'",
        )


def _missing_files(config: Config) -> Iterator[Fault]:
    yield from data_sets.faults("--prompt_data", config.prompt_data, config.prompt_data_probs)
    yield from data_sets.faults("--eval_dataset", config.eval_dataset)
    for name in ("pretrain", "critic_pretrain"):
        given: str = getattr(config, name)
        yield from missing_model(f"--{name}", given)
    for model in reward_models.names(config) if config.has_reward_model else ():
        yield from missing_model("--reward_pretrain", model)
    yield from environments.faults(config)
    yield from own_functions.faults(config)
    yield from _reward_faults(config)


def _reward_faults(config: Config) -> Iterator[Fault]:
    flag = "--reward" if config.rewards else "--remote_rm_url"
    for file in reward_files(config):
        if why := why_absent(Path(file)):
            yield MissingFile(flag, file, why, "Give a file with the reward function")
    if config.rewards and config.remote_rm_url:
        yield Fault(
            "--reward",
            " ".join(config.rewards),
            "--remote_rm_url gives a reward, too",
            "Give all rewards by --reward, each with its weight",
        )
    if not (config.reward_spec or config.reward_pretrain or config.has_environment):
        yield MissingFlag(
            "--remote_rm_url",
            "",
            "is required",
            "reward: URL (several with commas), a .py file with reward_func, FILE.py:NAME of a "
            "function, or a registered name; or give --reward or --reward_pretrain",
        )


def reward_files(config: Config) -> list[str]:
    """Return the Python files that the reward flags name."""
    texts = [text.strip() for text in config.rewards or [config.remote_rm_url]]
    found = [FILE.fullmatch(text) for text in texts if "://" not in text]
    return [one["file"] for one in found if one]


def missing_model(flag: str, model: str) -> Iterator[Fault]:
    """Yield a fault unless the model is on disk, or may be a name on the hub."""
    if model and not may_be_on_hub(model) and (why := why_absent(Path(model) / "config.json")):
        remedy = "Give a directory in Hugging Face's layout, or a name on the hub"
        if why_absent(Path(model) / "adapter_config.json") is None:
            remedy = "It is an adapter of peft: merge it into its model (merge_and_unload) first"
        yield MissingFile(flag, model, f"no model there (no config.json: {why})", remedy)


SLIP = 0.8
"""difflib's ratio from which a name of a model counts as a mistyped one of another."""
HUB_MODEL = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def may_be_on_hub(model: str) -> bool:
    """Return whether a model can be a name on the hub, and is no path of this disk by its look.

    In OWNER/NAME no OWNER is a directory here that has files: such a one is a user's own. Nor does
    it have a model whose name is NAME but for a letter or two.
    """
    if not HUB_MODEL.fullmatch(model):
        return False
    owner, slash, name = model.partition("/")
    if not slash or why_absent(Path(owner)) or cached(model).exists():
        return True
    try:
        if any(one.is_file() for one in Path(owner).iterdir()):
            return False
        return not _is_slip(name, [one.parent.name for one in Path(owner).glob("*/config.json")])
    except OSError:
        return True


def _is_slip(name: str, others: Sequence[str]) -> bool:
    """Return whether a name is another one with a wrong letter; other digits are another model."""
    alike = [one for one in others if abs(len(one) - len(name)) <= 1]
    near = nearest(name, alike, cutoff=SLIP)
    return bool(near) and re.findall(r"\d+", near) == re.findall(r"\d+", name)


def _batch_faults(config: Config) -> Iterator[Fault]:
    samples, batch = config.samples_per_step, config.train.train_batch_size
    if samples % batch:
        yield Fault(
            "--train_batch_size",
            str(batch),
            f"does not divide the {counted(samples, 'sample')} of a step "
            f"(rollout_batch_size {config.rollout_batch_size} x "
            f"n_samples_per_prompt {config.n_samples_per_prompt})",
            f"{_nearest_divisors(samples, batch)} would",
        )
    if batch % config.train.micro_train_batch_size and not config.train.use_dynamic_batch:
        yield Fault(
            "--micro_train_batch_size",
            str(config.train.micro_train_batch_size),
            f"does not divide train_batch_size {batch}",
            f"{_nearest_divisors(batch, config.train.micro_train_batch_size)} would",
        )
    generated = config.vllm_generate_batch_size
    if generated is not None and generated > config.rollout_batch_size:
        yield Fault(
            "--vllm_generate_batch_size",
            str(generated),
            f"is more than rollout_batch_size {config.rollout_batch_size}",
            "A synchronous step uses all its rollouts; give at most that",
        )


def _nearest_divisors(total: int, wanted: int) -> str:
    """Return the divisors of `total` next to `wanted`, in words."""
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return " or ".join(str(d) for d in below + above)


def _length_faults(config: Config) -> Iterator[Fault]:
    longest = config.sampling.max_new_tokens
    if config.max_len is not None and config.max_len <= longest:
        yield Fault(
            "--max_len",
            str(config.max_len),
            f"leaves no room for a prompt beside generate_max_len {longest}",
            f"Give more than {longest}, or a smaller --generate_max_len",
        )
    buffer = config.shaping.overlong_buffer_len
    if buffer is not None and buffer > longest:
        yield Fault(
            "--overlong_buffer_len",
            shown(buffer),
            f"is longer than generate_max_len {longest}",
            f"Give at most {longest}",
        )


def _group_faults(config: Config) -> Iterator[Fault]:
    samples = config.n_samples_per_prompt
    if samples < 2 and config.advantage.entry.compares_group:
        yield Fault(
            "--n_samples_per_prompt",
            str(samples),
            f"{config.advantage.estimator} compares the completions of one prompt",
            "Give at least 2",
        )
    elif samples < 2 and config.filtering.enabled:
        yield Fault(
            "--n_samples_per_prompt",
            str(samples),
            "dynamic_filtering judges a prompt by several completions",
            "Give at least 2",
        )
    if config.eval_n_samples_per_prompt > 1 and config.eval_temperature == 0:
        yield Fault(
            "--eval_temperature",
            "0",
            f"makes the {config.eval_n_samples_per_prompt} completions of a held-out prompt equal",
            "Give more than 0, commonly 0.6, or --eval_n_samples_per_prompt 1",
        )


def _parts_faults(config: Config) -> Iterator[Fault]:
    """Yield what makes one number of several rewards that the estimator treats apart."""
    if not config.advantage.sums_parts:
        return
    estimator, shaping = config.advantage.estimator, config.shaping
    if shaping.normalize_reward:
        yield Fault(
            "--normalize_reward", "", f"normalises the sum, and {estimator} each reward", "Omit it"
        )
    if (coefficient := shaping.stop_properly_penalty_coef) is not None:
        yield Fault(
            "--stop_properly_penalty_coef",
            shown(coefficient),
            f"changes the sum of rewards, and {estimator} treats each by itself",
            "Omit it, or give --overlong_buffer_len: its penalty is a reward of its own",
        )
    if config.has_reward_model and config.reward_combine not in reward_models.SUMS:
        yield Fault(
            "--reward_combine",
            config.reward_combine,
            f"makes one number of the rewards, and {estimator} treats each by itself",
            f"Give {' or '.join(reward_models.SUMS)}: the scores are then rewards of weight 1",
        )


def _range_faults(config: Config) -> Iterator[Fault]:
    ranges: dict[str, tuple[float, ...]] = {
        "reward_clip_range": config.advantage.reward_clip_range,
        "dynamic_filtering_reward_range": config.filtering.reward_range,
        "is_correction_threshold": config.correction.threshold,
    }
    for name, bounds in ranges.items():
        if len(bounds) != 2:
            yield Fault(f"--{name}", shown(bounds), "takes at most two bounds", "Give LOW and HIGH")
        elif not bounds[0] < bounds[1]:
            yield Fault(f"--{name}", shown(bounds), "is empty", "Give LOW then HIGH")
    optimizers = {
        "adam_betas": config.policy_optimizer,
        "critic_adam_betas": config.critic_optimizer,
    }
    for name, optimizer in optimizers.items():
        betas = optimizer.adam_betas
        if not all(0 <= beta < 1 for beta in betas):
            yield Fault(f"--{name}", shown(betas), "must lie in [0, 1)", "Commonly 0.9 0.95")
    if config.input_template and "{}" not in config.input_template:
        yield Fault("--input_template", config.input_template, "has no {}", "Put {} for the prompt")
    attention = config.attn_implementation or ""
    if config.flash_attn and attention and "flash" not in attention:
        yield Fault(
            "--flash_attn",
            "",
            f"contradicts --attn_implementation {attention}",
            "Give one of the two",
        )
    elif "flash" in attention and not config.mixed_precision:
        yield Fault(
            "--attn_implementation",
            attention,
            "computes in bf16 and not in fp32",
            "Give --param_dtype bf16, or leave the attention to what fits",
        )


def _kl_faults(config: Config) -> Iterator[Fault]:
    kl, samples = config.kl, config.samples_per_step
    if kl.adapts and not kl.stays_positive(samples):
        yield Fault(
            "--kl_horizon",
            str(kl.horizon),
            f"lets one step of {samples} samples bring the KL's weight to 0 or below",
            f"Give at least {samples // 5 + 1}, commonly ten times the samples of a step or more",
        )


def _correction_faults(config: Config) -> Iterator[Fault]:
    if config.correction.level == "off":
        return
    by_ratio = config.correction.gating == "ratio"
    if config.correction.mode == "clip" and not (by_ratio and config.correction.level == "token"):
        yield Fault(
            "--is_correction_mode",
            "clip",
            "clamps the ratios of tokens and nothing else",
            "Give mask, or --is_correction_level token with --is_correction_gating ratio",
        )
    if not by_ratio and config.correction.threshold[0] > 0:
        yield Fault(
            "--is_correction_threshold",
            shown(config.correction.threshold),
            f"{config.correction.gating} is a distance: it has an upper bound only",
            "Give one number, commonly 0.05",
        )


def _best_metric_faults(config: Config) -> Iterator[Fault]:
    logged = ["accuracy", "pass1", f"pass{config.eval_n_samples_per_prompt}"]
    metric = config.best_metric
    if metric is not None and metric.removeprefix("eval/") not in logged:
        yield Fault(
            "--best_metric_key",
            config.best_metric_key,
            "no evaluation logs it",
            f"Give one of {', '.join(dict.fromkeys(logged))}, or none",
        )


def _beginning_faults(config: Config) -> Iterator[Fault]:
    if config.load_step and not config.load_checkpoint:
        yield Fault(
            "--load_step",
            str(config.load_step),
            "contradicts --load_checkpoint false, which begins anew",
            "Give one of the two",
        )


def _sharding_faults(config: Config) -> Iterator[Fault]:
    if config.sharding.zero_stage < 3:
        return
    if config.train.enable_ema:
        yield Fault(
            "--enable_ema",
            "",
            "keeps whole weights on every rank, and --zero_stage 3 has none",
            "Give --zero_stage 2, or leave the moving average out",
        )
    learners = {Role.POLICY: config.policy_ranks, Role.CRITIC: config.critic_ranks}
    for model, ranks in list(learners.items())[: 1 + config.has_critic]:
        if ranks % config.sharding.zpg:
            yield Fault(
                "--zpg",
                str(config.sharding.zpg),
                f"does not divide the {counted(ranks, 'rank')} of the {model}",
                f"{_nearest_divisors(ranks, config.sharding.zpg)} would",
            )


def _vllm_faults(config: Config) -> Iterator[Fault]:
    if config.rollout_engine == "vllm" and not layout.is_exact(config):
        yield Fault(
            "--top_p",
            shown(config.sampling.top_p),
            f"at temperature {shown(config.sampling.temperature)}, vLLM does not return the "
            "log-probabilities before top_p is applied; training needs them",
            "Give --top_p 1 or --temperature 1, or --rollout_engine hf",
        )
    if config.vllm.sync_backend == "ipc" and not layout.shares_policy(config, Role.ENGINE):
        yield Fault(
            "--vllm_sync_backend",
            "ipc",
            "reads the policy's memory on GPUs that the engines share, and they share none",
            "Give nccl or auto, or --colocate_all_models without --async_train",
        )


def _asynchronous_faults(config: Config) -> Iterator[Fault]:
    if config.async_train and config.vllm.enable_sleep:
        yield Fault(
            "--vllm_enable_sleep",
            "",
            "engines that write while the policy learns never sleep",
            "Leave out one of --async_train and --vllm_enable_sleep",
        )
