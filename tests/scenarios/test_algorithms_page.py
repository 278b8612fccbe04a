"""The page of algorithms: its flags are flags, they fit each other, and a step can be made."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from env.types import RewardRequest, Score
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny, metric_rows, to_argv, train
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.config.read_flags import aliases
from trainer.config.schema import flags_of

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|`]+) \| `(--[^`]+)` \|", PAGE, re.MULTILINE))
EACH = pytest.mark.parametrize("flags", ROWS.values(), ids=ROWS.keys())


def given(tiny: Tiny, run_dir: Path, flags: str) -> Config:
    """The row's flags with what every run needs, as a command line."""
    return parse([*to_argv(tiny.needed(run_dir)), *shlex.split(flags)])


def every_other(requests: Sequence[RewardRequest]) -> list[Score]:
    """One half of each prompt's completions is right."""
    return [Score.of(float(place % 2)) for place in range(len(requests))]


@EACH
def test_every_flag_of_an_algorithm_counts(flags: str, tiny: Tiny, run_dir: Path) -> None:
    assert given(tiny, run_dir, flags).warnings == ()


@EACH
def test_every_algorithm_trains(flags: str, tiny: Tiny, run_dir: Path) -> None:
    small = (
        " --rollout_batch_size 4 --train_batch_size 8 --micro_train_batch_size 4 --max_steps 1"
        " --generate_max_len 3 --seed 1"
    )
    samples = "" if "--n_samples" in flags else " --n_samples_per_prompt 2"
    config = given(tiny, run_dir, flags.replace("_len 256", "_len 2") + samples + small)
    train(config, every_other)
    (row,) = [row for row in metric_rows(config) if "train/policy_loss" in row]
    assert math.isfinite(row["train/policy_loss"])
    assert row["train/grad_norm"] > 0


def test_the_page_has_every_estimator_loss_and_aggregation() -> None:
    table = flags_of(Config)
    for name in ("advantage_estimator", "policy_loss_type", "loss_aggregation", "kl_estimator"):
        choices = set(table[name].about.choices) - {"ppo"}
        assert {choice for choice in choices if not re.search(rf"\b{choice}\b", PAGE)} == set()


def test_the_page_names_no_flag_that_does_not_exist() -> None:
    known = {f"--{name}" for name in (*flags_of(Config), *aliases(Config))}
    assert set(re.findall(r"--\w[\w-]*", PAGE)) - known == {"--no-code"}
