"""Commands in the styles of six repositories: which recipe takes them, and what arrives.

Each script is of our own. bash gives its words; the parsers of the released packages say which
values arrive. None is refused wrongly, and no value is another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes import interpreters
from entrypoint.job.recipes.base import load
from entrypoint.job.recipes.interpreters import package_in
from entrypoint.job.recipes.openrlhf import release
from entrypoint.job.recipes.recognise import recipe_of
from entrypoint.job.recipes.search_r1 import recipe as search_r1
from entrypoint.job.recipes.verl import recipe as verl
from tests.support.bash_words import words_of
from tests.support.openrlhf_parser import parsed, value
from tests.support.repository import ROOT


@dataclass(frozen=True)
class Case:
    recipe: str
    script: str
    refused: str = ""
    """A part of the reason; "" if the command is right."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the program must get."""


PPO = "python3 -m openrlhf.cli.train_ppo_ray"
SUBMIT = "ray job submit --address=http://127.0.0.1:8265 --runtime-env-json='{}' --"
VERL = "python3 -m verl.trainer.main_ppo"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OPENRLHF = [
    Case("openrlhf", f"""
MODEL=/models/llama; ROLLOUT=${{ROLLOUT:-1024}}
{SUBMIT} {PPO} --actor.model_name_or_path $MODEL --reward.remote_url http://r:5000/score \\
   --data.prompt_dataset /data/prompts --rollout.batch_size $ROLLOUT --ds.zero_stage 3 \\
   --actor.adam.lr 5e-7 --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8
""", values={"rollout.batch_size": 1024, "actor.adam.lr": 5e-7, "ds.zero_stage": 3}),
    Case("openrlhf", f"""
args=(--pretrain /models/m --remote_rm_url /rm.py --prompt_data d --bf16 --flash_attn)
args+=(--train_batch_size $((16 * 8)) --adam_betas 0.9 0.98 --use_kl_loss)
{PPO} "${{args[@]}}" > run.log 2>&1
""", values={"train.batch_size": 128, "actor.adam.betas": [0.9, 0.98], "ds.param_dtype": "bf16",
             "algo.kl.use_loss": True}),
    Case("openrlhf", f"{PPO} --actor.model_name_or_path m --data.prompt_dataset d "
         "--reward.remote_url u --logger.wandb.run_name=--night-1 --data.input_template ''",
         values={"logger.wandb.run_name": "--night-1"}),
    Case("openrlhf", f"{PPO} --actor.model_name_or_path m --algo.advantage.is_correction_enable",
         "give --algo.advantage.is_correction_level token"),
    Case("openrlhf", f"{PPO} --actor.model_name_or_path m --rollout.batchsize 8",
         "did you mean --rollout.batch_size?"),
    Case("openrlhf", f"{PPO} --pretrain m --ptx_coef 0.05", "leave it out"),
    Case("openrlhf", f"{PPO} --pretrain m --zero_stage three", "invalid int value"),
    Case("openrlhf", "deepspeed --module openrlhf.cli.train_kto --pretrain m",
         "has no openrlhf.cli.train_kto"),
    Case("openrlhf", "deepspeed --module openrlhf.cli.train_sft --max_len 2048 --dataset d "
         "--pretrain m --micro_train_batch_size 2 --l2 0.1"),
    Case("openrlhf", "torchrun --nproc-per-node 8 -m openrlhf.cli.train_dpo --data.dataset d "
         "--model.model_name_or_path m --model.beta 0.2"),
]  # fmt: skip
VERLS = [
    Case("verl", f"""
device=${{DEVICE:-gpu}}; n=16
if [ "$device" = npu ]; then n=1; fi
{VERL} algorithm.adv_estimator=grpo data.train_files="['/d/a.parquet','/d/b.parquet']" \\
    data.train_batch_size=$n trainer.n_gpus_per_node=8 trainer.nnodes=2 \\
    trainer.logger='["console","wandb"]' trainer.resume_mode=auto trainer.resume_from_path=ckpt/ $@
""", values={"data.train_batch_size": "16", "data.train_files": "['/d/a.parquet','/d/b.parquet']",
             "trainer.logger": '["console","wandb"]', "trainer.nnodes": "2"}),
    Case("verl", f"uv run --frozen {VERL} +{ROLLOUT}.engine_kwargs.vllm.seed=3 {ROLLOUT}.n=5",
         values={f"+{ROLLOUT}.engine_kwargs.vllm.seed": "3", f"{ROLLOUT}.n": "5"}),
    Case("verl", f"{VERL} --config-name=ppo_megatron_trainer.yaml "
         f"{ACTOR}.megatron.param_offload=True",
         values={f"{ACTOR}.megatron.param_offload": "True"}),
    Case("verl", "python3 -m verl.experimental.fully_async_policy.fully_async_main "
         "rollout.nnodes=1 trainer.nnodes=1 async_training.staleness_threshold=0.5",
         values={"rollout.nnodes": "1", "async_training.staleness_threshold": "0.5"}),
    Case("verl", f"{VERL} trainer.experiment_name=--x +trainer.val_only=True 2>&1",
         "+trainer.val_only: verl has this key"),
    Case("verl", f"{VERL} data.train_batchsize=8", "did you mean data.train_batch_size?"),
    Case("verl", f"{VERL} trainer.resume_mode=resume_path", "needs trainer.resume_from_path"),
    Case("verl", "python3 -m recipe.dapo.main_dapo data.train_batch_size=8", "finds no recipe"),
    Case("verl", f"{VERL} ~/run.sh", "is not a key=value"),
]  # fmt: skip
SEARCH = f"{VERL} max_turns=4 retriever.url=http://127.0.0.1:8000/retrieve"
SEARCH_R1S = [
    Case("search-r1", f"""
export DATA=data/nq
PYTHONUNBUFFERED=1 {SEARCH} data.train_files=$DATA/train.parquet {ROLLOUT}.n_agent=5 \\
    +trainer.val_only=false trainer.total_training_steps=305 retriever.topk=3
""", values={"data.train_files": "data/nq/train.parquet", f"{ROLLOUT}.n_agent": "5"}),
    Case("search-r1", f"{SEARCH} +trainer.val_only=true +trainer.val_before_train=true",
         values={"+trainer.val_only": "true"}),
    Case("search-r1", f"{SEARCH} trainer.resume_mode=auto", "has no such key"),
    Case("search-r1", f"{SEARCH} max_turn=3", "did you mean max_turns?"),
]  # fmt: skip
TRLS = [
    Case("trl", "trl sft --model_name_or_path m --dataset_name d --learning-rate 2.0e-5"),
    Case("trl", "trl grpo --accelerate_config zero3 --num_processes 8 --model_name_or_path m"),
    Case("trl", "trl sft --model_name_or_path m --max_seq_len 9", "not a flag of the installed"),
    Case("trl", "trl ppo_v9 --model_name_or_path m", "trl has no training script ppo_v9"),
    Case("trl", "trl sft --config none.yaml --model_name_or_path m", "none.yaml is not a file"),
]  # fmt: skip
TORCHRUNS = [
    Case("torchrun", "torchrun --nproc-per-node=8 --nnodes=$((1 + 1)) train.py --lr 1e-4"),
    Case("torchrun", "accelerate launch --num_processes 16 --num_machines 2 train.py --out /o"),
    Case("torchrun", "deepspeed --num_gpus 8 train.py --deepspeed"),
    Case("torchrun", "deepspeed train.py --deepspeed ds.json", "ds.json is not a file"),
    Case("torchrun", "torchrun --nproc-per-node eight train.py", "not a number of processes"),
    Case("torchrun", "torchrun --nproc-per-node 8 absent.py", "absent.py is not a file"),
]  # fmt: skip
OTHERS = [
    Case("command", "python3 train.py --steps 10", values={"argv": ["train.py", "--steps", "10"]}),
    Case("command", 'python3 -m skyrl.main trainer.logger="wandb" generator.n=5',
         values={"argv": ["-m", "skyrl.main", "trainer.logger=wandb", "generator.n=5"]}),
    Case("command", "python3 -m verl.trainer.main_eval data.path=/a",
         values={"argv": ["-m", "verl.trainer.main_eval", "data.path=/a"]}),
]  # fmt: skip
CASES = [*OPENRLHF, *VERLS, *SEARCH_R1S, *TRLS, *TORCHRUNS, *OTHERS]


