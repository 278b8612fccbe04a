"""verl's own policy losses and advantages on numpy arrays [B, T].

`core_algos.py` and the masked sums that it calls are read from the wheel's files; the rest of verl
needs packages that are not installed, and is empty here.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from absent import empty_modules
from numpy.typing import NDArray

Array = NDArray[np.generic]
Answer = dict[str, Any]

PACKAGES = ("verl", "tensordict", "omegaconf", "flash_attn")


def from_file(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERL = PathFinder.find_spec("verl")
assert VERL is not None
assert VERL.origin is not None
HERE = Path(VERL.origin).parent

with empty_modules(*PACKAGES):
    utils = importlib.import_module("verl.utils")
    for part in ("import_utils", "torch_functional"):
        name = f"verl.utils.{part}"
        sys.modules[name] = from_file(name, HERE / "utils" / f"{part}.py")
        setattr(utils, part, sys.modules[name])
    algos = from_file("core_algos", HERE / "trainer" / "ppo" / "core_algos.py")


def policy_loss(
    mode: str, log_probs: Array, arrays: dict[str, Array], settings: dict[str, Any]
) -> Answer:
    """The registered loss of one batch, with its gradient and its share of clipped tokens."""
    now = torch.tensor(log_probs).requires_grad_()
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    config = object.__new__(algos.ActorConfig)  # its class is empty here, and is asked for
    vars(config).update({"clip_ratio": None, "global_batch_info": {}} | settings)
    value, metrics = algos.get_policy_loss_fn(mode)(
        log_prob=now,
        loss_agg_mode=settings.get("loss_agg_mode", "token-mean"),
        config=config,
        **given,
    )
    return {
        "value": value.item(),
        "gradient": torch.autograd.grad(value, now)[0].numpy(),
        "clipped": metrics["actor/pg_clipfrac"],
    }


def advantages(
    estimator: str,
    rewards: Array,
    action_mask: Array,
    groups: Array,
    options: dict[str, Any] | None = None,
    batch: dict[str, Array] | None = None,
    **arrays: Array,
) -> Array:
    """[B, T] advantages of completions with one reward each; rows of a group have one number.

    `rewards` [B] are at the last column of `action_mask` [B, T] with an action. `options`: further
    arguments of verl's function. `batch`: the tensors of its argument of this name.
    """
    mask = torch.tensor(action_mask.astype(np.float64))
    last = action_mask.shape[1] - 1 - action_mask[:, ::-1].argmax(axis=1)
    placed = np.zeros(action_mask.shape)
    placed[np.arange(len(last)), last] = rewards
    found, _ = algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=torch.tensor(placed),
        response_mask=mask,
        index=groups,
        **{name: torch.tensor(array) for name, array in arrays.items()},
        **(options or {}),
        **({"batch": {name: torch.tensor(a) for name, a in batch.items()}} if batch else {}),
    )
    answer: Array = found.numpy()
    return answer
