"""Each recipe of the registry is there, and answers what is asked of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.recipe_registry import BUILTIN, RECIPES, SUPERVISED
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.recognise import recipe_of


def given(recipe: str, job: str) -> Settings:
    return replace(read_settings({}), recipe=recipe, job=tuple(job.split()))


@pytest.mark.parametrize("name", RECIPES)
def test_a_line_of_the_registry_names_a_recipe(name: str) -> None:
    assert isinstance(recipes.load(name), recipes.Recipe)


def test_constants_of_the_registry_are_names_of_it() -> None:
    assert {BUILTIN, SUPERVISED} <= set(RECIPES)
    assert all(RECIPES[name].own_trainer for name in (BUILTIN, SUPERVISED))


@pytest.mark.parametrize("name", RECIPES)
def test_only_recipes_of_any_program_take_the_settings_of_any_program(name: str) -> None:
    runs_any = recipes.load(name).runs_any_program
    assert runs_any == (name in ("command", "torchrun"))


@pytest.mark.parametrize(
    ("recipe", "words", "model"),
    [
        ("builtin", "--pretrain /models/tiny/", "tiny"),
        ("openrlhf", "--actor.model_name_or_path=Qwen/Qwen2.5-7B", "Qwen2.5-7B"),
        ("trl", "trl sft --model_name_or_path Qwen/Qwen3-8B", "Qwen3-8B"),
        ("supervised", "sft --pretrain Qwen/Qwen3-8B", "Qwen3-8B"),
        ("verl", "actor_rollout_ref.model.path='Qwen/Qwen3-8B'", "Qwen3-8B"),
        ("search-r1", "actor_rollout_ref.model.path=Qwen/Qwen3-8B", "Qwen3-8B"),
        ("command", "python train.py --pretrain m", ""),
        ("builtin", "--pretrain", ""),
    ],
)
def test_a_job_names_its_model(recipe: str, words: str, model: str) -> None:
    assert recipes.load(recipe).model_name(words.split()) == model


@pytest.mark.parametrize(
    ("job", "flag"),
    [
        ("sft --save_path /models/sft", "--save_path"),
        ("--pretrain m --ckpt.output_dir=/models/ppo", "--ckpt.output_dir"),
        ("trl sft --output_dir out", "--output_dir"),
        ("A=b NCCL_DEBUG=INFO trl sft --output_dir out", "--output_dir"),
        ("/opt/x/bin/trl sft --output_dir=out", "--output_dir"),
        ("python3 -m openrlhf.cli.train_sft --save_path out", "--save_path"),
        ("python3 train.py --save_path out", ""),
        ("sft --pretrain m", ""),
    ],
)
def test_a_model_that_its_job_writes_elsewhere_is_not_in_the_run(job: str, flag: str) -> None:
    recipe = recipe_of(job.split())
    why = recipes.load(recipe).without_model(given(recipe, job))
    assert why == (f"{flag} puts the model elsewhere: leave that flag out" if flag else "")
