from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_run import to_argv
from trainer.supervised.loggers import reports, run_id, variables
from trainer.supervised.options import StageFlags
from trainer.supervised.parse import parse


def flags(**more: Any) -> StageFlags:
    given = {"pretrain": "o/m", "dataset": "o/d", "save_path": "/out", **more}
    return parse("sft", to_argv(given)).flags


@pytest.mark.parametrize(
    ("given", "environ", "reporters"),
    [
        ({}, {}, []),
        ({}, {"WANDB_API_KEY": "k"}, ["wandb"]),
        ({"use_wandb": "false"}, {"WANDB_API_KEY": "k"}, []),
        ({"use_wandb": True}, {}, ["wandb"]),
        ({"use_wandb": "key", "use_tensorboard": "/t"}, {}, ["wandb", "tensorboard"]),
    ],
)
def test_where_metrics_go(
    given: dict[str, Any], environ: dict[str, str], reporters: list[str]
) -> None:
    assert reports(flags(**given), environ) == reporters


def test_the_flags_become_the_variables_of_wandb() -> None:
    named = {"wandb_project": "p", "wandb_group": "g", "wandb_org": "o", "use_tensorboard": "/t"}
    assert variables(flags(use_wandb="key", **named), None) == {
        "WANDB_PROJECT": "p",
        "WANDB_RUN_GROUP": "g",
        "WANDB_ENTITY": "o",
        "WANDB_API_KEY": "key",
        "TENSORBOARD_LOGGING_DIR": "/t",
    }
    assert "WANDB_API_KEY" not in variables(flags(use_wandb=True), None)


def test_all_attempts_are_one_run_of_wandb(tmp_path: Path) -> None:
    first = run_id(tmp_path / "run")
    assert run_id(tmp_path / "run") == first
    assert run_id(tmp_path / "other") != first
    again = variables(flags(run_dir=tmp_path / "run"), first)
    assert (again["WANDB_RUN_ID"], again["WANDB_RESUME"]) == (first, "allow")
