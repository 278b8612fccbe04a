"""What the installed verl lacks of a command, and how many GPUs a job of several parts takes.

What Hydra refuses was found by Hydra 1.3.8 itself, on the configuration of verl 0.9.1.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes.base import Recipe
from entrypoint.job.recipes.search_r1 import recipe as search_r1
from entrypoint.job.recipes.verl.recipe import RECIPE
from tests.support.interpreters import python_beside
from tests.support.recipe_commands import nodes
from tests.support.repository import ROOT

MAIN = "verl.trainer.main_ppo"
ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
ONE_STEP = "verl.experimental.one_step_off_policy.main_ppo"
SEPARATE = f"{MAIN} trainer.v1.trainer_mode=separate_async"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has verl 0.9.1."""
    directory = tmp_path_factory.mktemp("environment")
    return str(python_beside(ROOT / ".oracles", directory / "python3"))


def faults(run: Path, python: str, words: str, recipe: Recipe = RECIPE, **more: str) -> list[str]:
    name = "verl" if recipe is RECIPE else "search-r1"
    given = {"ROLLCALL_RECIPE": name, "ROLLCALL_RUN_DIR": str(run), **more}
    return [*recipe.faults(read_settings(given, [python, "-m", *words.split()]))]


@pytest.mark.parametrize(
    "words",
    [
        f"{MAIN} data.train_batch_size=8 trainer.logger=['console','wandb']",
        f"{MAIN} +trainer.a_key_of_mine=1 ++trainer.nnodes=2 ~trainer.total_training_steps=null",
        f"{MAIN} +actor_rollout_ref.model.override_config.attn_implementation=eager",
        f"{MAIN} {ROLLOUT}.engine_kwargs.vllm={{a:1}} +{ROLLOUT}.engine_kwargs.vllm.b=1",
        f"{MAIN} +trainer.total_training_steps=5",
        f"{MAIN} trainer.resume_mode=auto trainer.resume_from_path=checkpoints/",
        f"{MAIN} trainer.resume_mode=disable trainer.resume_from_path=checkpoints/",
        f"{MAIN} --config-name=ppo_megatron_trainer.yaml "
        "actor_rollout_ref.actor.megatron.param_offload=True",
        f"{MAIN} model_engine=megatron actor_rollout_ref.actor.megatron.param_offload=True",
        f"{MAIN} --config-path=pkg://mine --config-name=mine anything.at=all",
        f"{MAIN} actor@actor_rollout_ref.actor=megatron_actor actor_rollout_ref.actor.megatron.a=1",
        f"{ASYNC} rollout.nnodes=1 async_training.staleness_threshold=0.5 trainer.nnodes=1",
        f"{ONE_STEP} rollout.nnodes=1 {ROLLOUT}.free_cache_engine=False",
    ],
)
def test_a_command_that_hydra_takes_is_accepted(tmp_path: Path, python: str, words: str) -> None:
    assert faults(tmp_path, python, words) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            f"{MAIN} data.train_batchsize=8",
            "data.train_batchsize is not a key of this verl: did you mean data.train_batch_size?",
        ),
        (
            f"{MAIN} trainer.zz=1",
            "trainer.zz is not a key of this verl: leave it out, or give +trainer.zz to add it",
        ),
        (
            f"{MAIN} actor_rollout_ref.actor.megatron.param_offload=True",
            "is not a key of this verl",
        ),
        (f"{MAIN} actor_rollout_ref.model.override_config.a=1", "is not a key of this verl"),
        (f"{MAIN} data.train_files.a=1", "data.train_files.a is not a key of this verl"),
        (f"{MAIN} ~trainer.zz", ""),
        (f"{MAIN} +trainer.nnodes=2", "+trainer.nnodes: verl has this key, and Hydra does not"),
        (f"{ASYNC} rollout.total_epochs=10", "rollout.total_epochs is not a key of this verl"),
        (f"{MAIN} rollout.nnodes=1", "rollout.nnodes is not a key of this verl"),
        ("verl.trainer.main_dapo a.b=1", "has no verl.trainer.main_dapo"),
        ("recipe.dapo.main_dapo a.b=1", "finds no recipe, and so no recipe.dapo.main_dapo"),
        (f"{MAIN} --config-path=/mine", "--config-path /mine is not a directory: give an abs"),
        (f"{MAIN} --config-path cfg -cn x", "/verl/trainer/cfg, is not a directory: give an abs"),
        (f"{MAIN} -cn ppo_trainr", "is not a file in "),
        (f"{MAIN} --config-name ppo_trainr.yaml", "trainer/config: did you mean ppo_trainer.yaml?"),
        (f"{MAIN} --config-dir mine -cn ppo_trainer", "--config-dir mine, which is "),
    ],
)
def test_what_hydra_refuses_is_named_before_anything_starts(
    tmp_path: Path, python: str, words: str, fault: str
) -> None:
    found = faults(tmp_path, python, words)
    assert [fault in one for one in found] == [True] * len(found)
    assert bool(found) == bool(fault)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A directory with configurations of one's own."""
    config = ROOT / ".oracles/verl/trainer/config"
    (tmp_path / "mine.yaml").write_text(
        f"hydra: {{searchpath: ['file://{config}']}}\ndefaults: [ppo_trainer, _self_]\n"
        "data: {mykey: 1}\n"
    )
    (tmp_path / "part.yaml").write_text("defaults: [{actor: dp_actor}, _self_]\n")
    (tmp_path / "copy").mkdir()
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / "part.yaml", tmp_path / "sub/mine.yaml")
    for name in ("_generated_ppo_trainer.yaml", "ppo_trainer.yaml"):  # a copy that was changed
        shutil.copy(config / name, tmp_path / "copy")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--config-path {} --config-name mine data.mykey=3 data.train_batch_size=3", ""),
        ("--config-path={} --config-name=mine.yaml data.mykeyy=3", "did you mean data.mykey?"),
        ("-cp {} -cn mine trainer.zz=2", "trainer.zz is not a key of this verl"),
        ("--config-dir {} --config-name mine data.mykey=3", ""),
        ("--config-dir={} --config-name=mine data.train_bs=3", "data.train_bs is not a key"),
        ("--config-dir {} data.train_bs=3", "data.train_bs is not a key"),
        ("--config-name ppo_megatron_trainer data.zz=1", "data.zz is not a key of this verl"),
        ("-cn ppo_megatron_trainer actor_rollout_ref.actor.megatron.param_offload=True", ""),
    ],
)
def test_keys_of_ones_own_configuration_are_judged(
    tmp_path: Path, python: str, mine: Path, words: str, fault: str
) -> None:
    found = faults(tmp_path, python, f"{MAIN} {words.format(mine)}")
    assert [fault in one for one in found] == [True] * bool(fault)


