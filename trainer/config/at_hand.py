"""What a plan cannot see here: models and data of the hub, and data of other machines. Torch-free.

The hub is never asked: a plan opens no connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from contract.files.hf_cache import cached
from contract.files.os_errors import why_absent
from trainer.config.config import Config
from trainer.config.job_checks import DATA_FLAGS, on_disk


def of_hub(config: Config) -> Iterator[str]:
    """Yield a sentence for each model and data set of the hub that was not looked at."""
    yield from models_of_hub(config.models)
    for flag, given in zip(DATA_FLAGS, (config.prompt_data, config.eval_dataset), strict=True):
        for name in given.names if given else ():
            if not Path(name).is_absolute():
                yield f"{flag} {name}: a data set of the hub, of which no row is checked"


def models_of_hub(models: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each model that is not on this disk. `models`: flag → its name."""
    for flag, model in models.items():
        here = Path(model).is_absolute() or why_absent(Path(model)) is None
        if not here and not (cached(model) / "config.json").is_file():
            yield (
                f"{flag} {model}: not in the hub's cache here, and `plan` does not ask the hub. "
                "Whether it exists, its size and its chat template are not checked"
            )


def assumed_faults(config: Config, columns: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each flag whose column is none of those that are assumed of the data."""
    for flag, key in (("--input_key", config.input_key), ("--label_key", config.label_key)):
        if columns and key and key.partition(".")[0] not in columns:
            listed = ", ".join(columns)
            yield f"{flag} {key}: none of the assumed columns {listed}. Give one of them"


def assumed_warnings(config: Config, columns: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each data set that was not seen, if its columns are assumed."""
    for flag, given in zip(DATA_FLAGS, (config.prompt_data, config.eval_dataset), strict=True):
        seen = {path for _, path in on_disk(config)}
        for path in given.paths if given and columns else ():
            if path not in seen:
                yield (
                    f"not seen: {flag} {path}, which is not on this machine. The plan takes its "
                    f"columns to be {', '.join(columns)}; no row, label or length was checked"
                )
