"""A user's own loss and estimator train, by the text that ranks get; their errors have lines."""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.exit_codes import ExitCode
from env.types import RewardPart, RewardRequest, Score
from tests.support.repository import ROOT
from tests.support.saved_states import weights_of
from tests.support.tiny_run import StopAfter, Tiny, metric_rows, train
from trainer.algorithms.objectives import PolicyObjective
from trainer.cluster.stop import Stopped
from trainer.config.config import Config
from trainer.training.run import exit_code
from trainer.types import UserFormulaError

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n# mine\.py\n(.+?)```", PAGE, re.DOTALL)
SAME = """
import numpy as np
from trainer.algorithms.advantages import normalised
from trainer.algorithms.policy_loss_formulas import clipped_surrogate


def loss(tokens, bounds):
    return clipped_surrogate(tokens, bounds)


def worth(completions):
    return normalised(completions)
"""


def every_other(requests: Sequence[RewardRequest]) -> list[Score]:
    """One half of each prompt's completions is right."""
    return [Score.of(float(place % 2)) for place in range(len(requests))]


def own(tiny: Tiny, run: Path, file: Path, text: str, **flags: Any) -> Config:
    file.write_text(text)
    names = {"policy_loss_type": f"{file}:loss", "advantage_estimator": f"{file}:worth"}
    return tiny.config(run, init_kl_coef=0, **{"max_steps": 2, **names, **flags})


def test_the_page_s_example_trains(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    names = re.findall(r"mine\.py:(\w+)", PAGE)
    flags = dict(
        zip(
            ("policy_loss_type", "advantage_estimator"),
            (f"{file}:{name}" for name in names),
            strict=True,
        )
    )
    config = own(tiny, run_dir, file, EXAMPLE, **flags)
    train(config, every_other)
    assert all(row["train/grad_norm"] > 0 for row in metric_rows(config))


def test_the_same_formula_in_a_file_gives_the_same_weights(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    """With a stop in between: the resumed run reads the file again."""
    table = tiny.config(
        run_dir.with_name("table"), advantage_estimator="group_norm", init_kl_coef=0, max_steps=2
    )
    train(table)
    config = own(tiny, run_dir, tmp_path / "own.py", SAME)
    after = StopAfter(1)
    with pytest.raises(Stopped, match="after step 1"):
        train(config, after.reward, after.stop)
    train(config)
    expected, found = weights_of(table, 2), weights_of(config, 2)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_a_rank_needs_no_copy_of_the_file(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    text = "def loss(tokens, bounds):\n    return helper(tokens)\n\n\ndef helper(t):\n    1 / 0\n"
    config = own(tiny, run_dir, file, text, advantage_estimator="reinforce")
    sent = pickle.dumps(PolicyObjective.of(config))
    file.unlink()
    objective: PolicyObjective = pickle.loads(sent)
    assert objective.own
    with pytest.raises(UserFormulaError, match=f"ZeroDivisionError.*{file}:6") as caught:
        objective.own.call(None, None)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert "1 / 0" in "".join(traceback.format_exception(caught.value))


def test_an_error_of_a_later_step_ends_the_run_with_its_line_and_is_no_crash(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    late = (
        "if steps.append(1) or len(steps) > 1:\n        completions.unknown\n    return normalised"
    )
    text = SAME.replace("return normalised", late) + "\n\nsteps = []\n"
    config = own(tiny, run_dir, tmp_path / "own.py", text)
    with pytest.raises(UserFormulaError, match=r"^Step 2: .*unknown.*own.py:13") as caught:
        train(config)
    assert exit_code(caught.value) is ExitCode.USAGE
    assert "Its samples are in" in str(caught.value)


def test_infinities_of_the_loss_are_named(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    text = SAME.replace(
        "return clipped_surrogate(tokens, bounds)",
        "return tokens.log_ratio + float('inf') * (tokens.log_ratio.detach() * 0 + 1)",
    )
    config = own(tiny, run_dir, tmp_path / "own.py", text)
    with pytest.raises(UserFormulaError, match=r"loss \(line 7\) returned inf for \d+ of \d+ tok"):
        train(config)


def test_an_own_estimator_sees_each_reward_and_unknown_ones(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    text = SAME.replace(
        "return normalised(completions)",
        "assert np.isnan(completions.rewards[0, 0]), completions.rewards\n"
        "    assert completions.rewards.shape == (4, 2)\n"
        "    assert [part.shape for part in completions.parts] == [(4, 2), (4, 2)]\n"
        "    assert tuple(completions.weights) == (1.0, 0.5)\n"
        "    assert completions.parts[1][0, 1] == 7.0\n"
        "    return completions.rewards - 0.5",
    )
    config = own(tiny, run_dir, tmp_path / "own.py", text, max_steps=1)

    def first_unknown(requests: Sequence[RewardRequest]) -> list[Score]:
        parts = (RewardPart(1.0, 1.0), RewardPart(7.0, 0.5))
        known = [replace(Score.of(at % 2), parts=parts) for at in range(1, len(requests))]
        return [Score.failed("outage"), *known]

    train(config, first_unknown)
