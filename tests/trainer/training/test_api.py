"""The Python API without a cluster: what it imports, how it reads flags, and its errors."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from datasets import Dataset

import rollcall
from contract.exit_codes import ExitCode
from env import types
from env.environments.registry import ENVIRONMENTS
from env.registry import REWARDS
from env.types import RewardRequest, Score
from rollcall import (
    Callback,
    ConfigError,
    Environment,
    EvaluationEnd,
    Messages,
    Result,
    RunError,
    StepEnd,
    train,
)
from rollcall.own_packages import NAMES
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny
from trainer.__main__ import main
from trainer.cluster import placement
from trainer.config import job_checks
from trainer.config.layout import Layout
from trainer.metrics.callbacks import faults
from trainer.training.python_arguments import to_words

PAGE = (ROOT / "docs" / "python.md").read_text()


def test_import_rollcall_imports_nothing_heavy() -> None:
    code = (
        "import sys, rollcall\n"
        "from rollcall import train, Callback, ConfigError, Score, Messages\n"
        "from rollcall import Environment, Retriever, Search, ToolEnv\n"
        "print([n for n in ('torch', 'ray', 'transformers', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_no_other() -> None:
    assert rollcall.Messages is types.Messages
    for name in {*rollcall.__all__} - {"Messages"}:
        assert getattr(rollcall, name).__name__ == name
    assert rollcall.__version__ == metadata.version("rollcall-rlhf")
    with pytest.raises(AttributeError, match="'rollcall' has no attribute 'trian'"):
        rollcall.trian  # noqa: B018


def test_the_page_names_what_a_result_and_a_step_have() -> None:
    for known in (Result, StepEnd):
        assert known.__doc__
    for field in Result.__dataclass_fields__:
        assert f"`{field}`" in PAGE


def test_pages_and_examples_import_public_names_only_and_the_page_has_all() -> None:
    """In a user's directory `env` and `trainer` may be the user's own."""
    files = (*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert [line for line in lines if re.match(f"(from|import) ({'|'.join(NAMES)})\\b", line)] == []
    imported = {
        alias.name
        for line in lines
        if line.startswith("from rollcall import")
        for node in ast.walk(ast.parse(line))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported
    assert imported <= set(rollcall.__all__)
    assert {name for name in rollcall.__all__ if f"`{name}`" not in PAGE} == set()


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
    assert to_words({"input_template": "--- {}", "bf16": "maybe", "adam_betas": [1, 2, 3]}) == [
        *("--input_template=--- {}", "--bf16=maybe", "--adam_betas=1,2,3")
    ], "each is the value of its flag, and no flag or word of its own"
    numbers = {"max_steps": np.int64(3), "temperature": np.float32(0.5), "bf16": np.True_}
    assert to_words(numbers) == ["--max_steps", "3", "--temperature", "0.5", "--bf16", "true"]


def test_wrong_flags_are_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        train(pretrain="/nowhere", advantage_estimater="rloo", max_steps="three", reward="gsm8k")
    assert {fault.path for fault in raised.value.faults} >= {
        "pretrain",
        "advantage_estimater",
        "max_steps",
        "run_dir",
        "prompt_data",
    }
    assert "--" not in str(raised.value)


def line_of(function: Any) -> int:
    line: int = function.__code__.co_firstlineno
    return line


def takes_two(one: object, two: object) -> list[Score]:
    return []


async def waits(requests: Sequence[RewardRequest]) -> list[Score]:
    return []


class NoDisk(Environment):
    def __init__(self) -> None:
        raise OSError("no disk")


class NoTask(Environment):
    async def reset(self) -> Messages:  # type: ignore[override]
        return ()


class Judge:
    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        return []


@pytest.mark.parametrize(
    ("given", "path", "problem"),
    [
        ({"reward": {"gsm8k": 1}}, "reward", "{'gsm8k': 1} is a dict"),
        ({"reward": ["gsm8k", 1.0]}, "reward", "1.0 is a float"),
        ({"reward": "arithmetic", "environment": ["search"]}, "environment", "is a list"),
        (
            {"reward": "arithmetic", "environment": NoTask},
            "environment",
            f"NoTask.reset (tests/trainer/training/test_api.py:{line_of(NoTask.reset)}) must take "
            "one argument after self",
        ),
        ({"reward": []}, "reward", "it is empty"),
        ({"reward": takes_two}, "reward", "takes_two(one, two) is called with"),
        ({"reward": waits}, "reward", "waits is an async function"),
        ({"reward": Judge}, "reward", "Judge is a class"),
        ({"reward": ["arithmatic", Judge()]}, "reward", "'arithmatic' is not a URL"),
        ({"rewards": takes_two}, "rewards", "is a function"),
        ({"pretrian": "x"}, "pretrian", "unknown argument"),
        ({"callback": []}, "callback", "unknown argument"),
        ({"help": True}, "help", "unknown argument"),
        ({"pretrain": object()}, "pretrain", "is an object"),
        ({"max_steps": [None]}, "max_steps", "None is a NoneType"),
        ({"policy_loss_type": takes_two}, "policy_loss_type", "is a function"),
        ({"environment_args": {"a": object()}}, "environment_args", "object is not JSON"),
        ({"prompt_data": []}, "prompt_data", "it is empty"),
        ({"prompt_data": {"train": [{"prompt": "1"}]}}, "prompt_data", "is a dict"),
        ({"prompt_data": [{"prompt": "1"}, 2]}, "prompt_data", "row 2: 2 is an int"),
        ({"prompt_data": [{"prompt": {1}}]}, "prompt_data", "row 1, column prompt: {1} is a set"),
        ({"bf16": "maybe"}, "bf16", "must be true or false"),
    ],
)
def test_a_wrong_argument_is_a_fault_of_its_name_and_the_others_faults_are_there_too(
    given: dict[str, Any], path: str, problem: str, tmp_path: Path
) -> None:
    sound = {"pretrain": "/nowhere", "prompt_data": "/no.jsonl", "run_dir": tmp_path}
    with pytest.raises(ConfigError) as raised:
        train(**{**sound, "reward": "arithmetic", **given, "micro_train_batch_size": -1})
    faults = {fault.path: fault for fault in raised.value.faults}
    assert problem in faults[path].problem
    assert "--" not in str(raised.value)
    assert faults[path].remedy
    assert "micro_train_batch_size" in faults or path in ("prompt_data", "reward")


def test_a_positional_argument_is_told_to_be_a_keyword() -> None:
    positional: Any = train
    with pytest.raises(TypeError, match="train takes keywords, such as pretrain='data/model'"):
        positional("data/model")


def test_an_argument_that_is_missing_is_named_as_python_spells_it() -> None:
    with pytest.raises(ConfigError) as raised:
        train()
    assert {"pretrain", "prompt_data", "run_dir", "reward"} <= {
        fault.path for fault in raised.value.faults if fault.problem == "is required"
    }


ROWS = [{"prompt": "1+1=", "answer": "2", "level": 1.5}, {"prompt": "2+2=", "answer": "4"}]


@pytest.mark.parametrize(
    "table", [list, tuple, pandas.DataFrame, pyarrow.Table.from_pylist, Dataset.from_list]
)
def test_rows_of_this_program_are_a_file_of_the_run(
    tiny: Tiny, run_dir: Path, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(layout: Layout) -> bool:
        raise placement.LayoutError("there is no cluster")

    monkeypatch.setattr(placement, "join", refuse)
    flags = {**tiny.needed(run_dir), "rollout_batch_size": 2, "train_batch_size": 2}
    flags |= {"micro_train_batch_size": 2, "prompt_data": table(ROWS)}
    with pytest.raises(ConfigError, match="there is no cluster"):
        train(**flags)
    rows = (run_dir / "data" / "prompt_data.jsonl").read_text().splitlines()
    found = [{k: v for k, v in json.loads(row).items() if v is not None} for row in rows]
    assert found == ROWS
    for wrong in ({"max_steps": "y"}, {"remote_rm_url": "arithmatic"}, {"input_key": "query"}):
        for root in (run_dir, run_dir.parent / "new"):
            with pytest.raises(ConfigError) as raised:
                train(**flags | wrong | {"prompt_data": table(ROWS[:1] * 2), "run_dir": root})
            assert f"prompt_data-{os.getpid()}" not in str(raised.value)
    assert not (run_dir.parent / "new").exists()
    assert [one.name for one in (run_dir / "data").iterdir()] == ["prompt_data.jsonl"]
    assert (run_dir / "data" / "prompt_data.jsonl").read_text().splitlines() == rows


def test_a_wrong_reward_beside_wrong_flags_has_its_flag_and_its_remedy() -> None:
    with pytest.raises(ConfigError) as raised:
        train(reward="arithmatic", max_steps="three")
    (fault,) = [one for one in raised.value.faults if "arithmatic" in one.problem]
    assert fault.path == "reward"
    assert fault.remedy == "Did you mean 'arithmetic'?"


def test_what_only_the_files_show_is_a_fault_too(tiny: Tiny, run_dir: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'arithmetic'") as raised:
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


def test_an_environment_that_cannot_be_made_is_told_once_with_what_to_do(
    tiny: Tiny, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="cannot be made: OSError: no disk") as raised:
        train(
            pretrain=tiny.model,
            prompt_data=tiny.prompts,
            input_key="prompt",
            environment=NoDisk,
            rollout_batch_size=4,
            train_batch_size=4,
            micro_train_batch_size=4,
            run_dir=run_dir,
        )
    (fault,) = raised.value.faults
    assert fault.remedy == "Call train again once what it needs is there"
    assert "no disk" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train/loss", "did you mean train/policy_loss"),
        ("policy_loss", "did you mean train/policy_loss"),
        ("kl", "did you mean train/kl?"),
        ("zzzz", "result.to_pandas().columns lists the 4 names"),
    ],
)
def test_a_metric_that_no_step_has_is_told_with_the_names_that_are_near(
    run_dir: Path, name: str, said: str
) -> None:
    run_dir.mkdir(exist_ok=True)
    row = {"step": 1, "train/reward": 0.5, "train/policy_loss": 0.1, "train/kl": 0.0}
    (run_dir / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    result = Result(
        steps=1,
        samples=1,
        reward_first=None,
        reward_last=None,
        eval_before=None,
        eval_after=None,
        run_dir=run_dir,
        model=run_dir / "hf",
    )
    with pytest.raises(KeyError) as raised:
        result.plot(name)
    assert f"no step has {name}: " in str(raised.value)
    assert said in str(raised.value)


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
    with pytest.raises(RunError, match=r"^/\S+: N\w+ (a|such).*: .*correct the path") as raised:
        train(**flags)
    assert raised.value.exit_code is ExitCode.RUN_DIR
    assert main(to_words(flags)) is ExitCode.RUN_DIR
    assert str(raised.value) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        (Callback(), "callbacks: it is a Callback. Give a list"),
        (None, "callbacks: it is a NoneType. Give a list"),
        ([Callback], r"Callback is a class. Give an object, Callback\(\)"),
        ([print], "print> is not a rollcall.Callback"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_started(
    callbacks: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
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

    with pytest.raises(ConfigError, match=r"Near.on_stepend is never called. Did you mean on_ste"):
        train(callbacks=[Right(), Near()])
    with pytest.raises(ConfigError, match=r"Far.on_weather .* Callback's methods are on_step_end"):
        train(callbacks=[Far()])
    with pytest.raises(ConfigError) as raised:
        train(callbacks=[Right()])
    assert raised.value.exit_code is ExitCode.USAGE


class Untold(Callback):
    def on_step_end(self) -> None: ...  # type: ignore[override]


class Greedy(Callback):
    def on_checkpoint(self, one: object, two: object) -> None: ...  # type: ignore[override]


class Waits(Callback):
    async def on_evaluation(self, evaluation: EvaluationEnd) -> None: ...  # type: ignore[override]


class Fits(Callback):
    """Each method can be called with what it is told."""

    on_evaluation = print  # type: ignore[assignment]

    def __init__(self) -> None:
        self.on_checkpoint = partial(print, "saved")  # type: ignore[method-assign]

    def on_step_end(self, *told: StepEnd) -> None: ...


@pytest.mark.parametrize(
    ("callback", "problem", "remedy"),
    [
        (Untold(), "must take one argument after self, a StepEnd", "on_step_end(self, step)"),
        (Greedy(), "one argument after self, a CheckpointEnd", "on_checkpoint(self, checkpoint)"),
        (Waits(), "is an async function", "on_evaluation(self, evaluation)"),
    ],
)
def test_a_method_that_no_run_could_call_is_refused_with_its_line(
    callback: Callback, problem: str, remedy: str
) -> None:
    (fault,) = faults([callback, Fits()])
    name = remedy.partition("(")[0]
    line = getattr(type(callback), name).__code__.co_firstlineno
    place = f"{type(callback).__name__}.{name} ({Path(__file__).relative_to(Path.cwd())}:{line}) "
    assert fault.problem.startswith(place)
    assert problem in fault.problem
    assert fault.remedy == f"Write `def {remedy}`"


def test_a_missing_trainer_is_said_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checks, "PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(ConfigError) as raised:
        train(reward="arithmetic")
    assert str(raised.value) == (
        "The trainer's packages are not installed here (no_such_package): "
        "run the image, or `pip install 'rollcall-rlhf[trainer]'`"
    )


def test_objects_lose_their_names_when_the_run_has_ended(
    tiny: Tiny,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first rows are scored before a cluster is joined: here by the function itself."""
    asked: list[RewardRequest] = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        asked.extend(requests)
        return [Score.of(1.0) for _ in requests]

    def silent(completions: list[str], **columns: object) -> list[None]:
        return [None for _ in completions]

    def refuse(layout: Layout) -> bool:
        raise placement.LayoutError("there is no cluster")

    monkeypatch.setattr(placement, "join", refuse)
    for scores in (reward, silent):
        with pytest.raises(ConfigError, match="there is no cluster"):
            train(
                pretrain=tiny.model,
                prompt_data=tiny.prompts,
                input_key="prompt",
                label_key="answer",
                reward=scores,
                rollout_batch_size=4,
                train_batch_size=4,
                micro_train_batch_size=4,
                run_dir=run_dir,
            )
    said = capsys.readouterr()
    assert (said.out + said.err).count("none of the first") == 1
    assert "warning: reward=silent: it scores none of the first 4 rows: the" in said.err
    assert asked
    assert asked[0].columns["answer"] == asked[0].label
    assert "python" not in REWARDS
    assert "python" not in ENVIRONMENTS
