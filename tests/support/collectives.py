"""Elements that pass through a process's collectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = {"gather": "gather", "reduce_scatter": "scatter", "reduce": "reduce"}
"""Part of a collective's name → its kind; the first that fits counts."""


class Sent(TorchDispatchMode):
    """Counts the elements of each kind of collective while it is entered.

    A collective counts with all elements of its whole tensor: those that a gather ends with, or
    that a reduction begins with.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, _: Any, inputs: Any = (), options: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            name = function._schema.name
            kind = next((KINDS[part] for part in KINDS if part in name), "other")
            self.elements[kind] += max(_elements(one) for one in inputs[:2])
        return function(*inputs, **(options or {}))


def _elements(argument: Any) -> int:
    return sum(one.numel() for one in tree_leaves(argument) if isinstance(one, Tensor))
