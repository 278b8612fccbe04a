"""A reward function from a user's file: OpenRLHF's `reward_func(queries, prompts, labels)`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any
from zlib import crc32

from env.http.protocol import read_answer, write_request
from env.types import RewardFunction, RewardRequest, Score, finite

NAME = "reward_func"


class RewardFileError(ValueError):
    """A file that gives no reward function; the message says why."""


def load_reward_file(path: Path) -> RewardFunction:
    """`reward_func` of the file, which returns rewards (list, array, tensor) or a dictionary."""
    reward_func = getattr(load_module(path), NAME, None)
    if not callable(reward_func):
        raise RewardFileError(f"{path}: defines no function {NAME}(queries, prompts, labels)")

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        body = write_request(requests)
        answer = reward_func(body["query"], body["prompts"], body["labels"])
        return read_answer(plain(answer), len(requests))

    return reward


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
    _look_beside(path)
    sys.modules[name] = module  # dataclasses and pickle look for a class's module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardFileError(f"{path}: {type(error).__name__} on import: {error}") from error
    return module


def _look_beside(path: Path) -> None:
    """Have modules beside the file, and in the working directory, found after all others."""
    for directory in (str(path.resolve().parent), str(Path.cwd())):
        if directory not in sys.path:
            sys.path.append(directory)


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
