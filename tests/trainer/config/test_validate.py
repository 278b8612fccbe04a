"""Flags that are right alone and wrong, or for nothing, together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.options import ConfigError
from env.environments.registry import ENVIRONMENTS
from tests.support.tiny_run import Tiny, faults_of, to_argv
from trainer.config.config import Config
from trainer.config.no_effect import NO_EFFECT, warnings_between
from trainer.config.parse import parse
from trainer.config.schema import flags_of


@pytest.mark.parametrize(
    ("flags", "flag", "said"),
    [
        ({"max_len": 1024}, "--max_len", "no room for a prompt"),
        ({"max_len": 512}, "--max_len", "Give more than 1024"),
        ({"overlong_buffer_len": 2000}, "--overlong_buffer_len", "at most 1024"),
        ({"dynamic_filtering": True}, "--n_samples_per_prompt", "at least 2"),
        ({"advantage_estimator": "rloo"}, "--n_samples_per_prompt", "at least 2"),
        ({"advantage_estimator": "dr_grpo"}, "--n_samples_per_prompt", "at least 2"),
        ({"advantage_estimator": "reinforce_baseline"}, "--n_samples_per_prompt", "at least 2"),
        ({"eval_n_samples_per_prompt": 4}, "--eval_temperature", "equal"),
        ({"advantage_estimator": "gdpo"}, "--n_samples_per_prompt", "at least 2"),
        (
            {"advantage_estimator": "gdpo", "normalize_reward": True},
            "--normalize_reward",
            "gdpo each reward",
        ),
        (
            {"advantage_estimator": "gdpo", "stop_properly_penalty_coef": 0.5},
            "--stop_properly_penalty_coef",
            "gdpo treats each by itself",
        ),
        (
            {"advantage_estimator": "gdpo", "reward_pretrain": "m/r", "reward_combine": "min"},
            "--reward_combine",
            "gdpo treats each by itself",
        ),
        (
            {"is_correction_level": "seq", "is_correction_mode": "clip"},
            "--is_correction_mode",
            "mask",
        ),
        (
            {"is_correction_level": "token", "is_correction_gating": "tv"},
            "--is_correction_threshold",
            "upper bound only",
        ),
        (
            {"kl_target": 0.1, "rollout_batch_size": 512, "kl_horizon": 102},
            "--kl_horizon",
            "Give at least 103",
        ),
        (
            {"kl_target": 0.1, "rollout_batch_size": 640, "kl_horizon": 128},
            "--kl_horizon",
            "Give at least 129",
        ),
        ({"flash_attn": True, "attn_implementation": "sdpa"}, "--flash_attn", "sdpa"),
        (
            {"attn_implementation": "flash_attention_2"},
            "--attn_implementation",
            "computes in bf16 and not in fp32",
        ),
        (
            {"rollout_batch_size": 128, "vllm_generate_batch_size": 256},
            "--vllm_generate_batch_size",
            "more than rollout_batch_size 128",
        ),
        (
            {"reward_pretrain": "./reward", "remote_rm_url": None},
            "--reward_pretrain",
            "config.json",
        ),
        (
            {"rollout_engine": "vllm", "top_p": 0.9, "temperature": 0.7},
            "--top_p",
            "Give --top_p 1 or --temperature 1",
        ),
        (
            {"async_train": True, "vllm_enable_sleep": True},
            "--vllm_enable_sleep",
            "Leave out one of --async_train and --vllm_enable_sleep",
        ),
        ({"load_in_4bit": True}, "--load_in_4bit", "is not supported"),
        ({"aux_loss_coef": -0.1}, "--aux_loss_coef", "0"),
        (
            {"environment": "serch"},
            "--environment",
            f"Give one of {', '.join(ENVIRONMENTS)}, FILE.py:CLASS, or verifiers:NAME",
        ),
        ({"environment_args": "[3]"}, "--environment_args", "a JSON object of keyword arguments"),
        ({"agent_func_path": "agent.py"}, "--agent_func_path", "No such file"),
        ({"ring_attn_size": 2}, "--ring_attn_size", "does not divide the 1 rank "),
        ({"dual_clip": 1}, "--dual_clip", "greater than 1"),
        ({"gamma": "nan"}, "--gamma", "must be a number"),
    ],
)
def test_what_cannot_be_done_is_a_fault(flags: dict[str, Any], flag: str, said: str) -> None:
    assert said in faults_of(**flags)[flag]


ENVIRONMENT = """\
import time
from env.episodes.environment import Environment

