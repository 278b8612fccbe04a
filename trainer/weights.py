"""The policy's weights on their way to the rollout engines.

An actor returns numpy views of its parameters; Ray puts them into its object store once, and
engines on the same machine read them in place (far quicker than pickled torch tensors).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.types import Weights


def export(state: Mapping[str, Tensor]) -> Weights:
    """A model's tensors as numpy arrays; on CPU they share its memory."""
    return {name: _array(tensor) for name, tensor in state.items()}


def load(model: nn.Module, weights: Weights) -> None:
    """Copy `weights` into `model`, converting to its types. Raises KeyError for a missing name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_tensor(weights[name]))


def _array(parameter: Tensor) -> NDArray[np.generic]:
    tensor = parameter.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: NDArray[np.generic] = tensor.numpy()
    return array


def _tensor(array: NDArray[np.generic]) -> Tensor:
    with warnings.catch_warnings():
        # The object store's memory is read-only, and so is what we do with it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.int16 else tensor
