"""Pure: TRL's command line → the words of a launch, and what its arguments say of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from contract.launch.command_lines import (
    ACCELERATE_MODULE,
    ACCELERATE_SWITCHES,
    ACCELERATE_VALUES,
    option_value,
)
from contract.launch.launcher_flags import starts_all_nodes

RESUME, OUTPUT, CONFIG = "resume_from_checkpoint", "output_dir", "config"
OTHERS = frozenset({"env", "vllm-serve"})
"""Commands of `trl` that train nothing."""
SCRIPT = re.compile(r"trl\.scripts\.(\w+)|(?:.*/)?trl/scripts/(\w+)\.py")
"""One of TRL's own scripts, as a module or as a file."""


@dataclass(frozen=True, slots=True)
class Script:
    """One of TRL's own scripts, as `trl sft …` names it."""

    name: str
    accelerate: tuple[str, ...]
    arguments: tuple[str, ...]


def script_of(words: Sequence[str], known: Collection[str]) -> Script | None:
    """Return the script of `trl sft …` or `sft …`; None if the words are another program."""
    if len(words) > 1 and words[0].rsplit("/", 1)[-1] == "trl":
        name, rest = words[1], words[2:]
    elif words and words[0] in known:
        name, rest = words[0], words[1:]
    else:
        return None
    flags: list[str] = []
    arguments: list[str] = []
    left = list(rest)
    while left:
        word = left.pop(0)
        flag, equals, _ = word.removeprefix("--").partition("=")
        flag = flag.replace("-", "_") if word.startswith("--") else ""
        if flag in ACCELERATE_SWITCHES or (flag in ACCELERATE_VALUES and equals):
            flags.append(word)
        elif flag in ACCELERATE_VALUES and left:
            flags += [word, left.pop(0)]
        else:
            arguments.append(word)
    return Script(name, tuple(flags), tuple(arguments))


def script_in(program: Sequence[str], known: Collection[str]) -> Script | None:
    """Return TRL's own script of a program that a launcher or a Python starts; None if none is."""
    for place, word in enumerate(program):
        if (found := SCRIPT.fullmatch(word)) and (name := found[1] or found[2]) in known:
            return Script(name, (), tuple(program[place + 1 :]))
        if word.startswith("--"):
            break
    return None


def is_trl(word: str) -> bool:
    return word.rsplit("/", 1)[-1] == "trl"


def as_module(words: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Return a launcher's words with TRL's script as a module in place of `/x/bin/trl sft`."""
    if starts_all_nodes(words):
        for place, (word, name) in enumerate(pairwise(words)):
            if is_trl(word) and name in known:
                return (*words[:place], "-m", f"trl.scripts.{name}", *words[place + 2 :])
    return tuple(words)


def with_file(script: Script, file: Mapping[str, object]) -> Script:
    """Return the script with the flags of `accelerate launch` that TRL's --config file has.

    A flag of the command line counts before that of the file.
    """
    given = {word.partition("=")[0].replace("-", "_") for word in script.accelerate}
    flags: list[str] = []
    for name, value in file.items():
        if f"__{name}" in given or value is None:
            continue
        if name in ACCELERATE_VALUES:
            flags += [f"--{name}", str(value)]
        elif name in ACCELERATE_SWITCHES and value is True:
            flags.append(f"--{name}")
    return replace(script, accelerate=(*flags, *script.accelerate))


def python_beside(words: Sequence[str]) -> str | None:
    """Return the path of the Python beside `trl`, if `trl` has a path, as /opt/x/bin/trl has."""
    directory, slash, name = (words[0] if words else "").rpartition("/")
    return f"{directory}/python" if slash and name == "trl" else None


def launched(script: Script, accelerate_configs: str, python: str | None) -> tuple[str, ...]:
    """Return the words that start TRL's script: with accelerate's launcher if a flag is for it.

    `accelerate_configs`: the directory of TRL's own configurations, such as zero3; `python`: the
    path of another Python than Rollcall's.
    """
    module = ("-m", f"trl.scripts.{script.name}", *script.arguments)
    if not script.accelerate:
        return (python, *module) if python else module
    launcher = (python, "-m", ACCELERATE_MODULE) if python else ("accelerate", "launch")
    return (*launcher, *_configured(script.accelerate, accelerate_configs), *module)


def argument(words: Sequence[str], file: Mapping[str, object], name: str) -> str | None:
    """Return the value of --name, else that of TRL's --config file."""
    value = option_value(words, name)
    if value is None and file.get(name) is not None:
        value = str(file[name])
    return value


def _configured(flags: Sequence[str], directory: str) -> tuple[str, ...]:
    """Return the flags, with TRL's --accelerate_config as accelerate's --config_file."""
    rest = list(flags)
    for place, word in enumerate(rest):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") != "__accelerate_config":
            continue
        given = value if equals else rest[place + 1]
        is_file = "/" in given or given.endswith((".yaml", ".yml", ".json"))
        path = given if is_file else f"{directory}/{given}.yaml"
        rest[place : place + (1 if equals else 2)] = ["--config_file", path]
        break
    return tuple(rest)
