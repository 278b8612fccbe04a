"""Answers calls of OpenRLHF's and TRL's own functions, until its input ends.

A process of its own: what the peers import, and the precision set here, stay out of the tests'.
A request is a pickled (module, function, arguments), an answer a pickled (result, error); arrays
are float64 both ways.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from typing import Any

import torch


def compute_in_float64() -> None:
    """The peers cast to float32 with `.float()`; their formulas are to be compared to 1e-6."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign] # see above


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the peers print must not get between the answers
    torch.set_num_threads(1)
    compute_in_float64()
    answer: tuple[Any, str | None]
    while True:
        try:
            module, function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # at once: taking down all those modules would last seconds
        try:
            answer = getattr(importlib.import_module(module), function)(**arguments), None
        except Exception:
            answer = None, traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
