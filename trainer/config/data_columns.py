"""The columns of the data that no flag names. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from contract.files.os_errors import why_absent
from env.data.columns import ANSWER_COLUMNS, PROMPT_COLUMNS, known_columns
from env.data.rows import MissingKeyError, PromptError, read_rows
from trainer.config.config import Config

COLUMN_FLAGS = ("input_key", "label_key")


def chosen(config: Config, assumed: Collection[str] = ()) -> Config:
    """Return the flags with the columns of `config.unnamed`, if the data leave no doubt of them.

    If the data lack the default column of prompts, and have one other with a usual name, that one
    counts. The same holds for answers, if a reward may read them. `notes` then say it. `assumed`:
    columns of data that are not on this disk.
    """
    if "input_key" not in config.unnamed or (columns := _shared(config, assumed)) is None:
        return config
    found = {"input_key": _only(PROMPT_COLUMNS, columns)}
    if "label_key" in config.unnamed and (config.reward_spec or config.has_environment):
        found["label_key"] = _only(ANSWER_COLUMNS, columns)
    if not found["input_key"]:
        return config
    kinds = dict(zip(COLUMN_FLAGS, ("prompts", "answers"), strict=True))
    named = {flag: column for flag, column in found.items() if column}
    said = [
        f"--{flag} {column}: the data's only column with a usual name of {kinds[flag]}"
        for flag, column in named.items()
    ]
    made = config.with_flags(named)
    return replace(made, unnamed=config.unnamed - named.keys(), notes=(*config.notes, *said))


def unseen(config: Config) -> Iterator[str]:
    """Yield a sentence for data whose columns are chosen when they are there."""
    away = [name for name, path, _ in _sets(config) if why_absent(path)]
    if "input_key" in config.unnamed and away:
        usual = ", ".join(name for name in PROMPT_COLUMNS if name != config.input_key)
        yield (
            f"the columns of {', '.join(away)} are not seen yet. The run reads the prompts from "
            f"'{config.input_key}', or else from the only column of a usual name ({usual}); "
            "--input_key names another"
        )


def _only(usual: Sequence[str], columns: Collection[str]) -> str:
    """Return the one usual name that is there; "" if it is not one."""
    names = [name for name in usual if name in columns]
    return names[0] if len(names) == 1 else ""


def _shared(config: Config, assumed: Collection[str]) -> set[str] | None:
    """Return the columns that all data sets have; None if unknown, or if they have the default."""
    each = []
    for name, path, split in _sets(config):
        if why_absent(path):
            columns: Collection[str] = assumed or known_columns(name)
        else:
            columns = _columns(config.input_key, path, split)
        if not columns or config.input_key in columns:
            return None
        each.append(set(columns))
    return set.intersection(*each) if each else None


def _sets(config: Config) -> Iterator[tuple[str, Path, str]]:
    """Yield each data set with its path and its split."""
    for given, split in (
        (config.prompt_data, config.prompt_split),
        (config.eval_dataset, config.eval_split),
    ):
        for name in given.names if given else ():
            yield name, Path(name), split


def _columns(default: str, path: Path, split: str) -> Sequence[str]:
    """Return the columns of a data set on this disk that lacks the default one; else ()."""
    try:
        next(read_rows(path, (default,), split=split), None)
    except MissingKeyError as error:
        return error.present
    except (PromptError, ImportError, OSError):  # `job_checks.data_faults` says it
        return ()
    return ()
