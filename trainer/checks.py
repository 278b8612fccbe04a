"""What is wrong with a job beyond its flags, found before anything is started. Torch-free."""

from __future__ import annotations

from pathlib import Path

from env.prompts import PromptError, load_prompts
from trainer.config import Config


def data_faults(config: Config) -> list[str]:
    """One sentence for each prompts file that is empty or broken: flag, file, line.

    Only text files are read, all of them: their lines are written by hand or by scripts. Opening
    other formats would load libraries that a head does not need; the trainer itself checks those.
    """
    faults = []
    for flag, path, most in (
        ("--prompt_data", config.prompt_data, config.max_samples),
        ("--eval_dataset", config.eval_dataset, None),
    ):
        if path is None or path.is_dir() or path.suffix == ".parquet":
            continue
        try:
            _read(config, path, most)
        except PromptError as error:
            keys = [config.input_key, *([config.label_key] if config.label_key else [])]
            faults.append(f"{flag}: {error}. Every line is a JSON object with {' and '.join(keys)}")
    return faults


def _read(config: Config, path: Path, most: int | None) -> None:
    columns = (config.input_key, config.label_key, config.input_template)
    # Any chat is a text to this stand-in; the true template needs the model's tokeniser.
    render = (lambda messages: "chat") if config.apply_chat_template else None
    load_prompts(path, *columns, most, render)
