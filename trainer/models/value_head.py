"""The critic's value head as it lies beside, or among, a model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor
from transformers.modeling_utils import load_state_dict

from trainer.types import UnfitModelError

FILE = "value_head.safetensors"
"""Where an exported critic has it: transformers' models of the backbone have no place for one."""


def prefix_in(config: Any, given: str) -> str:
    """What a head is called: as a reward model of OpenRLHF's says in its config.json, else `given`.

    `config`: transformers' of the model.
    """
    prefix: str = getattr(config, "value_head_prefix", given)
    return prefix


def load(source: str, prefix: str, hidden: int) -> Tensor | None:
    """[1, hidden] of a model directory, or of a model on the hub that was loaded before.

    `prefix`.weight is the name under which OpenRLHF's models and transformers' ones for sequence
    classification have it. None where the model has no such head: a critic that starts from a
    language model. Raises UnfitModelError for a head of another shape.
    """
    directory = Path(source)
    if not directory.is_dir():
        directory = Path(snapshot_download(source, local_files_only=True))
    name = f"{prefix}.weight"
    for path, head in _called(name, directory):
        if tuple(head.shape) != (1, hidden):
            raise UnfitModelError(
                f"--critic_pretrain: {name} in {path} is {list(head.shape)}, and a critic's head "
                f"[1, {hidden}]. Give another --value_head_prefix to start with a fresh one"
            )
        return head
    return None


def _called(name: str, directory: Path) -> Iterator[tuple[Path, Tensor]]:
    """Tensors of that name among a model's weights and beside them, each with its file."""
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 - it is no dict
                yield path, file.get_tensor(name)
    for path in sorted(directory.glob("pytorch_model*.bin")):
        tensors = load_state_dict(path, weights_only=True)
        if name in tensors:
            yield path, tensors[name]
