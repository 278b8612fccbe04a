"""The recipe `openrlhf`: the guides' commands as they are typed, and what OpenRLHF gets."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from entrypoint.commands import cli
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes import interpreters
from entrypoint.job.recipes.openrlhf import release
from entrypoint.job.recipes.openrlhf.recipe import RECIPE
from tests.support.openrlhf_parser import PACKAGE, parsed, value
from tests.support.openrlhf_recipe import RANKS, SHORT, flags, settings
from tests.support.recipe_commands import nodes
from tests.support.repository import DATA, ROOT

GUIDES = {one["name"]: one for one in tomllib.loads((DATA / "guides.toml").read_text())["command"]}
KEY = "0123456789abcdef" * 2 + "01234567"
"""In place of a guide's placeholder, which is not a key."""
SUBMIT = (
    "ray job submit --address=http://127.0.0.1:8265 "
    """--runtime-env-json='{"working_dir": "/openrlhf"}' -- python3 -m openrlhf.cli.train_ppo_ray"""
)
SLURM = "ray job submit --address=http://localhost:8265 -- python3 openrlhf.cli.train_ppo_ray"
TORCHRUN = (
    "torchrun torchrun --nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr gn0 "
    "--master_port 9901 -m openrlhf.cli.train_dpo"
)


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's Python has this release."""
    monkeypatch.setattr(release, "version_in", lambda *_: "0.11.2")
    monkeypatch.setattr(interpreters, "package_in", lambda *_: PACKAGE)


def guide(run: Path, name: str, before: str, **environ: str) -> Settings:
    argv = re.sub(r"--use_wandb \S+", f"--use_wandb {KEY}", GUIDES[name]["argv"])
    words = f"{before} {argv} 2>&1 | tee run.log"
    return settings(run, *shlex.split(words), **environ)


def test_the_guides_command_of_four_nodes_is_accepted_as_it_is_typed(tmp_path: Path) -> None:
    given = guide(tmp_path, "four nodes, 70B", SUBMIT)
    assert RECIPE.faults(given) == []
    placed = RECIPE.placed(given, nodes(8, 8, 8, 8))
    assert placed.lacking == ()
    assert "actor and reference share 8 GPUs (--train.colocate_actor_ref)" in placed.warnings[-1]
    expected = shlex.split("""
        --ref.num_nodes 1 --ref.num_gpus_per_node 8
        --reward.num_nodes 1 --reward.num_gpus_per_node 8
        --critic.num_nodes 1 --critic.num_gpus_per_node 8
        --actor.num_nodes 1 --actor.num_gpus_per_node 8
        --vllm.num_engines 2 --vllm.tensor_parallel_size 4
        --actor.model_name_or_path meta-llama/Llama-2-70b-hf
        --reward.model_name_or_path ./reward-model-70b
        --ckpt.save_steps 100 --logger.logging_steps 1
        --train.micro_batch_size 2 --train.batch_size 128
        --rollout.micro_batch_size 4 --rollout.batch_size 1024
        --train.max_epochs 1 --ds.zero_stage 3 --ds.param_dtype bf16
        --actor.adam.lr 5e-7 --critic.adam.lr 9e-6
        --algo.kl.init_coef 0.01 --reward.normalize_enable
        --actor.gradient_checkpointing_enable --ds.attn_implementation flash_attention_2
        --train.colocate_actor_ref
    """)
    added = [
        *("--ckpt.path", f"{tmp_path}/checkpoints/llama-70b-ppo"),
        *("--ckpt.output_dir", f"{tmp_path}/output/llama-70b-ppo"),
        *("--data.max_len", "2048", "--rollout.max_new_tokens", "1024"),
    ]
    assert flags(placed.settings) == [*expected, *added]
    warnings = "\n".join(recipes.warnings(RECIPE, placed))
    assert "tee run.log: no effect here; the log is in RUN/logs, and a runtime environ" in warnings
    assert f"--ckpt_path ./checkpoints/llama-70b-ppo is relative: it is {tmp_path}/ch" in warnings
    assert "and 28 more: spelt as before 0.11, and passed on as OpenRLHF 0.11" in warnings
    assert "--data.prompt_dataset is missing: OpenRLHF cannot start without prompts" in warnings


def test_openrlhfs_own_parser_takes_every_guide_as_the_guide_means_it(tmp_path: Path) -> None:
    given = guide(tmp_path, "four nodes, 70B", SUBMIT)
    row = parsed("train_ppo_ray", flags(RECIPE.placed(given, nodes(8, 8, 8, 8)).settings))
    meant = {
        **{f"{model}.num_nodes": 1 for model in ("actor", "ref", "critic", "reward")},
        **{f"{model}.num_gpus_per_node": 8 for model in ("actor", "ref", "critic", "reward")},
        "vllm.num_engines": 2,
        "vllm.tensor_parallel_size": 4,
        "actor.model_name_or_path": "meta-llama/Llama-2-70b-hf",
        "critic.model_name_or_path": "./reward-model-70b",
        "ckpt.save_steps": 100,
        "ckpt.load_enable": False,
        "rollout.batch_size": 1024,
        "train.batch_size": 128,
        "actor.adam.lr": 5e-7,
        "critic.adam.lr": 9e-6,
        "ds.param_dtype": "bf16",
        "ds.zero_stage": 3,
        "data.max_len": 2048,
        "rollout.max_new_tokens": 1024,
        "reward.normalize_enable": True,
        "actor.gradient_checkpointing_enable": True,
        "train.colocate_actor_ref": True,
    }
    assert {key: value(row, key) for key in meant} == meant
    for name in ("eight GPUs for each of two nodes a model", "Slurm, PPO"):
        given = guide(tmp_path, name, SLURM)
        assert RECIPE.faults(given) == []
        parsed("train_ppo_ray", flags(RECIPE.placed(given, nodes(*[8] * 10)).settings))


