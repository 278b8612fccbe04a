"""Finds OpenRLHF's complete checkpoints, and makes it resume from the newest one.

train_ppo_ray writes DIRECTORY/_actor/global_stepN and then, with a critic, DIRECTORY/_critic; the
other programs write DIRECTORY/global_stepN. Each is DeepSpeed's, whose file `latest` beside them is
written last and names what is loaded. A crash between the two leaves them at different steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contract.files.deepspeed_names import LATEST, MODEL_STATES
from contract.run_dir import write_atomically
from entrypoint.job import checkpoint_files
from entrypoint.job.checkpoint_files import UNREADABLE
from entrypoint.job.found_checkpoints import FoundCheckpoint, named

NAME = re.compile(r"(?:best_)?global_step(?P<step>[0-9]{1,15})")
"""`best_…` is a whole checkpoint, too: of the best evaluation."""
BEST = "best_"


@dataclass(frozen=True, slots=True)
class OpenRLHFCheckpoint:
    step: int
    tag: str
    places: tuple[Path, ...]
    """The directories that hold it, of each role."""

    @property
    def path(self) -> Path:
        return self.places[0] / self.tag


def newest(places: Sequence[Path], *, with_best: bool = True) -> OpenRLHFCheckpoint | None:
    """Return the complete checkpoint with the highest step; None if a role has none of it.

    `places`: where the checkpoints of each role lie. `with_best`: those of the best evaluation
    count, too.
    """
    whole = [_complete(place) for place in places]
    common = set[str].intersection(*(set(one) for one in whole))
    tags = [tag for tag in common if with_best or not tag.startswith(BEST)]
    # of one step, the regular checkpoint counts before that of the best evaluation
    best = max(tags, key=lambda tag: (whole[0][tag], not tag.startswith(BEST)), default=None)
    return None if best is None else OpenRLHFCheckpoint(whole[0][best], best, tuple(places))


def choose(checkpoint: OpenRLHFCheckpoint) -> None:
    """Make every role load this checkpoint: OpenRLHF takes what `latest` names. Raises OSError."""
    for place in checkpoint.places:
        if _latest(place) != checkpoint.tag:
            write_atomically(place / LATEST, checkpoint.tag)


def zero_ranks(checkpoint: OpenRLHFCheckpoint) -> int:
    """Return how many ranks of DeepSpeed's ZeRO wrote the checkpoint; 0 if none did."""
    return _zero_ranks(checkpoint.path)


def _zero_ranks(path: Path) -> int:
    with suppress(OSError):
        return len(checkpoint_files.ranks(checkpoint_files.ZERO_RANK, path.iterdir()))
    return 0


def _latest(place: Path) -> str:
    with suppress(OSError, ValueError):
        return (place / LATEST).read_text().strip()
    return ""


def _complete(place: Path) -> dict[str, int]:
    """Map the complete checkpoints of a role to their steps; none is after `latest`."""
    last = NAME.fullmatch(_latest(place))
    if last is None:
        return {}
    limit = int(last["step"])
    found = [one for one in named(place, NAME) if one.step <= limit and _is_complete(one)]
    # a crash before the first of the optimizer's files leaves nothing that tells of them
    sharded = [one for one in found if _zero_ranks(one.path)]
    return {one.path.name: one.step for one in sharded or found}


def _is_complete(checkpoint: FoundCheckpoint) -> bool:
    path = checkpoint.path
    with suppress(*UNREADABLE):
        files = [file for file in path.rglob("*") if file.is_file()]
        has_model = any(file.name.endswith(MODEL_STATES) for file in files)
        whole = has_model and all(map(checkpoint_files.is_whole, files))
        return whole and checkpoint_files.has_all_parts(path)
    return False
