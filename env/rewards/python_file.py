"""A reward function from a user's file: OpenRLHF's `reward_func(queries, prompts, labels)`."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Number
from pathlib import Path
from typing import Any
from zlib import crc32

from env.http.protocol import read_answer, write_request
from env.types import RewardRequest, Score, brief, finite
from env.user_code import Raised, callables_in, check_signature, is_of_verl, offered

NAME = "reward_func"


class RewardKind(StrEnum):
    """Whose reward function it is; each kind has parameters of its own."""

    TRL = "trl"
    """With `completions`."""
    VERL = "verl"
    """With `solution_str`."""
    OPENRLHF = "openrlhf"
    """With `queries`."""


class RewardFileError(ValueError):
    """A file that gives no reward function; the message says why."""

    def __init__(self, problem: str, raised: Raised | None = None, *, remedy: str = "") -> None:
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        """What to do; empty if `problem` says all."""
        self.raised = raised
        """The exception of the file's code, if that is why."""


@dataclass(frozen=True, slots=True)
class FileReward:
    """A RewardFunction of OpenRLHF's `reward_func(queries, prompts, labels)`."""

    code: Callable[..., Any]

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        body = write_request(requests)
        arguments = (body["query"], body["prompts"], body["labels"])
        check_signature(self.code, arguments, {})
        answer = self.code(*arguments)
        return [*with_reasons(answer, read_answer(plain(answer), len(requests)))]


def load_reward_file(path: Path) -> FileReward:
    """`reward_func` of the file, which returns rewards (list, array, tensor) or a dictionary."""
    module, parameters = load_module(path), "(queries, prompts, labels)"
    if not hasattr(module, NAME) and (names := callables_in(module)):
        raise RewardFileError(
            f"{path}: defines no function {NAME}{parameters}: it defines {', '.join(names)}",
            remedy=f"Name the one that scores, as in {path}:{_likeliest(module, names)}",
        )
    return FileReward(_callable_of(module, path, NAME, parameters))


def _likeliest(module: object, names: Sequence[str]) -> str:
    """Return the name of the first function with a reward's parameters; else the first name."""
    fitting = (name for name in names if kind_of(getattr(module, name)))
    return next(fitting, names[0])


def kind_of(function: Callable[..., Any]) -> RewardKind | None:
    """Return whose kind of reward a function is; None if its parameters do not say it."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a program in C
        return None
    if "completions" in parameters:
        return RewardKind.TRL
    if is_of_verl(parameters):
        return RewardKind.VERL
    return RewardKind.OPENRLHF if "queries" in parameters else None


def load_callable(path: Path, name: str, parameters: str) -> Callable[..., Any]:
    """Return what a file calls `name`; of a class, an instance that was made without arguments.

    `parameters`: those that are wanted, for the message. Raises RewardFileError.
    """
    return _callable_of(load_module(path), path, name, parameters)


def _callable_of(module: object, path: Path, name: str, parameters: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        names = callables_in(module)
        as_in = (difflib.get_close_matches(name, names, n=1) or names)[:1]
        raise RewardFileError(
            f"{path}: defines no function {name}{parameters}: {offered(name, module)}",
            remedy=f"Name the one that scores, as in {path}:{as_in[0]}" if as_in else "",
        )
    if isinstance(function, type):
        try:
            function = function()
        except (Exception, SystemExit) as error:
            raised = Raised.of(error, function)
            raise RewardFileError(f"{path}: {name}() raised {raised}", raised) from error
    if not callable(function):
        raise RewardFileError(f"{path}: {name} is no function, but a {type(function).__name__}")
    made: Callable[..., Any] = function
    return made


def load_module(path: Path) -> object:
    """Return the module of a user's file, run. Raises RewardFileError.

    Its name in `sys.modules` belongs to this path, so files of one name do not meet.
    """
    if not path.is_file():
        raise RewardFileError(f"{path}: no such file")
    name = f"rollcall_{path.stem}_{crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RewardFileError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    look_beside(path)
    sys.modules[name] = module  # dataclasses and pickle look for a class's module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_imported(path, error) from error
    return module


def check_syntax(path: Path) -> None:
    """Raise RewardFileError for a file that is not Python code, without running it."""
    try:
        with warnings.catch_warnings(action="ignore"), suppress(OSError):
            compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _not_imported(path, error) from error


def _not_imported(path: Path, error: BaseException) -> RewardFileError:
    raised = Raised.of(error)
    where = f":{raised.line}" if raised.line and raised.file.endswith(path.name) else ""
    said = error.msg if isinstance(error, SyntaxError) else error
    return RewardFileError(f"{path}{where}: {type(error).__name__} on import: {said}", raised)


def look_beside(path: Path) -> None:
    """Have modules beside the file, and in the working directory, found after all others."""
    for directory in (str(path.resolve().parent), str(Path.cwd())):
        if directory not in sys.path:
            sys.path.append(directory)


def with_reasons(answer: Any, scores: Sequence[Score]) -> Iterator[Score]:
    """Yield the scores of a function's answer, each that failed without a reason with one."""
    rewards: Any = answer["rewards"] if isinstance(answer, Mapping) else answer
    has_own = isinstance(answer, Mapping) and answer.get("errors") is not None
    each = rewards.tolist() if hasattr(rewards, "tolist") else list(rewards)
    for reward, score in zip(each, scores, strict=True):
        if score.ok or has_own:
            yield score
        else:
            is_none = reward is None
            yield replace(score, error=f"the reward is {brief(reward)}", not_finite=not is_none)


def plain(value: Any) -> Any:
    """Arrays and tensors as lists, inside dictionaries too; numbers as Python's.

    None for NaN, infinity and an integer that no float can hold.
    """
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return finite(value) if isinstance(value, Number) else value