def test_the_slurm_guides_command_lacks_the_m_of_python(tmp_path: Path) -> None:
    given = guide(tmp_path, "Slurm, PPO", SLURM)
    placed = RECIPE.placed(given, nodes(8, 8))
    assert (placed.lacking, placed.settings) == ((), given)
    words = flags(given)
    assert words[words.index("--ckpt.output_dir") + 1].startswith("/openrlhf/examples/"), "as typed"
    assert words[-8:] == [
        *("--ckpt.path", f"{tmp_path}/openrlhf", "--ckpt.save_steps", "20"),
        *("--data.max_len", "2048", "--rollout.max_new_tokens", "1024"),
    ]


def test_the_slurm_guides_dpo_runs_on_all_nodes(tmp_path: Path) -> None:
    given = guide(tmp_path, "Slurm, DPO", TORCHRUN)
    assert RECIPE.faults(given) == []
    assert RECIPE.placed(given, nodes(8, 8)).lacking == ()
    argv = RECIPE.command(given, None).argv
    launcher = (
        "torchrun --nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr gn0 --master_port 9901"
    )
    expected = shlex.split("""
        --ckpt.save_steps -1 --logger.logging_steps 1 --eval.steps -1
        --train.batch_size 256 --train.micro_batch_size 1
        --model.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture
        --ds.param_dtype bf16 --train.max_epochs 1 --data.max_len 8192 --ds.zero_stage 3
        --adam.lr 9e-6 --model.beta 0.1
        --data.dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku
        --data.apply_chat_template --data.chosen_key chosen --data.rejected_key rejected
        --ds.packing_samples --ds.attn_implementation flash_attention_2
        --model.gradient_checkpointing_enable --logger.wandb.key yes
    """)
    added = [
        *("--ckpt.path", f"{tmp_path}/openrlhf"),
        *("--ckpt.output_dir", f"{tmp_path}/checkpoint/llama3-8b-dpo"),
    ]
    module = ("-m", "openrlhf.cli.train_dpo")
    assert argv == (*RANKS, *launcher.split(), *module, *expected, *added)
    row = parsed("train_dpo", argv[argv.index("openrlhf.cli.train_dpo") + 1 :])
    assert value(row, "ref.model_name_or_path") == "OpenRLHF/Llama-3-8b-sft-mixture"
    warnings = "\n".join(RECIPE.warnings(given))
    assert "torchrun --nnodes 2, --node_rank 1, --master_addr gn0" in warnings
    assert "--save_steps -1: without checkpoints, each attempt begins at step 1" in warnings
    (lacking,) = RECIPE.placed(given, nodes(8, 4)).lacking
    assert lacking == "gn1 has 4 GPUs, and the job starts 8 processes on each node"


def test_the_key_of_wandb_is_in_a_variable_and_not_on_the_command_line(tmp_path: Path) -> None:
    given = guide(tmp_path, "Slurm, PPO", SLURM)
    assert given.wandb_api_key is not None
    assert given.wandb_api_key.reveal() == KEY
    assert KEY not in " ".join(flags(given))
    words = flags(settings(tmp_path, *SHORT, WANDB_API_KEY="k" * 40))
    assert words[words.index("--logger.wandb.key") + 1] == "yes"


def test_the_argv_of_the_pages_example(tmp_path: Path) -> None:
    page = (ROOT / "docs/recipes/openrlhf.md").read_text()
    block = re.search(r"```sh\n# on the head\n(docker run .+?)\n\n", page, re.DOTALL)
    assert block
    words = shlex.split(block[1].replace("\\\n", " "))
    job = words[words.index("rollcall:cuda") + 1 :]
    assert cli.parse(job, recipe_takes_command=True) == cli.Invocation("up", tuple(job))
    given = settings(tmp_path, *job)
    assert RECIPE.faults(given) == []
    placed = RECIPE.placed(given, nodes(8, 8, 8))
    assert placed.lacking == ()
    assert flags(placed.settings) == [
        *("--actor.model_name_or_path", "Qwen/Qwen2.5-7B-Instruct"),
        *("--data.prompt_dataset", "/checkpoints/gsm8k/train.jsonl"),
        *("--data.input_key", "question", "--data.label_key", "answer"),
        *("--data.apply_chat_template", "--reward.remote_url", "/checkpoints/reward.py"),
        *("--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "8"),
        *("--vllm.tensor_parallel_size", "2", "--train.colocate_all"),
        *("--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.gpu_memory_utilization", "0.5"),
        *("--actor.num_nodes", "3", "--actor.num_gpus_per_node", "8"),
        *("--ref.num_nodes", "3", "--ref.num_gpus_per_node", "8", "--vllm.num_engines", "12"),
        *("--ckpt.path", f"{tmp_path}/openrlhf", "--ckpt.output_dir", f"{tmp_path}/hf"),
        *("--ckpt.save_steps", "20"),
    ]
    parsed("train_ppo_ray", flags(placed.settings))
