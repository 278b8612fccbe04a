"""From a specification to a reward function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from env.http.client import RemoteReward
from env.registry import (
    REWARDS,
    Registered,
    RewardRejected,
    RewardSpecError,
    RewardUnreachable,
    given_in_python,
    reward_function,
)
from env.types import RewardRequest, Score
from tests.support.repository import ROOT

SUMS = [RewardRequest("1+1=2", "1+1=", "2"), RewardRequest("1+1=3", "1+1=", "2")]


def written(directory: Path, source: str) -> str:
    path = directory / "reward.py"
    path.write_text(source)
    return str(path)


def test_names_and_urls_are_understood() -> None:
    assert [score.reward for score in reward_function("arithmetic")(SUMS)] == [1.0, 0.0]
    assert {"arithmetic", "arithmetic-partial", "gsm8k", "math", "choice"} <= set(REWARDS)
    remote = reward_function(" http://a:5000/get_reward , https://[::1]:1/x ", deadline=5)
    assert isinstance(remote, RemoteReward)
    assert remote.urls == ["http://a:5000/get_reward", "https://[::1]:1/x"]
    assert remote.deadline == 5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("arithmetc", "Did you mean 'arithmetic'?"),
        ("nothing", "none of the rewards. Give one of arithmetic, arithmetic-partial, gsm8k"),
        ('{"gsm8k": 1}', "is not a URL, no .py file and none of the rewards. Give one of"),
        ("mine.py:no-name", "'mine.py:no-name' is not FILE.py:NAME. Give the name of a function"),
        ("", "not a URL"),
        ("arithmetic:two", "the weight 'two' is not a number. Give one, as in 'arithmetic:0.5'"),
        ("head:5000/get_reward", "Did you mean 'http://head:5000/get_reward'"),
        ("ftp://head/x", "'ftp://head/x' is not a URL such as http://head:5000/get_reward"),
        ("http://", "is not a URL"),
        ("http://head :5000/x", "'http://head :5000/x' is not a URL such as"),
        ("http://[head/x", "is not a URL such as"),
        ("http://head:99999/x", "is not a URL such as"),
        ("http://head:0/x", "is not a URL such as"),
        ("math?places=-1", "places is -1, where 0 or more is wanted"),
        ("http://head:port/x", "'http://head:port/x' is not a URL: Invalid port: 'port'"),
        ("http://user:hunter2@head:port/x", "'http://********@head:port/x' is not a URL"),
        ("http://user:hunter/2@head/x", "'http://********@head/x' is not a URL"),
        ("ftp://user:hunter2@head/x", "'ftp://********@head/x' is not a URL such as"),
        ("user:hunter2@head/x", "Did you mean 'http://********@head/x'"),
        ("nowhere/reward.py", "nowhere/reward.py: no such file"),
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(spec: str, says: str) -> None:
    with pytest.raises(RewardSpecError) as caught:
        reward_function(spec)
    assert says in str(caught.value)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "returned",
    [
        "[1.0, 0.5]",
        "(1, 0.5)",
        "torch.tensor([1.0, 0.5])",
        "numpy.array([1.0, 0.5])",
        "{'rewards': torch.tensor([1.0, 0.5]), 'extra_logs': {'reward': torch.tensor([4, 5])}}",
    ],
)
def test_a_file_may_return_lists_arrays_and_dictionaries(tmp_path: Path, returned: str) -> None:
    imports = "".join(f"import {name}\n" for name in ("torch", "numpy") if name in returned)
    spec = written(
        tmp_path,
        f"{imports}def reward_func(queries, prompts, labels):\n"
        "    assert (queries[1], prompts[1], labels[1]) == ('1+1=3', '1+1=', '2')\n"
        f"    return {returned}\n",
    )
    scores = reward_function(spec)(SUMS)
    assert [score.reward for score in scores] == [1.0, 0.5]
    if "extra_logs" in returned:
        assert [score.metrics for score in scores] == [{"reward": 4.0}, {"reward": 5.0}]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise KeyError('x')", "raised KeyError: 'x'"),
        ("raise SystemExit(0)", "raised SystemExit: 0"),
        ("return [1.0]", "1 reward for 2 completions"),
        ("return 'ok'", "no list of rewards"),
    ],
)
def test_a_file_that_fails_gives_failures_and_no_rewards(
    tmp_path: Path, body: str, says: str
) -> None:
    spec = written(tmp_path, f"def reward_func(queries, prompts, labels):\n    {body}\n")
    scores = reward_function(spec)(SUMS)
    assert [score.ok for score in scores] == [False, False]
    assert all(says in score.error for score in scores)


def test_what_a_reward_of_this_package_raises_fails_its_completion_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inverse(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(1 / float(request.label or "")) for request in requests]

    monkeypatch.setitem(REWARDS, "inverse", Registered(lambda: inverse))
    asked = [RewardRequest("?", "?", label) for label in ("2", "many", "0", "4")]
    right, text, zero, last = reward_function("inverse")(asked)
    assert (right.reward, last.reward) == (0.5, 0.25)
    assert "raised ValueError: could not convert" in text.error
    assert "raised ZeroDivisionError" in zero.error
    weighted = reward_function(["inverse:1", "length:1"])(asked)
    assert [score.ok for score in weighted] == [True, False, False, True]


@pytest.mark.parametrize("raised", [RewardUnreachable, RewardRejected])
def test_an_outage_of_a_reward_s_server_is_no_fault_of_a_completion(
    monkeypatch: pytest.MonkeyPatch, raised: type[Exception]
) -> None:
    def asks(requests: Sequence[RewardRequest]) -> list[Score]:
        raise raised("no answer")

    monkeypatch.setitem(REWARDS, "asks", Registered(lambda: asks))
    with pytest.raises(raised, match="no answer"):
        reward_function("asks")(SUMS)


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_a_reward_that_is_not_finite_fails_its_own_sample(tmp_path: Path, number: str) -> None:
    body = f"return [1.0, float('{number}')]"
    spec = written(tmp_path, f"def reward_func(queries, prompts, labels):\n    {body}\n")
    assert [score.ok for score in reward_function(spec)(SUMS)] == [True, False]


def test_a_file_may_have_data_classes_and_functions_for_other_processes(tmp_path: Path) -> None:
    source = """
