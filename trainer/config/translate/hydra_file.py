"""Reads the keys that a command of verl takes from a configuration of its own, as Hydra does.

The translation names a file that cannot be put together here.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from contract.launch.hydra import MORE, NAME, OPTIONS, PATH
from trainer.config.translate.command import VERL
from trainer.config.translate.config_file import texts
from trainer.config.translate.rows import UNSET, Command, is_default
from trainer.config.translate.verl import VERL as TABLE

FILE_NOT_READ = (
    "the file is not read: give its keys that differ. Where verl is, the same command with "
    "`--cfg job --resolve` prints all keys"
)
VERLS_OWN = "ppo_trainer"
"""The configuration of main_ppo, whose values the table has."""
VERLS_DIRECTORY = "config"
"""Where main_ppo, beside it, has its own files."""
OF_HYDRA = ("defaults", "hydra")
"""Keys of a file that are none of the job's."""
INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
MOST_FILES = 20
"""Files of a configuration; more are a circle."""


class _NotReadError(Exception):
    """Only Hydra puts this configuration together."""


def with_hydra_file(command: Command) -> Command:
    """Return the command with its file's keys, above which typed ones count."""
    if command.trainer != VERL:
        return command
    command = replace(command, strange=_joined(command.strange))
    options = dict(word.split("=", 1) for word in command.strange if _is_option(word))
    name = options.get(NAME, VERLS_OWN).removesuffix(".yaml")
    if "megatron" in name or UNSET in "".join(options.values()):
        return command
    if name == VERLS_OWN and options.get(PATH, VERLS_DIRECTORY) == VERLS_DIRECTORY:
        return command
    strange = tuple(word for word in command.strange if not _is_option(word))
    try:
        places = list(_places(options, command.program))
        keys = dict(_flat(_composed(name, places, [])))
    except (_NotReadError, OSError, UnicodeDecodeError) as error:
        why = f"{error}: " if isinstance(error, _NotReadError) and str(error) else ""
        left = f"--config-name={name}: {why}{FILE_NOT_READ}"
        return replace(command, strange=strange, absent=(*command.absent, left))
    given, open_ = _resolved(keys)
    lost = [f"{key}={open_[key]}: Hydra resolves it: give its value" for key in open_]
    lost = [one for one in lost if one.partition("=")[0] not in command.given]
    new = {key: (text,) for key, text in given.items() if not _is_verls(key, text)}
    return replace(
        command,
        given=new | dict(command.given),
        strange=strange,
        absent=(*command.absent, *lost),
    )


def _is_option(word: str) -> bool:
    return word.partition("=")[0] in (NAME, PATH, MORE)


def _joined(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words with Hydra's options of files as `--config-name=NAME`."""
    made: list[str] = []
    left = list(words)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if option not in OPTIONS:
            made.append(option + equals + value)
            continue
        if not equals and left:
            value = left.pop(0)
        made.append(f"{OPTIONS[option]}={value}")
    return tuple(made)


def _places(options: Mapping[str, str], program: str) -> Iterator[Path]:
    """Yield where Hydra looks: a relative --config-path is one of the program's directory."""
    if path := options.get(PATH, ""):
        if "://" in path:
            raise _NotReadError
        yield Path(path) if path.startswith("/") else _directory_of(program) / path
    if more := options.get(MORE, ""):
        yield Path(more)


def _directory_of(program: str) -> Path:
    """Return the directory of a program's file. Raises _NotReadError if it is not here."""
    if program.endswith(".py"):
        return Path(program).parent
    package, *inner = program.split(".")[:-1]
    try:
        found = importlib.util.find_spec(package)  # imports nothing
    except (ImportError, ValueError):
        found = None
    for place in (found.submodule_search_locations or ()) if found else ():
        return Path(place, *inner)
    raise _NotReadError


def _composed(name: str, places: Sequence[Path], above: Sequence[str]) -> dict[str, Any]:
    """Return a file's keys on those of the files that its `defaults` name."""
    if name in above or len(above) > MOST_FILES:
        raise _NotReadError
    file = next((one for place in places if (one := place / f"{name}.yaml").is_file()), None)
    try:
        row = yaml_text.parsed(file.read_text()) if file else None
    except yaml_text.NotYamlError as error:
        raise _NotReadError(f"{file} {error}") from None
    if not isinstance(row, dict):
        raise _NotReadError
    own = {str(key): value for key, value in row.items() if key not in OF_HYDRA}
    made: dict[str, Any] = {}
    parts = row.get("defaults") or []
    if not isinstance(parts, list):
        raise _NotReadError
    for part in parts if "_self_" in parts else [*parts, "_self_"]:
        if _is_for_hydra(part):
            continue
        if not isinstance(part, str) or "@" in part or "/" in part:
            raise _NotReadError
        if part == VERLS_OWN and name != VERLS_OWN:
            continue
        more = own if part == "_self_" else _composed(part, places, [*above, name])
        made = yaml_text.merged(made, more)
    return made


def _is_for_hydra(part: Any) -> bool:
    """Return whether an item of `defaults` sets up Hydra itself."""
    names = part if isinstance(part, dict) else [part]
    return all(str(name).removeprefix("override ").startswith("hydra/") for name in names)


def _flat(keys: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key with its value as an override has it."""
    for name, value in keys.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, list):
            yield f"{above}{name}", f"[{','.join(map(str, value))}]"
        elif name != "_target_" and value != "???":  # the class of a part; a value that is missing
            yield f"{above}{name}", "null" if value is None else " ".join(texts(value))


def _resolved(keys: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keys with the values of others that they name, and those that stay open."""
    known: dict[str, str] = {}
    open_: dict[str, str] = {}
    for key, text in keys.items():
        for _ in range(MOST_FILES):
            names = INTERPOLATION.findall(text)
            if not names or not all(name in keys for name in names):
                break
            text = INTERPOLATION.sub(lambda found: keys[found[1]], text)
        (open_ if "${" in text else known)[key] = text
    return known, open_


def _is_verls(key: str, text: str) -> bool:
    """Return whether a value is verl's own, as far as the table has it."""
    defaults = {row.default for row in TABLE.of(key)}
    return any(is_default(text, default) for default in defaults)
