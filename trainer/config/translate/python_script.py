"""What a Python script says of TRL's GRPO: it is read, and never run."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config.translate.trl import TRL

if TYPE_CHECKING:
    from trainer.config.translate.command import Command

OF_GRPO = {"num_generations", "max_completion_length", "reward_funcs", "steps_per_generation"}
"""Flags that no other trainer of TRL's has."""
CONFIG, TRAINER = "GRPOConfig", "GRPOTrainer"
OF_TRAINER = {"model": "model_name_or_path"}
"""Arguments of the trainer that are flags under another name."""


def is_grpo(script: str, flags: Collection[str]) -> bool:
    """Return whether a script's flags, or its text if it is here, are those of TRL's GRPO."""
    if OF_GRPO & set(flags):
        return True
    return any(name in (CONFIG, TRAINER) for name, _ in _calls(script))


def with_script(command: Command) -> Command:
    """Return the command with the constants that its own script gives; typed flags count more."""
    if not command.program.endswith(".py"):
        return command
    return replace(command, given={**dict(_settings(command.program)), **command.given})


def _settings(script: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the flags that the calls of GRPOConfig and GRPOTrainer say by constants."""
    for name, arguments in _calls(script):
        for key, value in arguments.items():
            flag = key if name == CONFIG else OF_TRAINER.get(key, "")
            if flag and TRL.of(flag) and value is not None:
                yield flag, (str(value).lower() if isinstance(value, bool) else str(value),)


def _calls(script: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the calls of GRPOConfig and GRPOTrainer with their constant arguments."""
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in (CONFIG, TRAINER):
                yield (
                    name,
                    {
                        one.arg: one.value.value
                        for one in node.keywords
                        if one.arg and isinstance(one.value, ast.Constant)
                    },
                )
