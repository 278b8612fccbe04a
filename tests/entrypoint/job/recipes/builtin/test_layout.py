"""The head completes the job's layout by the nodes of each roll."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.resources import NodeResources
from entrypoint.job.recipes.builtin.recipe import RECIPE
from tests.support.builtin_settings import settings_of
from trainer.config.config import Config
from trainer.config.parse import parse

GRPO = ("--", "--advantage_estimator", "reinforce", "--pretrain", "Qwen/Qwen2.5-7B")


def offers(nodes: int, gpus: int = 8, memory: int = 80 * 10**9) -> list[NodeResources]:
    return [
        NodeResources(name=f"n{place}", gpus=gpus, gpu_memory=memory, cpus=64)
        for place in range(nodes)
    ]


def trained(tmp_path: Path, nodes: list[NodeResources], *job: str) -> Config:
    """Return the flags that the trainer gets on these nodes."""
    settings = settings_of(tmp_path, *job)
    placed = RECIPE.placed(settings, nodes)
    assert placed.lacking == ()
    assert RECIPE.placed(placed.settings, nodes).settings == placed.settings
    argv = RECIPE.command(placed.settings, None).argv
    return parse(argv[argv.index("trainer") + 1 :])


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_with_fewer_nodes_the_layout_is_chosen_again(tmp_path: Path, nodes: int) -> None:
    config = trained(tmp_path, offers(nodes), *GRPO)
    assert config.policy_ranks == config.vllm_num_engines == 8 * nodes
    assert config.mixed_precision
    settings = settings_of(tmp_path, *GRPO)
    assert RECIPE.fitted(settings, offers(nodes)) == settings


def test_without_gpus_the_job_stays_as_it_is(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *GRPO)
    nodes = offers(3, gpus=0)
    placed = RECIPE.placed(settings, nodes)
    assert placed.settings == settings
    layout = placed.layout
    assert layout is not None
    assert layout["chosen"] is None
    assert layout["idle"] is None


def test_a_model_that_fits_no_gpu_stops_the_run_with_what_to_lower(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "--", "--pretrain", "owner/model-70B")
    nodes = offers(1, memory=24 * 10**9)
    placed = RECIPE.placed(settings, nodes)
    assert placed.settings == settings
    (sentence,) = placed.lacking
    assert "no layout fits" in sentence
    assert placed.layout is None, "a table of what would not start misleads"
