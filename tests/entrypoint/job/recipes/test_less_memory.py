"""After an end without memory, each recipe names flags that its own framework has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any

import pytest
import yaml
from trl import SFTConfig

from entrypoint.config.read import read_settings
from entrypoint.job.recipes import base as recipes
from entrypoint.run.failure_classes import FailureClass
from tests.support.openrlhf_parser import options
from tests.support.repository import ROOT
from trainer.config.config import Config
from trainer.config.schema import flags_of
from trainer.supervised.stages import SFTFlags

VERL = ROOT / ".oracles/verl/trainer/config/_generated_ppo_trainer.yaml"
NAME = re.compile(r"--([\w.]+)|\b(\w+(?:\.\w+)+)")


def advice(recipe: str, job: str) -> list[str]:
    """What is said of a GPU and of a node."""
    settings = read_settings({"ROLLCALL_RECIPE": recipe}, job.split())
    less = recipes.load(recipe).less_memory(settings)
    assert less.after(FailureClass.UNKNOWN) == ""
    return [less.after(FailureClass.GPU_OOM), less.after(FailureClass.HOST_OOM)]


def named(sentences: Collection[str]) -> set[str]:
    found = [NAME.findall(sentence) for sentence in sentences]
    return {flag or key for one in found for flag, key in one}


def keys(row: dict[str, Any], above: str = "") -> set[str]:
    """All keys of a configuration, as an override names them."""
    found: set[str] = set()
    for name, value in row.items():
        found |= {above + name} | (
            keys(value, f"{above}{name}.") if isinstance(value, dict) else set()
        )
    return found


@pytest.mark.parametrize(
    ("recipe", "job", "known"),
    [
        ("builtin", "--pretrain m", lambda: set(flags_of(Config))),
        ("supervised", "sft --pretrain m", lambda: set(flags_of(SFTFlags))),
        ("trl", "trl sft", lambda: {field.name for field in fields(SFTConfig)}),
        ("openrlhf", "--train.batch_size 8", lambda: options("train_ppo_ray")),
        ("openrlhf", "-m openrlhf.cli.train_sft --data.max_len 9", lambda: options("train_sft")),
        ("verl", "trainer.nnodes=2", lambda: keys(yaml.safe_load(VERL.read_text()))),
    ],
)
def test_the_flags_that_lower_the_need_for_memory_are_those_of_the_framework(
    recipe: str, job: str, known: Callable[[], Collection[str]]
) -> None:
    gpu, node = advice(recipe, job)
    assert node.startswith("give the node more memory (for /dev/shm too), or ")
    for sentence in (gpu, node):
        assert named([sentence])
        assert named([sentence]) <= set(known())


def test_search_r1_has_the_keys_of_its_guide() -> None:
    guide = (ROOT / "tests/data/guide_scripts/search-r1.sh").read_text()
    for key in named(advice("search-r1", "trainer.nnodes=2")):
        assert key in guide


def test_flags_of_older_releases_of_openrlhf_are_answered_with_flags_of_theirs() -> None:
    own = named(advice("openrlhf", "--train_batch_size 8"))
    assert own <= named(advice("builtin", "--pretrain m")), "whose names are those"


@pytest.mark.parametrize("recipe", ["command", "torchrun"])
def test_of_any_program_no_flag_is_known(recipe: str) -> None:
    assert not named(advice(recipe, "train"))
