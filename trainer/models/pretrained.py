"""Loads models, their configurations and tokenisers by transformers, with or without their code.

Models may bring Python files, which transformers would run. They run in a process only after
`trust(True)`; otherwise a model that cannot do without them is refused. Pickles run nowhere:
weights are safetensors, or tensors that torch reads without running anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contract.files.hf_cache import cached
from env import model_code
from trainer.models.hub import unfit_model_errors
from trainer.types import UnfitModelError

TENSORS_ALONE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch's variable: whatever a caller asks for, tensors alone are read."""
OPPOSITE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""With both, torch reads nothing."""


class _Trust:
    given = False


def trust(given: bool) -> None:
    """Set whether models of this process may run code that they bring along."""
    _Trust.given = given


@contextmanager
def tensors_alone() -> Iterator[None]:
    """Have libraries read no pickles in the block: DeepSpeed asks torch for them.

    The variables are those of all threads, and of programs that are started meanwhile. A user's own
    code, which may read what it likes, does not run in the block.
    """
    before = {name: os.environ.pop(name, None) for name in (TENSORS_ALONE, OPPOSITE)}
    os.environ[TENSORS_ALONE] = "1"
    try:
        yield
    finally:
        del os.environ[TENSORS_ALONE]
        os.environ.update({name: text for name, text in before.items() if text is not None})


def load(kind: Any, model: str, **options: Any) -> Any:
    """Return what `kind`, one of transformers' Auto classes, makes of `model`.

    `model`: a directory, or a model of the hub. Raises UnfitModelError.
    """
    with unfit_model_errors(model):
        try:
            return kind.from_pretrained(model, trust_remote_code=_Trust.given, **options)
        except ValueError as error:
            if model_code.NEEDED not in str(error):
                raise
            files = model_code.code_of(_directory(model))
            raise UnfitModelError(f"{model}: {model_code.refusal(files)}") from error


def code_that_runs(models: Iterable[str]) -> str:
    """Return a sentence that names the code of these models; "" if they have none.

    `models`: directories, or models of the hub that are in the cache.
    """
    files = [
        file for model in dict.fromkeys(models) for file in model_code.code_of(_directory(model))
    ]
    return f"{model_code.FLAG} runs {', '.join(files)}." if files else ""


def _directory(model: str) -> Path:
    return Path(model) if Path(model).is_dir() else cached(model)
