"""All attacks, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster.attack import commands, head, other_user, programs, servers
from tests.cluster.attack.attacks import Attack, Result
from tests.cluster.attack.last import LAST
from tests.cluster.attack.targets import Scene, scene

ATTACKS: tuple[Attack[Scene], ...] = (
    *head.ATTACKS,
    *other_user.ATTACKS,
    *programs.ATTACKS,
    *commands.ATTACKS,
    *servers.ATTACKS,
    *LAST,
)


def attacked(directory: Path, names: Sequence[str] = ()) -> Iterator[Result]:
    """Yield what each attack has found. `names`: of the attacks that are wanted, else all."""
    with scene(directory) as target:
        for attack in ATTACKS:
            if not names or attack.name in names:
                yield attack.on(target)