def test_a_directory_that_is_relative_to_the_users_own_is_named_whole(
    tmp_path: Path, python: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine)
    (fault,) = faults(tmp_path, python, f"{MAIN} --config-path sub --config-name mine")
    assert fault.endswith(f", is not a directory: give {mine / 'sub'}")


@pytest.mark.parametrize(
    "words",
    [
        "--config-path {} --config-name part data.zz=1",
        "--config-path {}/copy data.zz=1",
        "--config-path {} --config-name sub/mine data.zz=1",
        "--config-name ppo_trainer actor@actor_rollout_ref.actor=megatron_actor data.zz=1",
    ],
)
def test_a_configuration_that_is_not_judged_is_told(
    tmp_path: Path, python: str, mine: Path, words: str
) -> None:
    given = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(given, [python, "-m", MAIN, *words.format(mine).split()])
    assert list(RECIPE.faults(settings)) == []
    assert any("its keys are not checked before it starts" in x for x in RECIPE.warnings(settings))
    judged = read_settings(given, [python, "-m", MAIN, "trainer.nnodes=2"])
    assert not any("not checked" in one for one in RECIPE.warnings(judged))


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (
            "-cp {} -cn mine trainer.save_freq=5 trainer.nnodes=1 trainer.n_gpus_per_node=8",
            "trainer.default_local_dir, trainer.logger",
        ),
        ("--config-name ppo_trainer", ""),
    ],
)
def test_what_is_added_above_ones_own_file_is_a_warning(
    tmp_path: Path, python: str, mine: Path, words: str, added: str
) -> None:
    given = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    found = RECIPE.warnings(read_settings(given, [python, "-m", MAIN, *words.format(mine).split()]))
    told = [one for one in found if "count more than those of your file" in one]
    assert [one.startswith(f"Rollcall adds {added} to the") for one in told] == [True] * bool(added)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("actor_rollout_ref.actor.optm.lr=1e-6", "actor_rollout_ref.actor.optim.lr"),
        ("data.train_batchsize=8", "data.train_batch_size"),
        ("data.of_another_release=8", ""),
        ("actor_rollout_ref.rollout.m=8", ""),
        ("+data.train_batchsize=8", ""),
        ("data.train_batch_size=8", ""),
    ],
)
def test_a_likely_mistake_is_a_warning_only_where_verl_is_not_here(
    tmp_path: Path, python: str, word: str, near: str
) -> None:
    said = f"{word.partition('=')[0]} is not a key of verl 0.9: did you mean {near}?"
    given = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    for interpreter, expected in ((sys.executable, [said] if near else []), (python, [])):
        found = RECIPE.warnings(read_settings(given, [interpreter, "-m", MAIN, word]))
        assert [one for one in found if "is not a key" in one] == expected
    fork = {**given, "ROLLCALL_RECIPE": "search-r1"}
    found = search_r1.RECIPE.warnings(read_settings(fork, [sys.executable, "-m", MAIN, word]))
    assert any("is not a key of Search-R1" in one for one in found) == bool(near)


