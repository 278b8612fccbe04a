"""The reward models of a run: their names, what is wrong with them, how several become one reward.

Torch-free: it is asked before anything starts.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contract.options import Fault
from trainer.config import model_files
from trainer.config.config import Config
from trainer.config.json_files import json_object

HEAD = "ForSequenceClassification"
OPENRLHF = ("RewardModel", "CriticModel", "LLMForSequenceRegression")
"""Architectures of OpenRLHF's own models with a head of one number; the last is of old."""
Combine = Callable[[Sequence[float]], float]
COMBINE: dict[str, Combine] = {
    "mean": lambda rewards: sum(rewards) / len(rewards),
    "sum": sum,
    "min": min,
}
SUMS = ("mean", "sum")
"""Those that weigh all rewards equally."""
FUNCTION = "combine"
"""Name of the function in a .py file."""


def combination(spec: str) -> Combine:
    """Return the function that --reward_combine names. Raises ValueError if there is none."""
    if spec in COMBINE:
        return COMBINE[spec]
    if not spec.endswith(".py"):
        raise ValueError(f"must be one of {', '.join(COMBINE)}, or a .py file with {FUNCTION}")
    try:
        function = runpy.run_path(spec).get(FUNCTION)
    except (Exception, SystemExit) as error:
        raise ValueError(f"cannot be read: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"defines no function {FUNCTION}(rewards)")
    found: Combine = function
    return found


def names(config: Config) -> tuple[str, ...]:
    """The models of --reward_pretrain."""
    return tuple(name.strip() for name in config.reward_pretrain.split(",") if name.strip())


def faults(config: Config) -> Iterator[Fault]:
    """Why a reward model cannot be one, or their rewards cannot be combined."""
    if not config.has_reward_model:
        return
    yield from model_faults(config)
    try:
        combination(config.reward_combine)
    except ValueError as error:
        remedy = f"Give {', '.join(COMBINE)}, or a .py file with {FUNCTION}(rewards)"
        yield Fault("--reward_combine", config.reward_combine, str(error), remedy)


def model_faults(config: Config) -> Iterator[Fault]:
    """Why a reward model on this disk cannot be one."""
    for name in names(config) if config.has_reward_model else ():
        if (Path(name) / "config.json").is_file():
            yield from faults_of("--reward_pretrain", Path(name), chat=config.renders_chat)


def faults_of(flag: str, model: Path, *, chat: bool) -> Iterator[Fault]:
    """Why the model in a directory gives no reward. `chat`: whether its texts are chats."""
    architecture = _architecture(config := json_object(model / "config.json"))
    theirs = architecture in OPENRLHF or "value_head_prefix" in config
    if HEAD not in architecture and not theirs:
        said = f"has no head that scores a text: its architecture is {architecture or 'not said'}"
        remedy = f"Give a model whose architecture ends in {HEAD}, or a RewardModel of OpenRLHF's"
        yield Fault(flag, str(model), said, remedy)
        return
    yield from output_faults(flag, model)
    if chat and not model_files.has_chat_template(model):
        said = "has no chat template, and --apply_chat_template makes every prompt a chat"
        remedy = "Add a chat_template to its tokeniser: chats are written anew for each model"
        yield Fault(flag, str(model), said, remedy)


def output_faults(flag: str, model: Path) -> Iterator[Fault]:
    """Yield a fault if the model in a directory has a head of several numbers."""
    config = json_object(model / "config.json")
    labels = config.get("num_labels") or len(config.get("id2label") or (0, 1))
    if HEAD in _architecture(config) and labels != 1:
        remedy = "Give a model with num_labels 1"
        yield Fault(flag, str(model), f"gives {labels} numbers for a text; a reward is one", remedy)


def _architecture(config: dict[str, Any]) -> str:
    named = config.get("architectures")
    return " ".join(map(str, named)) if isinstance(named, list) else ""