SEARCH_R1_KEYS = """
data: {train_files: a}
actor_rollout_ref: {rollout: {n: 1, n_agent: 1}}
retriever: {url: u, topk: 3}
trainer: {nnodes: 1, n_gpus_per_node: 8, save_freq: -1, logger: [console], total_training_steps: 1,
  default_local_dir: a, default_hdfs_dir: b}
max_turns: 10
do_search: true
"""
MAIN = '@hydra.main(config_path="config", config_name="ppo_trainer")\ndef main(config): ...\n'


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Where Rollcall's own Python has the packages: an image with all of them."""
    known = {"openrlhf": ROOT / ".oracles/openrlhf", "verl": ROOT / ".oracles/verl"}

    def package(python: str, name: str) -> Path | None:
        return known.get(name) or package_in(python, name)

    monkeypatch.setattr(interpreters, "package_in", package)
    monkeypatch.setattr(release, "version_in", lambda *_: "0.11.2")
    for module in (verl, search_r1):
        monkeypatch.setattr(module, "has_module", lambda *_: True)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return known


def search_r1_copy(directory: Path) -> Path:
    """Return a copy of verl with the keys that Search-R1's has."""
    trainer = directory / "verl/trainer"
    (trainer / "config").mkdir(parents=True)
    (trainer / "main_ppo.py").write_text(MAIN)
    (trainer / "config/ppo_trainer.yaml").write_text(SEARCH_R1_KEYS)
    return trainer.parent