def test_a_verl_that_the_job_brings_is_not_judged_by_the_installed_one(
    tmp_path: Path, python: str
) -> None:
    for environment in ({"pip": ["verl"]}, {"env_vars": {"PYTHONPATH": "/other"}}):
        brought = json.dumps(environment)
        assert faults(tmp_path, python, f"{MAIN} a.b=1", ROLLCALL_RUNTIME_ENV=brought) == []
    place = tmp_path / "checkout"
    (place / "recipe/dapo").mkdir(parents=True)
    own = ROOT / ".oracles/verl/trainer"
    text = (own / "main_ppo.py").read_text()
    mine = text.replace('config_path="config"', f'config_path="{own}/config"')
    (place / "recipe/dapo/main_dapo.py").write_text(mine)
    brought = json.dumps({"working_dir": str(place)})
    words = "recipe.dapo.main_dapo trainer.nnodes=2 trainer.zz=1"
    (fault,) = faults(tmp_path, python, words, ROLLCALL_RUNTIME_ENV=brought)
    assert fault.startswith("trainer.zz is not a key of this verl")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("main_ppo.py", b"import hydra\ndef main(:\n"),
        ("main_ppo.py", b"# \xff\n"),
        ("main_ppo.py", b"\0"),
        ("config/ppo_trainer.yaml", b"trainer:\n\tnnodes: 1\n"),
        ("config/ppo_trainer.yaml", b"\xff\xfe: 1\n"),
        ("config/ppo_trainer.yaml", b"defaults: [ppo_trainer]\ntrainer: {}\n"),
        ("config/ppo_trainer.yaml", b"defaults: 5\ntrainer: {}\n"),
        ("config/ppo_trainer.yaml", b"trainer: &it\n  itself: *it\n"),
        ("config/ppo_trainer.yaml", b"1: 2\ntrainer: {}\n"),
    ],
)
def test_a_file_of_a_checkout_that_cannot_be_read_is_for_the_job_to_refuse(
    tmp_path: Path, python: str, file: str, content: bytes
) -> None:
    trainer = tmp_path / "checkout/verl/trainer"
    (trainer / "config").mkdir(parents=True)
    shutil.copy(ROOT / ".oracles/verl/trainer/main_ppo.py", trainer)
    (trainer / "config/ppo_trainer.yaml").write_text("trainer: {nnodes: 1}\n")
    brought = json.dumps({"working_dir": str(tmp_path / "checkout")})
    words = f"{MAIN} trainer.zz=1"
    found = faults(tmp_path, python, words, ROLLCALL_RUNTIME_ENV=brought)
    assert any(one.startswith("trainer.zz is not a key of this verl") for one in found)
    (trainer / file).write_bytes(content)
    found = faults(tmp_path, python, words, ROLLCALL_RUNTIME_ENV=brought)
    assert [one for one in found if "not a key of this verl" not in one] == []


