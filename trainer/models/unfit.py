"""What transformers says of files that it cannot load, told as the user's to put right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.os_errors import numbered
from trainer.types import TrainingError, UnfitModelError

MISSHAPEN = "ignore_mismatched_sizes"
"""In transformers' error for weights of other shapes than config.json has."""


@contextmanager
def told(model: str) -> Iterator[None]:
    """Loads files of `model`. Raises UnfitModelError where they cannot be used.

    An error of the disk or of the memory is none of the model's, and passes.
    """
    try:
        with numbered(Path(model)):
            yield
    except TrainingError:
        raise
    except Exception as error:
        if not _is_of_the_files(error):
            raise
        said = " ".join(str(error).split())
        raise UnfitModelError(
            f"{model} cannot be loaded: {type(error).__name__}: {said}"
        ) from error


def _is_of_the_files(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno is None  # transformers' own word for a file that is not there
    if isinstance(error, RuntimeError):
        return MISSHAPEN in str(error)
    # The libraries in Rust raise errors of their own, tokenizers bare ones.
    from_rust = type(error) is Exception or type(error).__module__.startswith("safetensors")
    return from_rust or isinstance(error, ValueError | KeyError | TypeError | AttributeError)
