"""The critic's model: a transformer with a linear head that gives one value a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import load_state_dict

from trainer.algorithms.seeds import derive
from trainer.models.forward import Forward
from trainer.models.hub import unfit_model_errors
from trainer.types import Sequences, UnfitModelError

HEAD_FILE = "value_head.safetensors"
"""File of the value head in an exported critic: the backbone's files have no place for it."""


class ValueHead(nn.Linear):
    """A linear head that computes in fp32 at least."""

    def forward(self, states: Tensor) -> Tensor:
        kind = torch.promote_types(states.dtype, torch.float32)
        return functional.linear(states.to(kind), self.weight.to(kind)).squeeze(-1)


class ValueModel(nn.Module):
    """A transformer with a linear head in place of the vocabulary."""

    def __init__(
        self, backbone: Any, forward: Forward, seed: int, head: Tensor | None = None
    ) -> None:
        """`forward`: the pass through `backbone`. `head` [1, H]: a trained head; None: new."""
        super().__init__()
        self.backbone = backbone
        self._forward = forward
        hidden = hidden_size(backbone)
        self.value_head = ValueHead(hidden, 1, bias=False)
        if head is not None:
            self.value_head.load_state_dict({"weight": head})
            return
        generator = torch.Generator().manual_seed(derive(seed, "value-head"))
        nn.init.normal_(self.value_head.weight, std=1 / (hidden + 1), generator=generator)

    def forward(self, sequences: Sequences) -> Tensor:
        """Return [N] value of the state in which each action was chosen; in fp32 at least."""
        found = self._forward.states(sequences)
        return found.whole(self.value_head(found.states))


def hidden_size(backbone: Any) -> int:
    size: int = backbone.config.get_text_config().hidden_size
    return size


def head_prefix(config: Any, given: str) -> str:
    """Return the name of the head: from an OpenRLHF reward model's config.json, else `given`.

    `config`: the model's configuration in transformers.
    """
    prefix: str = getattr(config, "value_head_prefix", given)
    return prefix


def load_head(source: str, prefix: str, hidden: int) -> Tensor | None:
    """Return the head [1, hidden] of a model; None if it has none, as a language model.

    `source`: a model directory, or a model of the hub that is in the cache. OpenRLHF's models and
    transformers' models for sequence classification name it `prefix`.weight. Raises
    UnfitModelError for a head of another shape, and for unreadable files.
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
    """Yield tensors of that name in all files of a model, each with its file."""
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 - it is not a dict
                yield path, file.get_tensor(name)
    for path in sorted(directory.glob("pytorch_model*.bin")):
        with unfit_model_errors(str(path)):
            tensors = load_state_dict(path, weights_only=True)
        if name in tensors:
            yield path, tensors[name]