def arrived(recipe: str, argv: Sequence[str]) -> Callable[[str], Any]:
    """Return what tells a value that the program gets."""
    if recipe == "openrlhf":
        row = parsed("train_ppo_ray", argv[3:])
        return lambda key: value(row, key)
    if recipe in ("verl", "search-r1"):
        overrides = dict(word.split("=", 1) for word in argv[3:] if "=" in word)
        return overrides.__getitem__
    return lambda _: list(argv[1:])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe}: {case.script[-60:]}")
def test_a_command_is_taken_or_refused_rightly_and_its_values_arrive(
    case: Case, tmp_path: Path, packages: dict[str, Path]
) -> None:
    if case.recipe == "search-r1":
        packages["verl"] = search_r1_copy(tmp_path)
    (words, *_) = words_of(case.script, tmp_path)
    assert recipe_of(words) == case.recipe
    settings = read_settings(
        {"ROLLCALL_RECIPE": case.recipe, "ROLLCALL_RUN_DIR": str(tmp_path / "run")}, words
    )
    recipe = load(case.recipe)
    found = recipe.faults(settings)
    assert bool(found) == bool(case.refused), found
    assert case.refused in " ".join(found)
    if case.values:
        get = arrived(case.recipe, recipe.command(settings, None).argv)
        wanted = dict(case.values)
        argv = wanted.pop("argv", None)
        assert argv is None or get("argv") == argv
        assert {key: get(key) for key in wanted} == wanted


def test_each_style_has_commands_that_are_right_and_some_that_are_not() -> None:
    right = Counter(case.recipe for case in CASES if not case.refused)
    wrong = Counter(case.recipe for case in CASES if case.refused)
    assert min(right.values()) >= 2
    assert {*right} - {"command"} == {*wrong}
