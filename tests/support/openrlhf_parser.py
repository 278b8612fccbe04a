"""OpenRLHF's own command lines: the released parsers and their checks, without what they start."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, cast
from unittest.mock import MagicMock, patch

from tests.support.repository import ROOT

PACKAGE = ROOT / ".oracles" / "openrlhf"


def parsed(program: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return what the program makes of its flags. Raises SystemExit as argparse does."""
    tree = ast.parse((PACKAGE / f"cli/{program}.py").read_text())
    body = next(node for node in tree.body if isinstance(node, ast.If)).body
    found: list[Any] = []
    names = {"argparse": argparse, "datetime": datetime, "os": os, "train": found.append}
    with patch.dict(sys.modules, _config()), patch.object(sys, "argv", [f"{program}.py", *argv]):
        exec(compile(ast.Module(body, []), program, "exec"), names)
    return cast(dict[str, Any], json.loads(json.dumps(found[0], default=vars)))


def options(program: str) -> set[str]:
    """Return the names of the program's flags, without hyphens."""
    found: set[str] = set()

    def remember(parser: argparse.ArgumentParser, *_: Any) -> None:
        found.update(name.lstrip("-") for name in parser._option_string_actions)
        parser.exit()

    with (
        patch.object(argparse.ArgumentParser, "parse_args", remember),
        contextlib.suppress(SystemExit),
    ):
        parsed(program, [])
    return found


def reserved(argv: Sequence[str]) -> int:
    """Return how many GPUs the released train_ppo_ray reserves, by its own `train`.

    What reserves them is replaced: placement groups, groups of actors without one, and engines.
    """
    counts: list[int] = []

    def placement_group(bundles: Sequence[Any], strategy: str) -> MagicMock:
        counts.append(len(bundles))
        return MagicMock()

    def group(nodes: int, each: int, *_: Any, pg: Any, **__: Any) -> MagicMock:
        counts.append(0 if pg else nodes * each)
        return MagicMock()

    def engines(*given: Any, **_: Any) -> list[Any]:
        number, parallel, shared = given[0], given[1], given[8]
        counts.append(0 if shared else number * parallel)
        return []

    tree = ast.parse((PACKAGE / "cli/train_ppo_ray.py").read_text())
    train = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    names: dict[str, Any] = {
        **{"ray": MagicMock(), "os": os, "get_strategy": MagicMock()},
        **{name: name for name in ("PolicyModelActor", "CriticModelActor", "RewardModelActor")},
        "ReferenceModelActor": "ReferenceModelActor",
        "placement_group": placement_group,
        "RayActorGroup": group,
        "create_vllm_engines": engines,
    }
    exec(compile(ast.Module([train], []), "train_ppo_ray", "exec"), names)
    row = json.loads(json.dumps(parsed("train_ppo_ray", argv)), object_hook=lambda one: _Row(one))
    trainers = {f"openrlhf.trainer.ppo_trainer{end}": MagicMock() for end in ("", "_async")}
    with patch.dict(sys.modules, {**_config(), "openrlhf.trainer": MagicMock(), **trainers}):
        names["train"](row)
    return sum(counts)


class _Row(dict[str, Any]):
    __getattr__ = dict.__getitem__


def value(row: dict[str, Any], key: str) -> Any:
    """Return what a dotted flag is."""
    found: Any = row
    for name in key.split("."):
        found = found[name]
    return found


def _config() -> dict[str, ModuleType]:
    """Return openrlhf.utils.config alone: its package imports DeepSpeed."""
    name = "openrlhf.utils.config"
    spec = spec_from_file_location(name, PACKAGE / "utils/config.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"openrlhf": ModuleType("openrlhf"), "openrlhf.utils": ModuleType("utils"), name: module}