class Own(Environment):
    async def step(self, reply):
        time.sleep(1)
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("import time", "import import", "line 1 is not Python code"),
        ("self, reply", "self", "Own.step, line 5, must take one argument after self"),
        ("class Own", "class Other", "the file defines no Own"),
    ],
)
def test_the_file_of_an_environment_is_read_before_the_run(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    (tmp_path / "own.py").write_text(ENVIRONMENT.replace(before, after))
    assert said in faults_of(environment=f"{tmp_path}/own.py:Own")["--environment"]


def test_a_step_that_blocks_is_warned_of(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ENVIRONMENT)
    config = tiny.config(tmp_path / "run", environment=f"{tmp_path}/own.py:Own")
    (warning,) = [said for said in warnings_between(config, set()) if "Own.step" in said]
    assert f"calls time.sleep ({tmp_path}/own.py:6)" in warning


@pytest.mark.parametrize("end", ["", ":scored", ":scored:0.5", ":2"])
def test_a_file_of_rewards_that_is_missing_is_named(end: str) -> None:
    assert "/none/own.py" in faults_of(reward=f"/none/own.py{end}")["--reward"]


@pytest.mark.parametrize("bounds", [("5", "-5"), ("1", "1")])
def test_an_empty_range_is_a_fault(bounds: tuple[str, str]) -> None:
    for name in ("reward_clip_range", "dynamic_filtering_reward_range"):
        with pytest.raises(ConfigError, match=f"--{name}: is empty"):
            parse([f"--{name}", *bounds])


def test_whole_weights_on_every_rank_do_not_go_with_sharded_ones(tiny: Tiny, run_dir: Path) -> None:
    assert tiny.config(run_dir, zero_stage=2, enable_ema=True).train.enable_ema
    with pytest.raises(ConfigError, match=r"--enable_ema: keeps whole weights.*--zero_stage 2"):
        tiny.config(run_dir, zero_stage=3, enable_ema=True)


def test_a_partition_is_of_equal_groups_of_ranks(tiny: Tiny, run_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"--zpg: does not divide the 4 ranks.* 2 or 4 would"):
        tiny.config(run_dir, zero_stage=3, zpg=3, actor_num_gpus_per_node=4, critic_num_nodes=3)


def test_flags_at_the_value_that_is_done_are_right(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        ring_attn_size=1,
        aux_loss_coef=0,
        zero_stage=0,
        prompt_split="train",
        optim="adam",
    )
    assert config.warnings == ()


def test_an_ordinary_command_has_no_warning(tiny: Tiny, run_dir: Path) -> None:
    assert tiny.config(run_dir).warnings == ()


ALONE: list[tuple[dict[str, Any], str, str]] = [
    ({"advantage_estimator": "group_norm", "lambd": 0.9}, "--lambd", "gae"),
    ({"advantage_estimator": "rloo", "value_clip": 0.1}, "--value_clip", "no critic"),
    ({"advantage_estimator": "rloo", "critic_max_norm": 2}, "--critic_max_norm", "no critic"),
    ({"advantage_estimator": "rloo", "freezing_actor_steps": 2}, "--freezing", "nothing learns"),
    ({"advantage_estimator": "rloo", "no_advantage_std_norm": True}, "--no_adv", "not whitened"),
    ({"kl_horizon": 100}, "--kl_horizon", "--kl_target"),
    ({"init_kl_coef": 0, "kl_target": 6}, "--kl_target", "--init_kl_coef 0"),
    ({"init_kl_coef": 0, "use_kl_loss": True}, "--use_kl_loss", "reference"),
    ({"use_kl_loss": True, "kl_estimator": "k1"}, "--kl_estimator k1", "k2 or k3"),
    ({"kl_estimator": "k3"}, "--kl_estimator k3", "biased"),
    ({"overlong_penalty_factor": 2}, "--overlong_penalty_factor", "--overlong_buffer_len"),
    ({"is_correction_threshold": 2}, "--is_correction_threshold", "--is_correction_level"),
    (
        {"policy_loss_type": "gspo", "loss_aggregation": "token"},
        "--loss_aggregation",
        "uses sequence",
    ),
    (
        {
            "policy_loss_type": "gspo",
            "is_correction_level": "token",
            "is_correction_mode": "clip",
        },
        "--is_correction_mode",
        "without bounds",
    ),
    ({"lora_alpha": 8}, "--lora_alpha", "--lora_rank"),
    ({"ema_beta": 0.9}, "--ema_beta", "--enable_ema"),
    ({"train_max_tokens_per_gpu": 9}, "--train_max_tokens_per_gpu", "--use_dynamic_batch"),
    ({"use_dynamic_batch": True}, "--micro_train_batch_size", "by tokens"),
    (
        {
            "use_dynamic_batch": True,
            "micro_train_batch_size": None,
            "train_max_tokens_per_gpu": 3,
        },
        "--train_max_tokens_per_gpu 3",
        "a pass of its own",
    ),
    ({"lr_scheduler": "constant", "lr_warmup_ratio": 0.1}, "--lr_warmup_ratio", "no warm-up"),
    ({"lr_scheduler": "linear", "min_lr_ratio": 0.2}, "--min_lr_ratio", "cosine_with_min_lr"),
    ({"eval_steps": 2}, "--eval_steps", "--eval_dataset"),
    ({"wandb_project": "mine"}, "--wandb_project", "--use_wandb"),
    ({"use_wandb": "sesame"}, "--use_wandb", "shows its key"),
    ({"deepcompile": True}, "--deepcompile", "uncompiled"),
    ({"adam_offload": True}, "--adam_offload", "--zero_stage"),
    ({"zero_stage": 2, "zpg": 2}, "--zpg", "only --zero_stage 3"),
    ({"actor_num_gpus_per_node": 8}, "--train_batch_size 4", "the 8 ranks of the policy"),
    ({"colocate_critic_reward": True}, "--colocate_critic_reward", "--reward_pretrain"),
    ({"init_kl_coef": 0, "colocate_actor_ref": True}, "--colocate_actor_ref", "reference out"),
    ({"reward_num_nodes": 2}, "--reward_num_nodes", "--remote_rm_url"),
    ({"advantage_estimator": "rloo", "critic_resources": '{"a": 1}'}, "--critic_res", "no critic"),
    (
        {"rollout_engine": "hf", "vllm_gpu_memory_utilization": 0.5},
        "--vllm_gpu_memory_utilization",
        "not with vLLM",
    ),
    ({"rollout_engine": "hf", "vllm_sync_backend": "nccl"}, "--vllm_sync_backend", "not with vLLM"),
    ({"async_train": True}, "--async_train", "corrected by --is_correction_level token"),
    ({"max_staleness": 2}, "--max_staleness", "it needs --async_train"),
    ({"partial_rollout": True}, "--partial_rollout", "it needs --async_train"),
    (
        {"async_train": True, "max_staleness": 0, "partial_rollout": True},
        "--partial_rollout",
        "no completion is unfinished",
    ),
    ({"micro_rollout_batch_size": 64}, "--micro_rollout_batch_size 64", "8 samples"),
    (
        {"input_template": "Q: {}", "apply_chat_template": True},
        "--input_template is put around texts before the chat template is",
        "OpenRLHF leaves it out",
    ),
    ({"input_template": r"Q: {}\nA:"}, "--input_template has a backslash", r"$'…\n…'"),
]


@pytest.mark.parametrize(("flags", "flag", "why"), ALONE)
def test_a_flag_for_nothing_is_said(
    tiny: Tiny,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    flag: str,
    why: str,
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (warning,) = tiny.config(run_dir, **{"critic_learning_rate": None, **flags}).warnings
    assert warning.startswith(flag)
    assert why in warning


def test_bounds_of_their_own_leave_eps_clip_without_effect(tiny: Tiny, run_dir: Path) -> None:
    words = ["--eps_clip", "0.3", "--eps_clip_low_high", "0.2", "0.28"]
    config = tiny.config(run_dir)
    base = to_argv(
        {n: getattr(config, n) for n in ("pretrain", "prompt_data", "run_dir", "remote_rm_url")}
    )
    told = parse([*base, *words])
    assert told.warnings == ("--eps_clip has no effect: --eps_clip_low_high gives both bounds",)
    assert told.loss.clip_range == (0.2, 0.28)


def test_a_shared_spelling_warns_for_no_critic(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, advantage_estimator="rloo", l2=0.1, critic_learning_rate=None)
    assert config.warnings == ()


def test_conditions_name_flags_of_the_table() -> None:
    flags = flags_of(Config)
    assert [name for rule in NO_EFFECT for name in rule.flags if name not in flags] == []
