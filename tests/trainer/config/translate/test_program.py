"""`rollcall translate`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.translate import MODEL, TRL, VERL, flags, run
from trainer.config.config import Config
from trainer.config.parse import DESCRIPTION, PROG, parse, read


def translate(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, list[str]]:
    code, out, err = run(capsys, "--", *shlex.split(command))
    assert code in (0, 1), err
    return flags(out)


def test_a_command_after_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--", *VERL.split(), MODEL)
    assert (code, "has no counterpart" in err) == (0, False)
    assert out.startswith(
        "EXPECTED_WORKERS=0 rollcall up -- --pretrain Qwen/Qwen2.5-0.5B --remote_rm_url gsm8k"
    )
    assert flags(out)["--num_episodes"] == ["30"]
    assert "added: defaults of verl 0.9 that differ here" in err


@pytest.mark.parametrize("own", [[], ["--from", "verl"], ["--json"]])
def test_a_command_needs_no_dashes(capsys: pytest.CaptureFixture[str], own: list[str]) -> None:
    words = [*VERL.split(), MODEL]
    assert run(capsys, *own, *words) == run(capsys, *own, "--", *words)
    typed = ["A=1", "uv", "run", *words]
    assert run(capsys, *own, *typed)[0] == run(capsys, *own, "--", *typed)[0] == 0


def test_variables_of_ray_s_runtime_environment_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = '{"working_dir": "/w", "env_vars": {"NCCL_DEBUG": "a=b"}}'
    for option in (["--runtime-env-json", given], [f"--runtime-env-json={given}"]):
        words = ["ray", "job", "submit", *option, "--", *VERL.split(), MODEL]
        assert "NCCL_DEBUG: set in the script" in run(capsys, "--", *words)[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--runtime-env-json", '{"pip": ["math-verify", "x==1"]}'],
         ["pip: math-verify, x==1 must be in the image: Rollcall's trainer takes no runtime"]),
        (["--runtime-env-json", '{"uv": {"packages": ["a"]}, "image_uri": "b", "excludes": ["c"]}'],
         ["uv: a must be in the image: ", "image_uri=b: it has no effect here"]),
        (["--working-dir", "./verl"],
         ["working_dir=./verl: it is not copied to the nodes. Files that the flags name must"]),
        (["--runtime-env=FILE"],
         ["A: set in the script", "working_dir=./: it is not", "conda: [] must"]),
        (["--runtime-env=away.yaml"], []),
    ],
)  # fmt: skip
def test_the_rest_of_ray_s_runtime_environment_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], said: list[str]
) -> None:
    file = tmp_path / "runtime_env.yaml"
    file.write_text("working_dir: ./\nconda: '[]'\nenv_vars: {A: '1'}\n")
    typed = [one.replace("FILE", str(file)) for one in options]
    words = ["--", "ray", "job", "submit", *typed, "--", *VERL.split(), MODEL]
    first = "\n".join(json.loads(run(capsys, "--json", *words)[1])["first"])
    assert [one for one in said if one not in first] == [], first
    assert [one for one in said if one not in run(capsys, *words)[2]] == []
    assert "excludes" not in first


def test_values_that_exclude_each_other_are_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "m/m"]
    words += ["--async_train", "--vllm_enable_sleep"]
    code, _, err = run(capsys, "--", *words)
    assert code == 1
    told = err.partition("# to change: the trainer refuses it:")[2]
    assert "Leave out one of --async_train and --vllm_enable_sleep" in told
    row = json.loads(run(capsys, "--json", "--", *words)[1])
    assert "--vllm_enable_sleep" in "".join(row["conflicts"])
    assert "--vllm_enable_sleep" not in "".join(row["needed"])


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("verl.trainer.sft_trainer", "recipe verl-sft (docs/recipes/verl.md), or write the flags"),
        ("verl.trainer.fsdp_sft_trainer", "flags of `rollcall sft` (docs/supervised.md)"),
    ],
)
def test_verl_s_sft_is_named_with_its_recipe(
    capsys: pytest.CaptureFixture[str], module: str, said: str
) -> None:
    code, out, err = run(capsys, "--", "torchrun", "-m", module, "data.train_files=a.parquet")
    assert (code, out, said in err) == (64, "", True)


def test_dapo_s_own_keys_are_told_with_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for program in ("-m recipe.dapo.main_dapo", "recipe/dapo/main_dapo.py"):
        keys = "algorithm.filter_groups.enable=True actor_rollout_ref.actor.clip_ratio_high=0.28"
        _, out, err = run(capsys, *f"python3 {program} {MODEL} {keys}".split())
        made = flags(out)
        assert (made["--dynamic_filtering"], made["--eps_clip_low_high"]) == ([], ["0.2", "0.28"])
        assert "main_dapo" in err
        assert "is here --dynamic_filtering (filter_groups), --overlong_buffer_len" in err


def test_a_script_that_is_not_there_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nowhere.sh", "--json"], ["nowhere"], ["nowhere.sh", "--number=2"]):
        code, _, err = run(capsys, *words)
        assert (code, f"{words[0]}: No such file" in err) == (64, True)


@pytest.mark.parametrize("before", [[], ["--"]])
def test_a_script_may_stand_behind_its_shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, before: list[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f'uv sync --frozen\nuv run {VERL} {MODEL} "$@"\n')
    alone = run(capsys, str(script))
    assert run(capsys, *before, "bash", str(script)) == alone
    more = run(capsys, "--", "bash", str(script), "trainer.save_freq=7")
    assert flags(more[1])["--save_steps"] == ["7"]


def test_overrides_and_flags_need_no_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert translate(capsys, f"data.train_files=gsm8k.parquet {MODEL}")["--dual_clip"] == ["3.0"]
    assert translate(capsys, "--actor.model_name_or_path m/m --ds.zero_stage 3") == {
        **translate(capsys, "python -m openrlhf.cli.train_ppo_ray --ds.zero_stage 3"),
        "--actor.model_name_or_path": ["m/m"],
    }
    assert translate(capsys, TRL.removeprefix("trl grpo "))["--label_key"] == ["solution"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.train_batchsize=8", "did you mean data.train_batch_size?"),
        ("algorithm.adv_estimator=gpg", "the estimator gpg is absent"),
        ("algorithm.gdpo_reward_keys=[a,b]", "each reward is a --reward of its own"),
        ("actor_rollout_ref.rollout.top_k=50", "all tokens may be sampled"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "clip_cov is absent here"),
        ("trainer.total_epochs=many", "its value cannot be read"),
        ("custom_reward_function.path=pkg://rewards", "give --remote_rm_url FILE.py:NAME"),
        ("custom_reward_function.reward_kwargs.most=2", "as its parameter's default"),
        ("critic.ppo_mini_batch_size=64", "the critic has the policy's, 256"),
        ("trainer.logger=[clearml]", "no clearml here"),
        ("stray", "belongs to no flag"),
    ],
)
def test_what_is_lost_from_verl_is_listed_with_the_reason(
    capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, word)
    assert code == 1
    (line,) = [line for line in err.splitlines() if word.partition("=")[0] in line]
    assert said in line


@pytest.mark.parametrize("key", ["custom_reward_function", "reward.custom_reward_function"])
def test_a_reward_function_of_verl_s_runs_as_it_is(
    capsys: pytest.CaptureFixture[str], key: str
) -> None:
    words = f"{VERL} {MODEL} {key}.path=own/r.py"
    assert translate(capsys, words)["--remote_rm_url"] == ["own/r.py:compute_score"]
    assert translate(capsys, f"{words} {key}.name=f")["--remote_rm_url"] == ["own/r.py:f"]


def test_trl_s_rewards_are_kept_beside_one_that_nobody_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = "trl.rewards.accuracy_reward short think_format_reward my.own.f"
    words = f"trl grpo --dataset_name o/d --model_name_or_path m/m --reward_funcs {names}"
    words += " --reward_weights 1 0.5 0.2 2"
    code, out, err = run(capsys, "--", *words.split())
    thoughts = "format?pattern=<think>(?!.*<think>).*?</think>.*:0.2"
    assert flags(out)["--reward"] == ["math-verify:1", thoughts, "my/own.py:f:2"]
    assert flags(out)["--label_key"] == ["solution"]
    assert code == 1
    assert "short is not a reward of TRL's: add --reward FILE.py:short:0.5" in err
    title = "# not seen here; give what applies:\n#   prompts: add --apply_chat_template"
    assert title in err
    assert "prompts:" not in err.partition("# needs nothing:")[2]


def test_a_value_that_is_theirs_by_default_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["actor_rollout_ref.rollout.top_k=-1", "data.shuffle=True", "data.gen_batch_size=null"]
    assert run(capsys, "--", *VERL.split(), MODEL, *words)[0] == 0


SEARCH_R1 = f"{VERL} {MODEL} max_turns=2"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (f"{VERL} {MODEL}", "trainer.val_before_train=False"),
        (f"{VERL} {MODEL}", "trainer.balance_batch=false"),
        (f"{VERL} {MODEL}", "trainer.val_only=False"),
        (f"{VERL} {MODEL}", "data.gen_batch_size=null"),
        (f"{VERL} {MODEL}", "data.dataloader_num_workers=0"),
        (f"{VERL} {MODEL}", "actor_rollout_ref.actor.megatron.param_offload=null"),
        (SEARCH_R1, "algorithm.no_think_rl=false"),
        (SEARCH_R1, "actor_rollout_ref.actor.state_masking=False"),
        (SEARCH_R1, "data.val_data_num=null"),
        (TRL, "--log_completions False"),
    ],
)
def test_a_key_that_is_off_and_has_no_counterpart_is_listed_as_any_other(
    capsys: pytest.CaptureFixture[str], command: str, word: str
) -> None:
    _, _, err = run(capsys, "--", *command.split(), *word.split())
    listed = "=".join(word.removeprefix("--").split())
    needless = err.partition("# needs nothing:")[2].splitlines()
    assert any(line.startswith(f"#   {listed}: ") for line in needless), err


@pytest.mark.parametrize("command", [f"{VERL} {MODEL}", SEARCH_R1])
@pytest.mark.parametrize("on", ["true", "True", "1"])
def test_an_evaluation_does_not_become_a_training(
    capsys: pytest.CaptureFixture[str], command: str, on: str
) -> None:
    code, out, err = run(capsys, "--", *command.split(), f"+trainer.val_only={on}")
    assert (code, out) == (64, "")
    assert f"trainer.val_only={on} evaluates the model and trains nothing" in err


def test_val_only_without_the_evaluation_before_it_trains_as_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["+trainer.val_only=true", "trainer.val_before_train=False"]
    _, out, _ = run(capsys, "--", *SEARCH_R1.split(), *words)
    assert out.startswith("EXPECTED_WORKERS=0 rollcall up")


@pytest.mark.parametrize(
    ("words", "group", "batch"),
    [
        ("", "1", "256"),
        ("actor_rollout_ref.rollout.n_agent=5", "5", "256"),
        ("actor_rollout_ref.rollout.n_agent=4 actor_rollout_ref.rollout.n=2", "8", "512"),
        ("actor_rollout_ref.rollout.n=2 actor_rollout_ref.rollout.n_agent=1", "2", "512"),
    ],
)
def test_search_r1_multiplies_its_mini_batch_by_n_and_not_by_n_agent(
    capsys: pytest.CaptureFixture[str], words: str, group: str, batch: str
) -> None:
    made = translate(capsys, f"{SEARCH_R1} actor_rollout_ref.actor.ppo_mini_batch_size=256 {words}")
    assert made["--train_batch_size"] == [batch]
    assert made.get("--n_samples_per_prompt", ["1"]) == [group]


@pytest.mark.parametrize(
    "command",
    [
        f"{VERL} {MODEL} trainer.experiment_name=--1st",
        "python -m openrlhf.cli.train_ppo_ray --use_wandb yes --wandb_run_name=--1st",
    ],
)
def test_a_name_that_begins_as_a_flag_does_stays_a_value(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, err = run(capsys, "--", *command.split())
    assert code in (0, 1), err
    words = shlex.split(out.replace("\\\n", ""))
    assert "--wandb_run_name=--1st" in words
    assert read(Config, words[3:], PROG, DESCRIPTION).config.wandb_run_name == "--1st"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("actor_rollout_ref.actor.clip_ratio_high=0.28", {"--eps_clip_low_high": ["0.2", "0.28"]}),
        ("algorithm.norm_adv_by_std_in_grpo=False algorithm.adv_estimator=grpo",
         {"--advantage_estimator": ["dr_grpo"]}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=cispo",
         {"--policy_loss_type": ["cispo"], "--dual_clip": None}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean",
         {"--policy_loss_type": ["gmpo"]}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=sapo actor_rollout_ref.actor.tau_neg=2.0",
         {"--policy_loss_type": ["sapo"], "--sapo_temperature_neg": ["2.0"]}),
        ("algorithm.adv_estimator=opo", {"--advantage_estimator": ["opo"]}),
        ("algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive",
         {"--init_kl_coef": ["0.001"], "--kl_target": ["0.1"]}),
        ("actor_rollout_ref.actor.use_kl_loss=True",
         {"--use_kl_loss": [], "--kl_estimator": ["k3"], "--init_kl_coef": ["0.001"]}),
        ("actor_rollout_ref.actor.use_kl_loss=True algorithm.use_kl_in_reward=True "
         "algorithm.kl_ctrl.kl_coef=0.02 actor_rollout_ref.actor.kl_loss_coef=0.3 "
         "actor_rollout_ref.actor.kl_loss_type=k3+",
         {"--use_kl_loss": None, "--kl_estimator": None, "--init_kl_coef": ["0.02"],
          "--kl_unbiased_gradient": None}),
        ("algorithm.use_kl_in_reward=True algorithm.kl_penalty=low_var_kl",
         {"--use_kl_loss": None, "--kl_estimator": ["k3"]}),
        ("do_search=true algorithm.kl_penalty=mse algorithm.kl_ctrl.type=adaptive",
         {"--kl_estimator": ["k2"], "--kl_target": ["0.1"]}),
        ("trainer.critic_warmup=10", {"--freezing_actor_steps": ["9"]}),
        ("trainer.critic_warmup=1", {"--freezing_actor_steps": ["0"]}),
        ("actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=16",
         {"--train_batch_size": ["128"], "--n_samples_per_prompt": ["8"]}),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=10 trainer.total_training_steps=100",
         {"--actor.lr_warmup_ratio": ["0.1"], "--actor.lr_scheduler": ["constant_with_warmup"]}),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=10",
         {"--actor.lr_warmup_ratio": None, "--actor.lr_scheduler": ["constant_with_warmup"]}),
        ("actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
         {"--actor.lr_scheduler": ["cosine"], "--actor.lr_warmup_ratio": ["0.0"]}),
        ("algorithm.rollout_correction.rollout_is=token",
         {"--is_correction_mode": ["clip"], "--is_correction_threshold": ["0", "2"]}),
        ("trainer.resume_mode=disable", {"--load_checkpoint": ["false"]}),
        ("trainer.logger=[console,swanlab] trainer.project_name=sums",
         {"--log_with": ["swanlab"], "--log_project": ["sums"], "--use_wandb": None}),
        ("actor_rollout_ref.actor.strategy=fsdp2 +trainer.nnodes=4",
         {"--zero_stage": ["3"], "--actor_num_nodes": ["4"], "--vllm_num_engines": ["16"]}),
    ],
)  # fmt: skip
def test_verl_s_values(
    capsys: pytest.CaptureFixture[str], words: str, expected: dict[str, list[str] | None]
) -> None:
    made = translate(capsys, f"{VERL} {MODEL} {words}")
    assert {name: made.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"--lr_scheduler": ["linear"], "--init_kl_coef": ["0.0"], "--num_episodes": ["3"],
              "--reward": ["math-verify:1"], "--rollout_batch_size": ["1"]}),
        ("--num_processes 8 --gradient_accumulation_steps 4 --max_steps 400",
         {"--rollout_batch_size": ["32"], "--train_batch_size": ["256"], "--max_steps": ["400"]}),
        ("--num_processes 8 --steps_per_generation 4 --max_steps 400 --save_steps 100",
         {"--rollout_batch_size": ["32"], "--train_batch_size": ["64"], "--max_steps": ["100"],
          "--save_steps": ["25"]}),
        ("--beta 0.04", {"--init_kl_coef": ["0.04"], "--use_kl_loss": [], "--kl_estimator": ["k3"],
                         "--kl_unbiased_gradient": []}),
        ("--loss_type cispo --epsilon_high 5",
         {"--policy_loss_type": ["cispo"], "--eps_clip_low_high": ["1", "4"], "--eps_clip": None}),
        ("--loss_type sapo --sapo_temperature_pos 0.5",
         {"--policy_loss_type": ["sapo"], "--sapo_temperature_pos": ["0.5"]}),
        ("--loss_type grpo --importance_sampling_level sequence",
         {"--policy_loss_type": ["gspo"], "--loss_aggregation": ["sequence"]}),
        ("--loss_type dr_grpo --scale_rewards none --epsilon_high 0.28",
         {"--loss_aggregation": ["constant"], "--advantage_estimator": ["dr_grpo"],
          "--eps_clip_low_high": ["0.2", "0.28"]}),
        ("--use_vllm --vllm_importance_sampling_mode token_truncate",
         {"--rollout_engine": ["vllm"], "--is_correction_level": ["token"],
          "--is_correction_mode": ["clip"], "--is_correction_threshold": ["0", "3.0"]}),
        ("--use_peft --lora_target_modules q_proj, v_proj",
         {"--lora_rank": ["16"], "--target_modules": ["q_proj", "v_proj"]}),
        ("--accelerate_config zero2", {"--zero_stage": ["2"]}),
        ("--no_gradient_checkpointing", {"--gradient_checkpointing": None}),
        ("--warmup-steps 40 --max-steps 400", {"--lr_warmup_ratio": ["0.1"]}),
        ("--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr_rate\": 0.2}'",
         {"--lr_scheduler": ["cosine_with_min_lr"], "--min_lr_ratio": ["0.2"]}),
        ("--report_to tensorboard trackio mlflow --project sums",
         {"--use_tensorboard": ["tensorboard_log"], "--log_with": ["trackio", "mlflow"],
          "--log_project": ["sums"], "--use_wandb": None}),
        ("--report_to wandb mlflow --project sums",
         {"--wandb_project": ["huggingface"], "--log_project": None}),
        ("--push_to_hub --hub_model_id me/sums --hub_private_repo true",
         {"--hub_model_id": ["me/sums"], "--hub_private_repo": []}),
        ("--hub_model_id me/sums", {"--hub_model_id": None}),
        ("--learning_rate 1e-5 --lr_scheduler_type cosine_with_min_lr "
         "--lr_scheduler_kwargs '{\"min_lr\": 1e-6}'", {"--min_lr_ratio": ["0.1"]}),
    ],
)  # fmt: skip
def test_trl_s_values(
    capsys: pytest.CaptureFixture[str], words: str, expected: dict[str, list[str] | None]
) -> None:
    made = translate(capsys, f"{TRL} {words}")
    assert {name: made.get(name) for name in expected} == expected


def test_what_is_lost_from_trl_is_listed_without_its_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--shuffle_dataset false --report_to comet_ml --push_to_hub --hub_token hf_abc"
    code, _, err = run(capsys, "--", *TRL.split(), *words.split())
    assert code == 1
    assert "shuffle_dataset=false: prompts are always shuffled, by --seed" in err
    assert "no comet_ml here" in err
    assert "push_to_hub=true: give --hub_model_id OWNER/NAME" in err
    assert "hub_token=********: " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--generation_batch_size 32 --steps_per_generation 2",
         "generation_batch_size=32: TRL refuses it beside steps_per_generation: give one of both"),
        ("--reward_weights 1 2",
         "reward_weights=1 2: TRL needs a weight for each reward: 1, not 2"),
    ],
)  # fmt: skip
def test_what_trl_refuses_is_named(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    code, _, err = run(capsys, "--", *TRL.split(), *words.split())
    assert (code, said in err) == (1, True), err


def test_a_correction_that_is_off_is_not_said_to_lack_vllm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    off = "--use_vllm --vllm_importance_sampling_correction false"
    code, out, err = run(capsys, "--", *TRL.split(), *off.split())
    assert (code, "--is_correction_level" in out, "without vLLM" in err) == (0, False, False), err


@pytest.mark.parametrize(
    ("launch", "gpus", "said"),
    [
        ("accelerate launch --num_processes 8 -m", "8", ""),
        ("torchrun --nproc-per-node 8 -m", "8", ""),
        ("torchrun --nproc_per_node gpu -m", None, "nproc_per_node=gpu: the machine decides it"),
        ("torchrun --nproc-per-node=auto -m", None, "nproc_per_node=auto: the machine decides it"),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 -m", None, "nnodes=1:4: its value cannot be"),
    ],
)
def test_batches_are_not_those_of_one_process_where_the_number_is_not_known(
    capsys: pytest.CaptureFixture[str], launch: str, gpus: str | None, said: str
) -> None:
    words = ["trl.scripts.grpo", *TRL.split()[2:], "--per_device_train_batch_size", "4"]
    code, out, err = run(capsys, "--", *launch.split(), *words)
    made = flags(out)
    assert code == (0 if gpus else 1), err
    assert made.get("--actor_num_gpus_per_node") == ([gpus] if gpus else None)
    assert made.get("--train_batch_size") == (["32"] if gpus else None)
    assert said in err
    assert "processes: none are named" not in err
    assert "value cannot be read" not in err or "nnodes" in launch


def test_a_launcher_before_trl_s_script_gives_the_layout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = (
        "accelerate launch --config_file deepspeed_zero3.yaml --num_processes 16 --num_machines 2 "
        "--parallelism_config_sp_size 4 "
        "train_grpo.py --model_name_or_path m/m"
    )
    code, out, err = run(capsys, "--", *command.split())
    assert out.startswith("EXPECTED_WORKERS=1 rollcall up --")
    made = flags(out)
    assert made["--actor_num_nodes"] == ["2"]
    assert made["--actor_num_gpus_per_node"] == ["8"]
    assert made["--zero_stage"] == ["3"]
    assert made["--ring_attn_size"] == ["4"]
    assert "train_grpo.py: of what the script sets by itself, only constants" in err
    assert code == 1  # the data and the reward are in the script


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        ("--input_template 'Q: {}'", True),
        ("--input_template 'Q: {}' --apply_chat_template", False),
        ("--data.input_template 'Q: {}' --data.apply_chat_template", False),
    ],
)
def test_openrlhf_leaves_a_template_out_beside_the_chat_template(
    capsys: pytest.CaptureFixture[str], theirs: str, kept: bool
) -> None:
    command = f"python -m openrlhf.cli.train_ppo_ray {theirs}"
    assert any("input_template" in name for name in translate(capsys, command)) == kept
    _, _, err = run(capsys, "--", *shlex.split(command))
    assert ("they begin with BOS here" in err) == kept


@pytest.mark.parametrize("trl", ["/x/bin/trl", "trl", "$(which trl)"])
def test_trl_behind_a_launcher_is_its_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trl: str
) -> None:
    (tmp_path / "grpo.yaml").write_text("model_name_or_path: m/m\n")
    script = tmp_path / "run.sh"
    launch = "accelerate launch --num_processes 2 --config_file zero3.yaml"
    script.write_text(f"{launch} {trl} grpo --config {tmp_path}/grpo.yaml\n")
    _, out, err = run(capsys, str(script))
    assert flags(out)["--pretrain"] == ["m/m"], err
    assert flags(out)["--zero_stage"] == ["3"]
    assert "which trl" not in out + err


def test_openrlhf_s_older_flags(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--pretrain m/m --prompt_data o/d --reward gsm8k --enable_vllm_is_correction"
    assert translate(capsys, command)["--is_correction_mode"] == ["clip"]
    assert translate(capsys, f"{command} --use_icepop")["--is_correction_mode"] == ["mask"]
    code, _, err = run(capsys, "--", *command.split(), "--rolout_batch_size", "8", "--use_ms")
    assert code == 1
    assert "--rolout_batch_size: OpenRLHF has no such flag, as far as known: did you mean" in err
    assert "did you mean --rollout_batch_size?" in err
    assert "--use_ms: download the model first" in err


def test_variables_stay_for_the_shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(
        'python -m verl.trainer.main_ppo data.train_files="$HOME/a b/gsm8k.parquet"\n'
    )
    _, out, _ = run(capsys, str(script))
    assert '--prompt_data "${HOME}/a b/gsm8k.parquet"' in out
    code, out, _ = run(capsys, "--set", "HOME=/home/me", str(script))
    assert "--prompt_data '/home/me/a b/gsm8k.parquet'" in out
    assert code == 1


def test_the_command_is_what_our_parser_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gsm8k.jsonl").write_text("{}\n")
    data = f"data.train_files={tmp_path}/gsm8k.jsonl trainer.n_gpus_per_node=1"
    engine = "actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    made = translate(capsys, f"{VERL} {data} {MODEL} {engine}")
    words = [word for name, given in made.items() for word in (name, *given)]
    config = parse([*words, "--run_dir", str(tmp_path)])
    assert config.samples_per_step == 1024
    assert config.updates_per_step == 4


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json", "--", *VERL.split(), "data.shuffle=False")
    row = json.loads(out)
    assert code == 1
    assert row["lost"] == ["data.shuffle=False: prompts are always shuffled, by --seed"]
    assert [one.partition(":")[0] for one in row["needed"]] == ["--pretrain"]


@pytest.mark.parametrize(
    ("words", "key", "switch"),
    [
        ("algorithm.kl_ctrl.kl_coef=0.001", "algorithm.kl_ctrl.kl_coef", "use_kl_in_reward"),
        ("actor_rollout_ref.actor.kl_loss_coef=0.01 actor_rollout_ref.actor.use_kl_loss=False",
         "actor.kl_loss_coef", "actor_rollout_ref.actor.use_kl_loss"),
        ("algorithm.kl_ctrl.kl_coef=0.2 actor_rollout_ref.actor.use_kl_loss=True",
         "algorithm.kl_ctrl.kl_coef", "use_kl_in_reward"),
        ("actor_rollout_ref.rollout.val_kwargs.temperature=0.7",
         "val_kwargs.temperature", "val_kwargs.do_sample"),
    ],
)  # fmt: skip
def test_a_value_that_verl_does_not_read_is_said_to_have_no_effect_there(
    capsys: pytest.CaptureFixture[str], words: str, key: str, switch: str
) -> None:
    _, _, err = run(capsys, "--", *VERL.split(), MODEL, *words.split())
    (line,) = [one for one in err.splitlines() if "without effect in verl unless" in one]
    assert f"{key}=" in line
    assert line.endswith(f"{switch} is on")
    assert "without effect in verl" not in run(capsys, "--", *VERL.split(), MODEL)[2]


def test_a_kl_in_loss_and_reward_is_named_also_with_its_default_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = ("actor_rollout_ref.actor.use_kl_loss=True", "algorithm.use_kl_in_reward=True")
    code, _, err = run(capsys, "--", *VERL.split(), MODEL, *both)
    assert (code, f"{both[0]}: the KL is in the loss or in the reward, not" in err) == (1, True)


def test_of_two_commands_in_a_script_one_is_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(f"{VERL}\npython -m openrlhf.cli.train_ppo_ray --pretrain a/b\n")
    assert run(capsys, str(script))[::2] == (
        64,
        "rollcall translate: the script has 2 commands (verl.trainer.main_ppo, "
        "openrlhf.cli.train_ppo_ray): choose one, as in --number 1\n",
    )
    assert flags(run(capsys, "--number", "2", str(script))[1])["--pretrain"] == ["a/b"]
    assert run(capsys, "--number", "3", str(script))[::2] == (
        64,
        "rollcall translate: --number 3: the script has the commands 1 to 2\n",
    )


def test_the_help_says_the_exit_codes_and_the_command_is_rollcalls() -> None:
    rollcall = Path(sys.executable).with_name("rollcall")
    done = subprocess.run(
        [rollcall, "translate", "--help"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1   something has no counterpart, or is still to give" in done.stdout
    done = subprocess.run(
        [rollcall, "translate", "-"],
        input=f"{VERL} {MODEL}",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("EXPECTED_WORKERS=0 rollcall up -- --pretrain")


def test_several_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    verl = f"python3 -m verl.trainer.main_ppo {MODEL}"
    files = "\"data.train_files=['a/gsm8k.parquet', 'b/gsm8k.parquet']\""
    made = translate(capsys, f"{verl} {files} data.val_files=[c.parquet,d.json]")
    assert made["--prompt_data"] == ["a/gsm8k.parquet,b/gsm8k.parquet"]
    assert made["--eval_dataset"] == ["c.parquet,d.json"]
    assert made["--remote_rm_url"] == ["gsm8k"]
    for other in ("/home/mathias/code.parquet", "/data/tranquil/train.parquet"):
        _, out, _ = run(capsys, "--", *verl.split(), f"data.train_files={other}")
        assert "--remote_rm_url" not in flags(out)
    two_rewards = "data.train_files=[a/gsm8k.parquet,b/math.parquet]"
    code, out, err = run(capsys, "--", *verl.split(), two_rewards)
    assert flags(out)["--prompt_data"] == ["a/gsm8k.parquet,b/math.parquet"]
    assert code == 1
    assert "verl takes the reward from each row's data_source: give --remote_rm_url" in err
    theirs = "--prompt_data o/a,o/b --prompt_data_probs 0.7,0.3 --prompt_split hard --eval_split t"
    made = translate(capsys, f"python -m openrlhf.cli.train_ppo_ray {theirs}")
    assert made["--prompt_data"] == ["o/a,o/b"]
    assert made["--prompt_data_probs"] == ["0.7,0.3"]
    assert (made["--prompt_split"], made["--eval_split"]) == (["hard"], ["t"])
    made = translate(capsys, f"{TRL} --dataset_config main --dataset_train_split hard")
    assert (made["--prompt_data"], made["--prompt_split"]) == (["o/d:main"], ["hard"])


def test_estimators_have_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gdpo", "remax", "opo"):
        verl = f"data.train_files=gsm8k.parquet {MODEL} algorithm.adv_estimator={name}"
        assert translate(capsys, verl)["--advantage_estimator"] == [name]
    parted = TRL.removeprefix("trl grpo ") + " --multi_objective_aggregation normalize_then_sum"
    assert translate(capsys, parted)["--advantage_estimator"] == ["gdpo"]


def test_a_reward_function_that_no_import_finds_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "gspo.py"
    script.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "def outer(completions, **_): return [1.0]\n"
        "if __name__ == '__main__':\n"
        "    def inner(completions, **_): return [1.0]\n"
        "    GRPOTrainer(model='m/m', args=GRPOConfig(), reward_funcs=[outer, inner]).train()\n"
    )
    _, out, err = run(capsys, str(script))
    assert (
        "No import finds inner, below that line or in a function: move it to the top" in out + err
    )


def test_variables_that_only_guides_or_the_script_need_are_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(
        "export VLLM_ATTENTION_BACKEND=XFORMERS NCCL_DEBUG=INFO\n"
        "export DATA_DIR=/data HF_HOME=/hub A=${A:-1}\n"
        f"{VERL} {MODEL} data.train_files=$DATA_DIR/a data.val_files=${{HF_HOME}}/b\n"
    )
    _, _, err = run(capsys, str(script))
    told = "set in the script; give every node those that a program reads"
    assert f"NCCL_DEBUG, HF_HOME, A: {told}" in err
    assert "DATA_DIR" not in err
    assert "VLLM_ATTENTION_BACKEND: leave it out" in err