def test_search_r1_s_copy_has_keys_of_its_own(tmp_path: Path) -> None:
    trainer = tmp_path / "site/verl/trainer"
    (trainer / "config").mkdir(parents=True)
    (tmp_path / "site/search_r1").mkdir()
    for package in (tmp_path / "site/search_r1", trainer.parent, trainer):
        (package / "__init__.py").touch()
    shutil.copy(ROOT / ".oracles/verl/trainer/main_ppo.py", trainer)
    (trainer / "config/ppo_trainer.yaml").write_text(
        "data: {train_files: a}\nactor_rollout_ref: {rollout: {n: 1, n_agent: 1}}\nmax_turns: 10\n"
        "trainer: {nnodes: 1, n_gpus_per_node: 8, save_freq: -1, logger: [console],\n"
        "  default_local_dir: a, default_hdfs_dir: b}\n"
        "do_search: true\nretriever: {url: u, topk: 3}\n"
    )
    python = str(python_beside(tmp_path / "site", tmp_path / "python3"))
    good = f"{MAIN} max_turns=2 {ROLLOUT}.n_agent=5 +trainer.val_only=1"
    assert faults(tmp_path, python, good, search_r1.RECIPE) == []
    (fault,) = faults(tmp_path, python, f"{good} max_turn=2", search_r1.RECIPE)
    assert fault == "max_turn is not a key of this verl: did you mean max_turns?"


@pytest.mark.parametrize(
    ("words", "gpus", "lacking"),
    [
        (f"{ASYNC} trainer.nnodes=2 rollout.nnodes=2", (8, 8, 8, 8), ""),
        (
            f"{ASYNC} trainer.nnodes=2 rollout.nnodes=2",
            (8, 8, 8),
            "verl wants 8 GPUs on each of 2 nodes, and 16 for rollout.nnodes × "
            "rollout.n_gpus_per_node; the nodes offer 8, 8, 8",
        ),
        (
            f"{ASYNC} trainer.nnodes=1 trainer.n_gpus_per_node=4 rollout.n_gpus_per_node=4",
            (8,),
            "",
        ),
        (f"{ONE_STEP} trainer.n_gpus_per_node=6 rollout.n_gpus_per_node=2", (8,), ""),
        (
            f"{ONE_STEP} trainer.nnodes=1 trainer.n_gpus_per_node=8",
            (8,),
            "and 8 for rollout.nnodes",
        ),
        (f"{ASYNC} trainer.nnodes=1 trainer.n_gpus_per_node=8 rollout.nnodes=0", (8,), ""),
        (f"{SEPARATE} trainer.nnodes=1 {ROLLOUT}.nnodes=1", (8, 8), ""),
        (f"{SEPARATE} trainer.nnodes=1 {ROLLOUT}.nnodes=2", (8, 8), "and 16 for actor_rollout_ref"),
        (f"{MAIN} trainer.nnodes=1 {ROLLOUT}.nnodes=2", (8,), ""),
        (
            f"{MAIN} trainer.nnodes=1 reward.reward_model.enable_resource_pool=True "
            "reward.reward_model.nnodes=1",
            (8,),
            "and 8 for reward.reward_model.nnodes",
        ),
        (f"{MAIN} trainer.nnodes=1 distillation.enabled=True distillation.nnodes=1", (8, 8), ""),
    ],
)
def test_the_gpus_of_rollouts_of_their_own_count(
    tmp_path: Path, words: str, gpus: tuple[int, ...], lacking: str
) -> None:
    given = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(given, ["python3", "-m", *words.split()])
    if "n_gpus_per_node" not in words:
        settings = read_settings(given, [*settings.job, "trainer.n_gpus_per_node=8"])
    found = "".join(RECIPE.placed(settings, nodes(*gpus)).lacking)
    assert lacking in found
    assert bool(found) == bool(lacking)


def test_what_is_left_open_of_the_trainer_leaves_the_rollouts_their_nodes(tmp_path: Path) -> None:
    given = {"ROLLCALL_RECIPE": "verl", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(given, ["python3", "-m", ASYNC, "rollout.nnodes=2"])
    placed = RECIPE.placed(settings, nodes(8, 8, 8, 8))
    assert placed.lacking == ()
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=8"} <= {*placed.settings.job}
