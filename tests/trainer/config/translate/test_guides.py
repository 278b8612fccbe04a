"""The scripts of the public guides are read as they are typed, and become commands of ours."""

from __future__ import annotations

from typing import Any

import pytest

from contract.options import ConfigError, Fault, MissingFile
from tests.support.repository import DATA
from trainer.config import layout
from trainer.config.config import Config
from trainer.config.parse import DESCRIPTION, PROG, parse, read
from trainer.config.schema import flags_of
from trainer.config.translate.command import TranslateError, of_script
from trainer.config.translate.result import Translation
from trainer.config.translate.translation import plain, translated

SCRIPTS = DATA / "guide_scripts"


def of_guide(name: str, **variables: str) -> Translation:
    return translated(of_script((SCRIPTS / f"{name}.sh").read_text(), variables))


def values(made: Translation, *names: str) -> dict[str, Any]:
    reading = read(Config, [plain(word) for word in made.words], PROG, DESCRIPTION)
    config = layout.settled(reading.config, reading.given)
    return {name: flags_of(Config)[name].value_in(config) for name in names}


def faults(made: Translation) -> tuple[Fault, ...]:
    """What the trainer's own parser says of the command."""
    try:
        parse([*map(plain, made.words), "--run_dir", "/run"], incomplete=True)
    except ConfigError as error:
        return error.faults
    return ()


WHOLE: dict[str, dict[str, str]] = {
    "openrlhf-slurm": {},
    "openrlhf-example-ppo": {},
    "search-r1": {},
    "verl-dstack": {},
    "verl-example-grpo": {},
    "verl-example-ppo": {},
    "verl-amd-slurm": {"SLURM_NNODES": "2", "SLURM_GPUS_PER_NODE": "8"},
}
"""Scripts that lose nothing, with what they take from outside."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_guides_script_is_a_whole_command_of_ours(name: str) -> None:
    made = of_guide(name, **WHOLE[name])
    assert (made.lost, made.needed) == ([], [])


@pytest.mark.parametrize("name", WHOLE)
def test_our_parser_takes_the_command_but_for_files_that_are_elsewhere(name: str) -> None:
    made = of_guide(name, **WHOLE[name])
    assert [fault for fault in faults(made) if not isinstance(fault, MissingFile)] == []


@pytest.mark.parametrize(
    ("name", "lost", "needed"),
    [
        ("openrlhf-four-nodes", [], ["--prompt_data"]),
        ("openrlhf-two-nodes", [], ["--pretrain", "--prompt_data", "--remote_rm_url"]),
        ("verl-manual", [], ["--pretrain", "--prompt_data", "--remote_rm_url"]),
        ("openrlhf-example-arrays", [], []),
        ("verl-amd-slurm", ["trainer.nnodes", "trainer.n_gpus_per_node"], []),
    ],
)
def test_what_a_guides_script_leaves_out_is_named(
    name: str, lost: list[str], needed: list[str]
) -> None:
    made = of_guide(name)
    assert [one.replace("=", " ").split()[0] for one in made.lost] == lost
    assert [one.partition(":")[0] for one in made.needed] == needed


def test_a_number_from_outside_is_asked_for() -> None:
    assert of_guide("verl-amd-slurm").lost[0] == (
        "trainer.nnodes=${SLURM_NNODES}: give the number, as in --set SLURM_NNODES=NUMBER"
    )


def test_the_dpo_of_a_guide_is_refused_by_name() -> None:
    with pytest.raises(
        TranslateError, match=r"train_dpo is not a command of PPO .*to `rollcall dpo`"
    ):
        of_guide("openrlhf-slurm-dpo")


def test_openrlhf_four_nodes() -> None:
    made = of_guide("openrlhf-four-nodes")
    assert made.environment == {}
    assert any("40 GPUs" in note for note in made.first)
    assert values(made, "train_batch_size", "zero_stage", "prompt_max_len", "param_dtype") == {
        "train_batch_size": 128,
        "zero_stage": 3,
        "prompt_max_len": 1024,
        "param_dtype": "fp32",  # --bf16 is folded in later
    }
    assert made.by_default == {"vllm_gpu_memory_utilization"}


def test_openrlhf_s_arrays_and_older_dotted_flags() -> None:
    made = of_guide("openrlhf-example-arrays")
    assert values(made, "is_correction_level", "is_correction_mode", "generate_max_len") == {
        "is_correction_level": "token",
        "is_correction_mode": "mask",
        "generate_max_len": 64000,
    }
    assert "colocate_all_models" not in made.by_default
    assert values(made, "colocate_all_models") == {"colocate_all_models": True}


def test_verl_s_grpo() -> None:
    made = of_guide("verl-example-grpo")
    expected = {
        "rollout_batch_size": 1024,
        "n_samples_per_prompt": 5,
        "train_batch_size": 256 * 5,
        "micro_train_batch_size": 40,
        "advantage_estimator": "group_norm",
        "use_kl_loss": True,
        "init_kl_coef": 0.001,
        "kl_estimator": "k3",
        "eps_clip_low_high": (0.2, 0.2),
        "dual_clip": 3.0,
        "lr_scheduler": "constant",
        "l2": 0.01,
        "adam_betas": (0.9, 0.999),
        "prompt_overlong": "drop",
        "label_key": "reward_model.ground_truth",
        "remote_rm_url": "gsm8k",
        "apply_chat_template": True,
        "colocate_all_models": True,
        "vllm_num_engines": 4,
        "vllm_tensor_parallel_size": 2,
        "zero_stage": 3,
        "num_episodes": 15,
    }
    assert values(made, *expected) == expected


def test_verl_s_ppo_on_two_nodes_of_eight() -> None:
    made = of_guide("verl-dstack")
    assert made.environment == {"EXPECTED_WORKERS": "1"}
    expected = {
        "advantage_estimator": "gae",
        "init_kl_coef": 0.0,  # kl_ctrl.kl_coef has no effect without use_kl_in_reward
        "vllm_num_engines": 16,
        "critic_learning_rate": 1e-5,
        "critic_l2": 0.01,
        "actor_num_nodes": 2,
        "critic_num_nodes": 2,
        "save_steps": 10,
    }
    assert values(made, *expected) == expected


def test_search_r1_s_own_command() -> None:
    made = of_guide("search-r1")
    assert made.trainer == "Search-R1"
    assert made.flags["environment_args"] == (
        '{"url": "http://127.0.0.1:8000/retrieve", "topk": 3}',
    )
    expected = {
        "environment": "search",
        "remote_rm_url": "exact-match",
        "max_turns": 5,  # four searches, and the last reply
        "max_obs_length": 500,
        "prompt_max_len": 2048,
        "max_len": 4096,
        "generate_max_len": 500,
        "init_kl_coef": 0.001,  # in the reward, as in the fork
        "use_kl_loss": False,
        "micro_train_batch_size": 4,  # 64 on 16 GPUs
        "entropy_loss_coef": 0.001,
        "dual_clip": None,
        "lr_warmup_ratio": 0.285,
        "critic_lr_warmup_ratio": 0.015,
        "max_steps": 1005,
    }
    assert values(made, *expected) == expected
