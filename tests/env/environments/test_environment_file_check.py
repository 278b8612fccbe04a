"""Files of environments and agents are read before a run, and never executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from env.environments import environment_file_check, load
from tests.support.agent_files import AGENT
from tests.support.environments import COUNTING

STEP = "async def step(self, reply):"


def environment(
    directory: Path, text: str, name: str = "Counting"
) -> environment_file_check.Source:
    path = directory / "own.py"
    path.write_text(text)
    return environment_file_check.environment(f"{path}:{name}")


def test_a_right_file_has_no_fault(tmp_path: Path) -> None:
    found = environment(tmp_path, COUNTING + "\nraise SystemExit('it was run')\n")
    assert (found.fault, found.missing, found.warnings) == ("", "", ())
    (tmp_path / "agent.py").write_text(AGENT)
    found = environment_file_check.agent(str(tmp_path / "agent.py"))
    assert (found.fault, found.missing, found.warnings) == ("", "", ())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (COUNTING.replace("import random", "import random random"), "line 4 is not Python code"),
        (COUNTING.replace("class Counting", "class Other"), "the file defines no Counting"),
        (
            COUNTING.replace(STEP, "def step(self, reply):"),
            "Counting.step, line 20, must be `async",
        ),
        (COUNTING.replace(STEP, "async def step(self):"), "must take one argument after self"),
        (COUNTING.replace(STEP, "async def step(self, a, b):"), "must take one argument"),
        (COUNTING.replace(STEP, "async def step(self, reply, *, x):"), "must take one argument"),
        ("\0", "the file is not Python code: source code string cannot contain null bytes"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, text: str, fault: str) -> None:
    assert fault in environment(tmp_path, text).fault


@pytest.mark.parametrize(
    "line", ["Counting: dict[str, type] = {}", "from counting import *", "Counting = Other"]
)
def test_a_name_may_be_assigned_or_imported(tmp_path: Path, line: str) -> None:
    assert not environment(tmp_path, f"{line}\n").fault


@pytest.mark.parametrize(
    "step", ["async def step(self, reply, **more):", "async def step(self, *a):"]
)
def test_other_right_signatures(tmp_path: Path, step: str) -> None:
    assert not environment(tmp_path, COUNTING.replace(STEP, step)).fault


SIMULATOR = """
import time
from collections import UserDict

import rollcall
from env.episodes import environment as base
from env.episodes.environment import Environment as Env


class Simulator(UserDict):
    def reset(self, seed, options): ...
    def step(self, action, seconds): time.sleep(seconds)
    def close(self, force): ...


class Game(Simulator):
    def step(self, action): ...


class Own(Env):
    async def step(self, reply): return Game().step(reply.text)


class Derived(Own):
    async def close(self): ...


class Qualified(base.Environment):
    async def step(self, reply): ...


class Public(rollcall.Environment):
    async def step(self, reply): ...
"""


def test_classes_that_are_no_environments_have_signatures_of_their_own(tmp_path: Path) -> None:
    found = environment(tmp_path, SIMULATOR, "Own")
    assert (found.fault, found.warnings) == ("", ())


@pytest.mark.parametrize(
    "owner",
    [
        *("Own(Env)", "Derived(Own)", "Qualified(base.Environment)"),
        "Public(rollcall.Environment)",
    ],
)
def test_environments_are_known_by_their_base(tmp_path: Path, owner: str) -> None:
    before, found, after = SIMULATOR.partition(f"class {owner}:")
    assert found
    name = owner.partition("(")[0]
    text = before + found + after.replace("async def", "def", 1)
    assert environment(tmp_path, text, name).fault.startswith(f"{name}.")


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert (
        environment_file_check.environment(f"{tmp_path}/none.py:X").missing
        == "No such file or directory"
    )
    assert (
        environment_file_check.agent(f"{tmp_path}/none.py").missing == "No such file or directory"
    )


@pytest.mark.parametrize("spec", ["serch", "own.py", "own.txt:X", "own.py:not a name", ""])
def test_what_is_no_environment(spec: str) -> None:
    assert environment_file_check.environment(spec).fault == "is not an environment"


def test_a_blocking_call_is_warned_of_by_name(tmp_path: Path) -> None:
    text = COUNTING.replace("await asyncio.sleep(", "import time; time.sleep(")
    (warning,) = environment(tmp_path, text).warnings
    assert warning.startswith("Counting.step calls time.sleep (")
    assert "own.py:22" in warning


@pytest.mark.parametrize(
    ("imported", "call", "named"),
    [
        ("from time import sleep", "sleep(1)", "time.sleep"),
        ("import time as clock", "clock.sleep(1)", "time.sleep"),
        ("from urllib import request", "request.urlopen(URL).read()", "urllib.request.urlopen"),
        ("import requests as r", "r.get(URL)", "requests.get"),
    ],
)
def test_a_blocking_call_is_known_under_another_name(
    tmp_path: Path, imported: str, call: str, named: str
) -> None:
    text = COUNTING.replace("import random", f"import random\n{imported}").replace(
        "self.replies.append(reply.text)", call
    )
    (warning,) = environment(tmp_path, text).warnings
    assert warning.startswith(f"Counting.step calls {named} (")


def test_another_environment_of_the_file_is_not_checked(tmp_path: Path) -> None:
    other = """

class Other(Environment):
    async def step(self, reply, hint): time.sleep(1)


class Helped(Other):
    async def step(self, reply): return await super().step(reply, "")
"""
    text = COUNTING + other
    assert environment(tmp_path, text) == environment(tmp_path, COUNTING)
    assert not environment(tmp_path, text, "Helped").fault
    assert "Other.step" in environment(tmp_path, text, "Other").fault
    assert "Other.step" in environment(tmp_path, f"{text}\nmade = Other\n", "made").fault


@pytest.mark.parametrize(
    "call", ["lambda: time.sleep(1)", "time.sleep, 1", "wait"], ids=["lambda", "function", "inner"]
)
def test_a_call_in_a_thread_blocks_nothing(tmp_path: Path, call: str) -> None:
    inner = "def wait(): time.sleep(1)"
    text = COUNTING.replace("await asyncio.sleep(", f"{inner}\n        (").replace(
        "self.replies.append(reply.text)", f"import time; await asyncio.to_thread({call})"
    )
    assert "time.sleep" in text
    assert environment(tmp_path, text).warnings == ()


WRONG = [
    ("class Counting: pass", "Wanted is a subclass of rollcall.Environment, or"),
    ("raise ValueError('no')", "ValueError on import: no"),
    ("x = 1", "has no class Counting"),
    ("def Counting(): raise OSError('no device')", "cannot be made: OSError: no device"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_file_that_makes_no_environment_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(load.EnvironmentSpecError, match=message):
        load.environment_factory(f"{tmp_path}/own.py:Counting", {})


def test_arguments_go_to_the_class(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(COUNTING)
    made = load.environment_factory(f"{tmp_path}/own.py:Counting", {"turns": 7})()
    assert made.turns == 7  # type: ignore[attr-defined]
    with pytest.raises(load.EnvironmentSpecError, match="unexpected keyword argument 'x'"):
        load.environment_factory(f"{tmp_path}/own.py:Counting", {"x": 1})
