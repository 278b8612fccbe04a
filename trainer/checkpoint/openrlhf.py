"""Finds OpenRLHF's checkpoints, for `trainer.import_openrlhf`. Torch-free.

OpenRLHF's --ckpt_path holds `_actor` and `_critic`, written by DeepSpeed one after the other. Each
has a file `latest` with the name of the newest directory, global_stepN (OpenRLHF 0.11.2,
`DeepspeedStrategy.save_ckpt`). Nothing says that the two belong together, or that a file is
complete. `trainer.checkpoint.openrlhf_deepspeed` reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.files.deepspeed_names import ACTOR, CRITIC, LATEST, MODEL_STATES, STEPS
from trainer.config.layout import Role

FOLDERS: Mapping[str, str] = {Role.POLICY: ACTOR, Role.CRITIC: CRITIC}
STEP_NAME = re.compile(r"[\w.-]{1,200}")


@dataclass(frozen=True, slots=True)
class OpenRLHFProgress:
    """How far OpenRLHF's run was, from the client state in the actor's files."""

    step: int
    prompts: int
    """Prompts used so far, over all episodes."""


class IncompleteError(ValueError):
    """The checkpoint cannot be converted; the message has everything that is missing."""


def is_there(root: Path) -> bool:
    """Return whether `root` looks like OpenRLHF's --ckpt_path."""
    return (root / FOLDERS[Role.POLICY]).is_dir()


def find(root: Path, roles: Iterable[str]) -> dict[str, Path]:
    """Return each role's newest checkpoint below `root`. Raises IncompleteError."""
    found = {role: _newest(root / FOLDERS[role]) for role in roles}
    faults = [one for one in found.values() if isinstance(one, str)]
    directories = {role: one for role, one in found.items() if isinstance(one, Path)}
    faults += _missing(directories)
    if len({one.name for one in directories.values()}) > 1:
        both = " and ".join(str(one) for one in directories.values())
        faults.append(f"{both} are of different steps. Let both files {LATEST} name the same one")
    if faults:
        raise IncompleteError("; ".join(faults))
    return directories


def _newest(folder: Path) -> Path | str:
    """Return the newest directory in `folder`, or what is wrong."""
    if not folder.is_dir():
        return f"{folder} is missing"
    try:
        name = (folder / LATEST).read_text(errors="replace").strip()
    except FileNotFoundError:
        steps = ", ".join(sorted(one.name for one in folder.glob(STEPS))) or "nothing"
        return (
            f"{folder} has no file {LATEST}, as after a crash in a first save, and holds {steps}. "
            "Write the name of a whole one into it"
        )
    if not STEP_NAME.fullmatch(name):
        return f"{folder / LATEST} does not hold the name of a step: {name[:40]!r}"
    return folder / name if (folder / name).is_dir() else f"{folder / name} is missing"


def _missing(directories: Mapping[str, Path]) -> Iterator[str]:
    for directory in directories.values():
        if not list(directory.glob(f"*{MODEL_STATES}")):
            yield f"{directory} has no *{MODEL_STATES}"
        if others := sorted(one.name for one in directory.glob(f"*mp_rank_01{MODEL_STATES}")):
            yield f"{directory} is tensor parallel ({others[0]}), which is not read"


def cursor_at(position: OpenRLHFProgress, cursor: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prompt stream's cursor after as many prompts. Their order in an epoch differs."""
    epoch, place = divmod(position.prompts, cursor["prompts"])
    return {**cursor, "epoch": epoch, "position": place}
