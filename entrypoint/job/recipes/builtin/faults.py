"""The trainer's faults as a recipe tells them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contract.options import ConfigError, Fault, MissingFile, UnfinishedFile, UnknownName
from entrypoint.job.recipes.base import AbsentFile, ArgumentsError, FilesGoneError, UnknownFlag

__all__ = ["ConfigError", "UnfinishedFile", "error_of", "sentences"]


def sentences(faults: Sequence[Fault]) -> list[str]:
    """Return the trainer's faults as a recipe tells them."""
    return [_sentence(fault) for fault in faults]


def _sentence(fault: Fault) -> str:
    if isinstance(fault, MissingFile):
        return AbsentFile(str(fault), Path(fault.value or ""), fault.path)
    return UnknownFlag(str(fault), fault.path) if isinstance(fault, UnknownName) else str(fault)


def error_of(error: ConfigError) -> FilesGoneError | ArgumentsError:
    """Return the recipe's error: of the files that are missing, if any are, else of all faults."""
    if missing := [str(fault) for fault in error.faults if isinstance(fault, MissingFile)]:
        return FilesGoneError("; ".join(missing))
    return ArgumentsError("; ".join(map(str, error.faults)))
