"""Files that the words of a job name: what is wrong with them before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from contract.files import yaml_text
from contract.launch.command_lines import PYTHON, option_value, script_place, variables_before
from contract.launch.shell_wrapping import SHELLS
from contract.options import MISTYPED, did_you_mean
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.job.checkpoint_files import UNREADABLE
from entrypoint.job.recipes.base import AbsentFile

JSON, YAML = (".json",), (".yaml", ".yml")
OF_ACCELERATE = ("config_file", "deepspeed_config_file")
"""Flags of `accelerate launch` that name a file."""
OF_SCRIPTS = ("deepspeed", "deepspeed_config", "fsdp_config", "accelerator_config")
"""Flags of scripts of transformers and DeepSpeed that name a file if the value looks like one."""
OTHERWISE = "give the file's path as the nodes have it"


def absent(settings: Settings, said: str, given: str) -> str:
    """Return a fault if a file is not there where the job starts; "" if it is, or nobody can know.

    `said`: the file as the command has it, with its flag.
    """
    path = working_dir.expanded(given)
    if not _lacks(settings, path):
        return ""
    environment = settings.runtime_env
    is_local = working_dir.is_local(environment) and not path.is_absolute()
    where = working_dir.place(environment) if is_local else Path.cwd()
    file = where / path
    beside = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
    kinds = next((one for one in (JSON, YAML) if path.suffix in one), (path.suffix,))
    others = [name for name in beside if PurePath(name).suffix in kinds]
    instead = did_you_mean(path.name, others, OTHERWISE, cutoff=MISTYPED)
    place = "" if path.is_absolute() else f" in {where}"
    return AbsentFile(f"{said} is not a file{place}: {instead}", file)


def faults_of_configurations(
    settings: Settings, accelerate: Sequence[str], arguments: Sequence[str]
) -> Iterator[str]:
    """Yield a fault for each file of settings that is not there, or that is damaged.

    `accelerate`: the flags of `accelerate launch`; `arguments`: those of the script.
    """
    for flags, names, any_value in (
        (accelerate, OF_ACCELERATE, True),
        (arguments, OF_SCRIPTS, False),
    ):
        for name in names:
            given = option_value(flags, name) or ""
            if given and (any_value or (given[0] != "-" and given.endswith((*JSON, *YAML)))):
                yield from _of_configuration(settings, f"--{name} {given}", given)


def absent_script(settings: Settings) -> str:
    """Return a fault if a Python or a shell is to run a script that is not there; "" if it is."""
    _, words = variables_before(settings.job)
    if PYTHON.fullmatch(words[0]):
        first = 1 + script_place(words[1:])
        script = "" if "-c" in words[1:first] else next(iter(words[first:][:1]), "")
        kinds: tuple[str, ...] = (".py",)
    elif PurePath(words[0]).name in SHELLS:
        script, kinds = next(iter(words[1:2]), ""), (".sh", ".bash")
    else:
        return ""
    return absent(settings, script, script) if script.endswith(kinds) else ""


def _of_configuration(settings: Settings, said: str, given: str) -> Iterator[str]:
    if missing := absent(settings, said, given):
        yield missing
    if missing or _is_unseen(settings, working_dir.expanded(given)):
        return
    try:
        text = working_dir.content(settings.runtime_env, working_dir.expanded(given)).decode()
        row = json.loads(text) if given.endswith(JSON) else yaml_text.parsed(text)
    except UNREADABLE as error:
        why = (str(error).splitlines() or ["unknown"])[0]
        yield f"{said} cannot be read: {why}"
        return
    if not isinstance(row, dict):
        yield f"{said} has no settings: it must have a name and a value for each"


def _is_unseen(settings: Settings, path: Path) -> bool:
    """Return whether a file lies in a working directory that only the ranks see."""
    brought = "working_dir" in settings.runtime_env
    return brought and not working_dir.is_local(settings.runtime_env) and not path.is_absolute()


def _lacks(settings: Settings, path: Path) -> bool:
    """Return whether the ranks will not find a file; False if it is where only they see it."""
    if _is_unseen(settings, path):
        return False
    try:
        working_dir.content(settings.runtime_env, path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, LookupError):
        return True
    except UNREADABLE:
        return False  # who reads it says why it cannot
    return False
