"""The Python API without a cluster: what it imports, how it reads flags, and its errors."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import rollcall
from contract.exit_codes import ExitCode
from env.environments.registry import ENVIRONMENTS
from env.registry import REWARDS
from env.types import RewardRequest, Score
from rollcall import Callback, ConfigError, Result, RunError, StepEnd, train
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny
from trainer.__main__ import main
from trainer.cluster import placement
from trainer.config import job_checks
from trainer.config.layout import Layout
from trainer.training.api import to_words

PAGE = (ROOT / "docs" / "python.md").read_text()


def test_import_rollcall_imports_nothing_heavy() -> None:
    code = (
        "import sys, rollcall\n"
        "from rollcall import train, Callback, ConfigError, Score\n"
        "print([n for n in ('torch', 'ray', 'transformers', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_no_other() -> None:
    for name in rollcall.__all__:
        assert getattr(rollcall, name).__name__ == name
    assert rollcall.__version__ == metadata.version("rollcall")
    with pytest.raises(AttributeError, match="'rollcall' has no attribute 'trian'"):
        rollcall.trian  # noqa: B018


def test_the_page_names_what_a_result_and_a_step_have() -> None:
    for known in (Result, StepEnd):
        assert known.__doc__
    for field in Result.__dataclass_fields__:
        assert f"`{field}`" in PAGE


def test_the_page_imports_public_names_only() -> None:
    imported = {
        alias.name
        for line in PAGE.splitlines()
        if line.startswith("from rollcall import")
        for node in ast.walk(ast.parse(line))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported
    assert imported <= set(rollcall.__all__)


def test_values_become_the_words_of_a_command_line() -> None:
    flags = {
        "pretrain": Path("/model"),
        "max_steps": 3,
        "use_kl_loss": True,
        "load_checkpoint": False,
        "log_with": ["mlflow", "trackio"],
        "prompt_data": [Path("a.jsonl"), "b.parquet"],
        "data.prompt_probs": (0.7, 0.3),
        "environment_args": {"topk": 3},
        "eval_dataset": None,
    }
    assert to_words(flags) == [
        *("--pretrain", "/model", "--max_steps", "3", "--use_kl_loss"),
        *("--load_checkpoint", "false", "--log_with", "mlflow", "trackio"),
        *("--prompt_data", "a.jsonl,b.parquet", "--data.prompt_probs", "0.7,0.3"),
        *("--environment_args", '{"topk": 3}'),
    ]


def test_wrong_flags_are_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        train(pretrain="/nowhere", advantage_estimater="rloo", max_steps="three", reward="gsm8k")
    assert {fault.path for fault in raised.value.faults} >= {
        "--pretrain",
        "--advantage_estimater",
        "--max_steps",
        "--run_dir",
        "--prompt_data",
    }


@pytest.mark.parametrize(
    ("given", "path", "problem"),
    [
        ({"reward": {"gsm8k": 1}}, "reward", "{'gsm8k': 1} is a dict"),
        ({"reward": ["gsm8k", 1.0]}, "reward", "1.0 is a float"),
        ({"reward": "arithmetic", "environment": ["search"]}, "environment", "is a list"),
    ],
)
def test_what_is_neither_a_name_nor_a_function_is_a_fault_of_its_argument(
    given: dict[str, Any], path: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=r"Give an? ") as raised:
        train(**given)
    (fault,) = raised.value.faults
    assert (fault.path, problem in fault.problem) == (path, True)


def test_a_wrong_reward_beside_wrong_flags_has_its_flag_and_its_remedy() -> None:
    with pytest.raises(ConfigError) as raised:
        train(reward="arithmatic", max_steps="three")
    (fault,) = [one for one in raised.value.faults if "arithmatic" in one.problem]
    assert fault.path == "--reward"
    assert fault.remedy == "Did you mean 'arithmetic'?"


def test_what_only_the_files_show_is_a_run_error(tiny: Tiny, run_dir: Path) -> None:
    with pytest.raises(RunError, match="Did you mean 'arithmetic'") as raised:
        train(
            pretrain=tiny.model,
            prompt_data=tiny.prompts,
            input_key="prompt",
            reward="arithmatic",
            rollout_batch_size=4,
            train_batch_size=4,
            micro_train_batch_size=4,
            run_dir=run_dir,
        )
    assert raised.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("place", ["{file}", "{file}/run", "/proc/no-such/run"])
def test_a_run_directory_that_cannot_be_one_is_a_run_error(
    tiny: Tiny, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    flags = {
        **tiny.needed(Path(place.format(file=file))),
        "rollout_batch_size": 4,
        "train_batch_size": 4,
        "micro_train_batch_size": 4,
    }
    with pytest.raises(RunError, match=r"^/\S+: N\w+ (a|such)") as raised:
        train(**flags)
    assert raised.value.exit_code is ExitCode.RUN_DIR
    assert main(to_words(flags)) is ExitCode.RUN_DIR
    assert str(raised.value) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        (Callback(), "callbacks is a Callback; give a list"),
        (None, "callbacks is a NoneType; give a list"),
        ([Callback], r"Callback is a class; give an object, Callback\(\)"),
        ([print], "print> is not a rollcall.Callback"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_started(
    callbacks: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        train(callbacks=callbacks)


def test_a_misspelt_method_of_a_callback_is_refused_with_the_right_name() -> None:
    class Near(Callback):
        def on_stepend(self, step: StepEnd) -> None: ...

    class Far(Callback):
        def on_weather(self) -> None: ...

    class Right(Callback):
        on_time = True

        def on_step_end(self, step: StepEnd) -> None: ...

        def _on_helper(self) -> None: ...

    with pytest.raises(TypeError, match=r"Near.on_stepend is never called: did you mean on_step_e"):
        train(callbacks=[Right(), Near()])
    with pytest.raises(TypeError, match=r"Far.on_weather .*: Callback's methods are on_step_end, "):
        train(callbacks=[Far()])
    with pytest.raises(ConfigError) as raised:
        train(callbacks=[Right()])
    assert raised.value.exit_code is ExitCode.USAGE


def test_a_missing_trainer_is_said_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checks, "PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(RunError) as raised:
        train(reward="arithmetic")
    assert str(raised.value) == (
        "The trainer's packages are not installed here (no_such_package): "
        "run the image, or `pip install 'rollcall[trainer]'`"
    )


def test_objects_lose_their_names_when_the_run_has_ended(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are scored before a cluster is joined: here by the function itself."""
    asked: list[RewardRequest] = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        asked.extend(requests)
        return [Score.of(1.0) for _ in requests]

    def refuse(layout: Layout) -> bool:
        raise placement.LayoutError("there is no cluster")

    monkeypatch.setattr(placement, "join", refuse)
    with pytest.raises(RunError, match="there is no cluster"):
        train(
            pretrain=tiny.model,
            prompt_data=tiny.prompts,
            input_key="prompt",
            label_key="answer",
            reward=reward,
            rollout_batch_size=4,
            train_batch_size=4,
            micro_train_batch_size=4,
            run_dir=run_dir,
        )
    assert asked
    assert asked[0].columns["answer"] == asked[0].label
    assert "python" not in REWARDS
    assert "python" not in ENVIRONMENTS
