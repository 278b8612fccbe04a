"""Reads the flags that a TRL command takes from its --config file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from trainer.config.translate.command import TRL, TranslateError
from trainer.config.translate.rows import Command
from trainer.config.translate.script_config import reads_option
from trainer.config.translate.trl import VARIABLES

FLAG = "config"


def with_file(command: Command) -> Command:
    """Return the command with its file's flags; typed ones count more. Raises TranslateError."""
    name = " ".join(command.given.get(FLAG, ()))
    if command.trainer != TRL or not name or reads_option(command.program, FLAG):
        return command
    found = read_flags(Path(name), f"--{FLAG}", "TRL reads it")
    environment = found.pop("env", {})
    exported = environment if isinstance(environment, Mapping) else {}
    given = {flag: texts(value) for flag, value in found.items() if value is not None}
    variables = {name: (str(exported[name]),) for name in VARIABLES if name in exported}
    typed = {flag: texts for flag, texts in command.given.items() if flag != FLAG}
    return replace(
        command,
        given=given | typed | variables,
        exported=tuple(dict.fromkeys((*command.exported, *exported))),
    )


def read_flags(path: Path, flag: str, reader: str) -> dict[str, Any]:
    """Return what a file of `flag` has: name → value. Raises TranslateError."""
    try:
        found = yaml_text.parsed(path.read_text())
    except OSError as error:
        raise TranslateError(
            f"{flag} {path}: {error.strerror}. It has flags of the command: copy it to here"
        ) from None
    except UnicodeDecodeError:
        raise TranslateError(f"{flag} {path}: is not text") from None
    except yaml_text.NotYamlError as error:
        raise TranslateError(f"{flag} {path}: {error}") from None
    if not isinstance(found, dict):
        raise TranslateError(f"{flag} {path}: give a YAML file of NAME: VALUE, as {reader}")
    return {str(name): value for name, value in found.items()}


def texts(value: Any) -> tuple[str, ...]:
    """Return a value as a command line has it."""
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, list) and not any(isinstance(one, (dict, list)) for one in value):
        return tuple(map(str, value))
    return (json.dumps(value) if isinstance(value, (dict, list)) else str(value),)
