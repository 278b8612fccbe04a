"""Pure: the words of a job as a user or a guide typed them, read as far as all recipes need it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import PurePath
from typing import Any

from contract.launch.command_lines import PYTHON, script_place, variables_before
from contract.launch.launcher_flags import LaunchError, parse, starts_all_nodes
from contract.launch.shell_wrapping import unwrapped

WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")


def whole_number(text: str | None) -> int | None:
    """Return the number that a flag's value is; None if it is none, or has ten digits or more."""
    return int(text) if text and WHOLE_NUMBER.fullmatch(text) else None


class Match(IntEnum):
    """How well a recipe knows a command. Of several recipes, the best one runs it."""

    NONE = 0
    ANY = 1
    """It runs any program."""
    POSSIBLE = 2
    """It could run this one."""
    LIKELY = 3
    OWN = 4
    """It is a command of the recipe's framework."""
    SURE = 5
    """It is no program; the head's ROLLCALL_RECIPE changes nothing."""


@dataclass(frozen=True)
class TypedCommand:
    words: tuple[str, ...]
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Ray's runtime environment of the job: its `working_dir` has the script."""

    @property
    def name(self) -> str:
        """The program, without its directory."""
        return PurePath(next(iter(self.unwrapped), "")).name

    @cached_property
    def unwrapped(self) -> list[str]:
        """The command that a client or a wrapper of the shell starts, without variables."""
        return unwrapped(self.words).command

    @cached_property
    def on_ranks(self) -> bool:
        """Whether a launcher such as torchrun starts the program on all nodes."""
        return starts_all_nodes(unwrapped(self.words).words)

    @cached_property
    def program(self) -> tuple[str, ...]:
        """The module or the script that is started, with `-m` if a Python has that before it."""
        return tuple(_program(unwrapped(self.words).words))


def _program(words: Sequence[str]) -> list[str]:
    if starts_all_nodes(words):
        once = words[1:] if words[:1] == words[1:2] else words  # a guide has `torchrun torchrun`
        try:
            return [parse(once).program[-1]]
        except LaunchError:
            return [""]
    _, rest = variables_before(words)
    if rest and PYTHON.fullmatch(rest[0]):
        first = 1 + script_place(rest[1:])
        if "-c" in rest[1:first]:
            return [""]
        rest = rest[first:]
    return (rest[:2] if rest[:1] == ["-m"] else rest[:1]) or [""]
