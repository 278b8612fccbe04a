"""Files of a user's loss and estimator are read before a run, and never executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_run import Tiny, faults_of
from trainer.config.no_effect import warnings_between
from trainer.config.policy_losses import FORMULA_SETTINGS

RIGHT = "def mine(tokens, bounds):\n    ...\n\ndef worth(completions):\n    ...\n"
STOPS = "raise SystemExit('it was run')\n"


def test_right_files_are_accepted_and_not_run(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(RIGHT + STOPS)
    config = tiny.config(
        run_dir,
        policy_loss_type=f"{file}:mine",
        advantage_estimator=f"{file}:worth",
        loss_aggregation="constant",
        dual_clip=3,
    )
    assert config.loss.policy_aggregation == "constant"
    assert not config.has_critic
    assert not config.advantage.whitens
    flags = {*FORMULA_SETTINGS, "loss_aggregation", "no_advantage_std_norm"}
    said = [one for one in warnings_between(config, flags) if "no effect" in one]
    assert [one.split()[0] for one in said] == ["--no_advantage_std_norm"]


@pytest.mark.parametrize(
    "line",
    ["from losses import mine", "from losses import *", "mine = other", "mine = make(3)",
     "def mine(*arguments): ...", "def mine(tokens, bounds, scale=2): ..."],
)  # fmt: skip
def test_what_may_be_a_function_is_left_to_the_run(tmp_path: Path, line: str) -> None:
    (tmp_path / "own.py").write_text(f"{line}\n")
    faults = faults_of(policy_loss_type=f"{tmp_path}/own.py:mine")
    assert "--policy_loss_type" not in faults


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def mine(tokens bounds): ...", "line 1 is not Python code"),
        ("x = 1\n\ndef other(tokens, bounds): ...", "It has other"),
        ("x = 1", "It has no function"),
        ("def mine(tokens): ...", "mine, line 1, must take 2 arguments"),
        ("def mine(a, b, c): ...", "mine, line 1, must take 2 arguments"),
        ("def mine(a, b, *, c): ...", "mine, line 1, must take 2 arguments"),
        ("\nasync def mine(tokens, bounds): ...", "mine, line 2, is `async def`"),
        ("class mine: ...", "mine, line 1, is a class, not a function"),
        ("mine = 0.2", "mine, line 1, is a value, not a function"),
        ("\0", "the file is not Python code"),
    ],
)
def test_a_fault_of_a_loss_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.py").write_text(text)
    faults = faults_of(policy_loss_type=f"{tmp_path}/own.py:mine")
    assert said in faults["--policy_loss_type"]


def test_a_fault_of_an_estimator_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def worth(rewards, actions): ...")
    said = faults_of(advantage_estimator=f"{tmp_path}/own.py:worth")["--advantage_estimator"]
    assert "worth, line 1, must take 1 argument (" in said
    assert "def worth(completions)" in said


def test_a_missing_file_and_a_wrong_name_are_named(tmp_path: Path) -> None:
    faults = faults_of(policy_loss_type=f"{tmp_path}/own.py:mine", advantage_estimator="remx")
    assert "No such file" in faults["--policy_loss_type"]
    assert "must be one of gae" in faults["--advantage_estimator"]
    assert "FILE.py:NAME" in faults["--advantage_estimator"]
    assert "). gae: PPO with a critic; " in faults["--advantage_estimator"]
    for name, ours in (("grpo", "group_norm"), ("REINFORCE++-baseline", "reinforce_baseline")):
        said = faults_of(advantage_estimator=name)["--advantage_estimator"]
        assert said.endswith(f"{name.upper()} is {ours} here")
    assert "must be one of" in faults_of(policy_loss_type="own.py")["--policy_loss_type"]
