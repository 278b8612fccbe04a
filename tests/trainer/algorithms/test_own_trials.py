"""A user's loss and estimator are tried before a run reserves anything: each fault has a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_run import Tiny
from trainer.algorithms import own_trials
from trainer.types import UserFormulaError

LOSS = "def mine(tokens, bounds):\n    {}\n"
WORTH = "import numpy as np\n\n\ndef worth(completions):\n    {}\n"
SURROGATE = "return -tokens.log_ratio.exp() * tokens.advantages"
CENTRED = "return completions.rewards - completions.rewards.mean(axis=1, keepdims=True)"


def tried(tiny: Tiny, run: Path, directory: Path, loss: str, worth: str) -> str:
    """What the trial says of the two bodies; "" if they pass."""
    file = directory / "own.py"
    file.write_text(WORTH.format(worth) + "\n\n" + LOSS.format(loss))
    flags = {"policy_loss_type": f"{file}:mine", "advantage_estimator": f"{file}:worth"}
    config = tiny.config(run, **flags, entropy_loss_coef=0.1, is_correction_level="token")
    try:
        own_trials.run(config)
    except UserFormulaError as error:
        return str(error)
    return ""


def test_right_functions_pass(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    assert tried(tiny, run_dir, tmp_path, SURROGATE, CENTRED) == ""
    with_clipped = (
        "from trainer.algorithms.policy_loss_formulas import TokenLosses\n"
        f"    {SURROGATE.replace('return', 'losses =')}\n"
        "    return TokenLosses(losses, tokens.advantages < 0)"
    )
    assert tried(tiny, run_dir, tmp_path, with_clipped, "return completions.rewards.tolist()") == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "raised ZeroDivisionError: division by zero ({file}:9)"),
        ("return tokens.ratio", "raised AttributeError"),
        ("return 0.0", "(line 8) returned float 0.0 as losses, not a tensor"),
        ("return None", "returned NoneType None as losses"),
        (
            "return tokens.log_ratio.mean()",
            "returned losses of shape () for 4 tokens, where (4,) is wanted",
        ),
        ("return tokens.log_ratio[:3]", "returned losses of shape (3,) for 4 tokens"),
        (f"{SURROGATE.replace('ratio', 'ratio.detach()')}", "losses without a gradient"),
        ("return tokens.log_ratio / (tokens.advantages - 1)", "returned nan for 3 of 4 tokens"),
        ("return tokens.log_probs.abs().sub(0.5).sqrt()", "has the gradient [-inf,"),
        ("raise SystemExit(0)", "raised SystemExit: 0 ({file}:9)"),
    ],
)
def test_what_is_wrong_with_a_loss_is_named(
    tiny: Tiny, run_dir: Path, tmp_path: Path, body: str, said: str
) -> None:
    found = tried(tiny, run_dir, tmp_path, body, CENTRED)
    assert found.startswith(f"--policy_loss_type {tmp_path}/own.py:mine")
    assert said.format(file=tmp_path / "own.py") in found


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return completions.reward", "raised AttributeError"),
        ("return completions.rewards.mean()", "returned an array of shape () for rewards of"),
        ("return 'no'", "returned str 'no', not an array"),
        (
            "return (completions.rewards - 0.5) / completions.rewards.std(axis=1, keepdims=True)",
            "returned nan for 2 of 8 known rewards",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_wrong_with_an_estimator_is_named(
    tiny: Tiny, run_dir: Path, tmp_path: Path, body: str, said: str
) -> None:
    found = tried(tiny, run_dir, tmp_path, SURROGATE, body)
    assert found.startswith(f"--advantage_estimator {tmp_path}/own.py:worth")
    assert said in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name\n", "on import: ModuleNotFoundError: No module named"),
        ("x = 1\ny = x / 0\nmine = worth = len\n", "ZeroDivisionError: division by zero"),
        ("from math import *\n", "the file defines no function worth"),
        ("worth = mine = max(1, 2)\n", "the file defines no function worth"),
    ],
)
def test_what_only_running_the_file_shows_is_named(
    tiny: Tiny, run_dir: Path, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text(text if "import" in text or "mine" in text else f"{text}mine = worth = len\n")
    if "nothing" in text:
        file.write_text(f"{text}mine = worth = len\n")
    config = tiny.config(run_dir, advantage_estimator=f"{file}:worth")
    with pytest.raises(UserFormulaError, match=said) as caught:
        own_trials.run(config)
    assert str(file) in str(caught.value)


def test_modules_beside_the_file_are_found(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "beside_own.py").write_text("def centred(r):\n    return r - r.mean()\n")
    body = "from beside_own import centred\n    return centred(completions.rewards)"
    assert tried(tiny, run_dir, tmp_path, SURROGATE, body) == ""


def test_a_changed_file_is_another_function(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    assert "ZeroDivisionError" in tried(tiny, run_dir, tmp_path, "return 1 / 0", CENTRED)
    assert tried(tiny, run_dir, tmp_path, SURROGATE, CENTRED) == ""
