"""Reads a training state from DeepSpeed's files, of any ZeRO stage and number of ranks.

DeepSpeed's `zero_to_fp32` joins the partitions of fp32 weights and of Adam's moments. The files are
pickles, which can run code: read only files that you trust.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import zero_to_fp32
from torch import Tensor

from trainer.checkpoint.openrlhf import OpenRLHFProgress
from trainer.checkpoint.state import MOMENTS, State
from trainer.config.layout import Role
from trainer.types import UnreadableCheckpointError

UNDECAYED = ("bias", "layer_norm.weight", "layernorm.weight", "norm.weight", "ln_f.weight")
"""Parts of names in OpenRLHF's second group of parameters (`get_optimizer_grouped_parameters`)."""
Tensors = dict[str, Tensor]


def load(directory: Path, role: str) -> tuple[State, OpenRLHFProgress | None]:
    """Return the state under this trainer's names, and the run's position if the files have it.

    Raises UnreadableCheckpointError if a file is missing or damaged.
    """
    try:
        files = zero_to_fp32.get_model_state_files(str(directory))
        with _named_if_damaged(files[0]):
            head = _read(files[0])
            is_zero = head["param_shapes"] is not None
        with contextlib.redirect_stdout(io.StringIO()):  # it prints every file
            weights, moments, updates = _sharded(directory, files) if is_zero else _plain(head)
    except UnreadableCheckpointError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, EOFError) as error:
        raise UnreadableCheckpointError(f"{directory}: {str(error) or type(error)}") from None
    adam = {
        name: {
            "step": torch.tensor(float(updates)),
            **{kind: moments[kind][name] for kind in MOMENTS},
        }
        for name in moments.get(MOMENTS[0], {})
    }
    names = {name: _named(name, role) for name in weights}
    state = State(
        model={names[name]: tensor.float() for name, tensor in weights.items()},
        adam={names[name]: held for name, held in adam.items()},
        scheduler={"last_epoch": head["lr_scheduler"]["last_epoch"] if head["lr_scheduler"] else 0},
    )
    return state, _position(head)


def _read(file: str) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=False)
    return content


@contextlib.contextmanager
def _named_if_damaged(file: str) -> Iterator[None]:
    """Raise UnreadableCheckpointError that names the file, whatever reading it raises."""
    try:
        yield
    except Exception as error:  # a damaged pickle may raise anything
        first = str(error).partition("\n")[0]
        raise UnreadableCheckpointError(f"{file}: {type(error).__name__}: {first}") from None


def _sharded(directory: Path, files: list[str]) -> tuple[Tensors, dict[str, Tensors], float]:
    models, ranks = [], []
    for file in files:
        with _named_if_damaged(file):
            models += zero_to_fp32.parse_model_states([file])
    for file in zero_to_fp32.get_optim_files(directory):
        with _named_if_damaged(file):
            ranks.append(_read(file)["optimizer_state_dict"])
    stage, count = int(ranks[0]["zero_stage"]), ranks[0]["partition_count"]
    count = max(count) if isinstance(count, list) else count
    if count != len(ranks):
        raise ValueError(f"{len(ranks)} of {count} files *_optim_states.pt are there")
    if stage == 3:
        held, flat, whole = "optimizer_state_dict", "fp32_flat_groups", "zero3"
    else:
        held, flat, whole = "base_optimizer_state", "single_partition_of_fp32_groups", "zero2"
    gather = getattr(zero_to_fp32, f"_get_fp32_state_dict_from_{whole}_checkpoint")
    merge = getattr(zero_to_fp32, f"_{whole}_merge_trainable_params")
    weights = gather(count, [rank[flat] for rank in ranks], models, False)
    adam = [rank[held]["state"] for rank in ranks]
    moments: dict[str, Tensors] = {}
    if all(kind in held for kind in MOMENTS for states in adam for held in states.values()):
        for kind in MOMENTS:
            merged: Tensors = {}
            parts = [[held[kind] for _, held in sorted(states.items())] for states in adam]
            merge(merged, count, parts, models)
            moments[kind] = zero_to_fp32.to_torch_tensor(merged)
    updates = next((float(held["step"]) for held in adam[0].values() if "step" in held), 0.0)
    return zero_to_fp32.to_torch_tensor(weights), moments, updates


def _plain(head: Mapping[str, Any]) -> tuple[Tensors, dict[str, Tensors], float]:
    """Read stage 0, whose optimizer knows parameters only by their index in its groups."""
    weights: Tensors = dict(head["module"])
    optimizer = head["optimizer"] or {}
    names = _in_groups(weights)
    for group, masters in zip(names, optimizer.get("fp32_groups", []), strict=False):
        weights |= zip(group, masters, strict=True)  # of bf16 weights
    states = optimizer.get("optimizer_state_dict", optimizer).get("state", {})
    flat = [name for group in names for name in group]
    if len(flat) != len(states) or any(
        states[i][kind].shape != weights[name].shape
        for i, name in enumerate(flat)
        for kind in MOMENTS
    ):
        return weights, {}, 0.0
    moments = {kind: {name: states[i][kind] for i, name in enumerate(flat)} for kind in MOMENTS}
    return _tied(weights, head["module"]), moments, float(states[0]["step"])


def _in_groups(weights: Tensors) -> list[list[str]]:
    """Return names of parameters as OpenRLHF groups them; a tied tensor counts once."""
    seen: dict[int, str] = {}
    for name, tensor in weights.items():
        seen.setdefault(tensor.data_ptr(), name)
    once = list(seen.values())
    decayed = [name for name in once if not any(part in name for part in UNDECAYED)]
    return [decayed, [name for name in once if name not in decayed]]


def _tied(weights: Tensors, module: Tensors) -> Tensors:
    """Return the weights under every name of a tied tensor."""
    first: dict[int, str] = {}
    for name, tensor in module.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: weights[first[tensor.data_ptr()]] for name, tensor in module.items()}


def _named(name: str, role: str) -> str:
    """Return a parameter's name here: a critic's backbone and head have other names."""
    if role != Role.CRITIC:
        return name
    rest = name.partition(".")[2]
    return f"backbone.{rest}" if "." in rest else "value_head.weight"


def _position(head: Mapping[str, Any]) -> OpenRLHFProgress | None:
    if "global_step" not in head:
        return None
    return OpenRLHFProgress(int(head["global_step"]), int(head.get("total_consumed_prompts", 0)))
