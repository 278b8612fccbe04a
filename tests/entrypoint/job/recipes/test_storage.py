"""Recipes whose ranks write checkpoints on all nodes warn if the nodes share no storage.

Each rank writes its part on its own node: the head alone never sees a whole checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes import base

JOBS = {
    "openrlhf": ["python3", "-m", "openrlhf.cli.train_ppo_ray"],
    "search-r1": ["max_turns=4"],
    "trl": ["trl", "sft", "--model_name_or_path", "owner/model"],
    "verl": ["trainer.nnodes=2"],
}
APART = {"ROLLCALL_STORAGE": "head", "ROLLCALL_TOKEN": "a-token-of-all-nodes"}


@pytest.mark.parametrize("recipe", JOBS)
def test_nodes_that_share_no_storage_are_told_that_checkpoints_need_one(
    recipe: str, tmp_path: Path
) -> None:
    given = {"ROLLCALL_RECIPE": recipe, "ROLLCALL_RUN_DIR": str(tmp_path)}
    for environ, told in ((given | APART, True), (given, False)):
        warnings = base.load(recipe).warnings(read_settings(environ, JOBS[recipe]))
        assert any("all nodes must share" in one for one in warnings) is told