from __future__ import annotations
import pickle
from dataclasses import dataclass

@dataclass
class Reward:
    value: float

def reward_func(queries, prompts, labels):
    return [pickle.loads(pickle.dumps(Reward(VALUE))).value for _ in queries]
"""
    first, second = tmp_path / "a", tmp_path / "b"
    for directory, value in ((first, "0.25"), (second, "0.75")):
        directory.mkdir()
        written(directory, source.replace("VALUE", value))
    rewards = [reward_function(str(one / "reward.py")) for one in (first, second)]
    found = [score.reward for reward in rewards for score in reward(SUMS[:1])]
    assert found == [0.25, 0.75], "each has the classes of its own file"


def test_a_reward_that_is_nan_fails_alone(tmp_path: Path) -> None:
    spec = written(tmp_path, "def reward_func(q, p, l): return [float('nan'), 1]\n")
    assert [score.ok for score in reward_function(spec)(SUMS)] == [False, True]


@pytest.mark.parametrize(
    "answer",
    [
        "torch.tensor([[0.25], [0.5]])",
        "torch.tensor([[0.25], [0.5]], dtype=torch.bfloat16, requires_grad=True)",
        "torch.tensor([[0.25], [0.5]]).numpy()",
        "[torch.tensor([0.25]), torch.tensor([0.5])]",
        "[[0.25], [0.5]]",
    ],
)
def test_rewards_may_be_a_column(tmp_path: Path, answer: str) -> None:
    for body in (answer, f'{{"rewards": {answer}, "scores": {answer}}}'):
        spec = written(tmp_path, f"import torch\ndef reward_func(q, p, l): return {body}\n")
        assert [score.reward for score in reward_function(spec)(SUMS[:2])] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def reward(q): ...", "defines no function reward_func(queries, prompts, labels)"),
        ("import no_such_module_here", "ModuleNotFoundError on import: No module named"),
        ("def (", "SyntaxError on import"),
        ("raise SystemExit(3)", "SystemExit on import: 3"),
    ],
)
def test_a_file_without_a_reward_function_is_refused(
    tmp_path: Path, source: str, says: str
) -> None:
    with pytest.raises(RewardSpecError) as caught:
        reward_function(written(tmp_path, source))
    assert says in str(caught.value)
    assert "reward.py" in str(caught.value)


def test_a_file_imports_its_neighbours_and_those_in_the_working_directory_after_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    here = tmp_path / "here"
    for name in ("env", "json"):  # of the same name as one of ours, and as one of Python's
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise RuntimeError")
    (here / "rollcall_test_here.py").write_text("ONE = 1.0\n")
    (tmp_path / "rollcall_test_beside.py").write_text("TWO = 2.0\n")
    monkeypatch.chdir(here)
    for name in ("env.types", "json"):
        monkeypatch.delitem(sys.modules, name)
    spec = written(
        tmp_path,
        "import json, env.types\nfrom rollcall_test_here import ONE\n"
        "from rollcall_test_beside import TWO\n"
        "def reward_func(queries, prompts, labels): return [ONE, TWO]\n",
    )
    assert [score.reward for score in reward_function(spec)(SUMS)] == [1.0, 2.0]


def test_the_page_has_every_reward_and_every_option() -> None:
    page = (ROOT / "docs" / "rewards.md").read_text()
    for name, reward in REWARDS.items():
        assert f"`{name}`" in page
        for option in inspect.signature(reward.make).parameters:
            assert f"`{option}`" in page or f"`{option}=" in page, (name, option)


def test_a_reward_without_a_name_is_a_metric_without_angle_brackets() -> None:
    def of_length(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(1.0) for _ in requests]

    with given_in_python([lambda requests: of_length(requests), of_length]) as name:
        (score,) = reward_function(name)([RewardRequest("1+1=2", "1+1=", "2")])
    assert set(score.metrics) == {"reward_lambda", "reward_of_length"}
