"""Does an engine's memory keep the bits of its newest weights? Samples of others would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.types import EngineFailedError


class KeptWeights:
    """Checks the weights of every n-th version."""

    def __init__(self, every: int, prints: Callable[[], Sequence[int]]) -> None:
        """`every`: versions between two checks; 0: there is none.

        `prints`: returns a fingerprint of the weights of each of the engine's workers.
        """
        self._every, self._prints = every, prints
        self._sealed: tuple[int, Sequence[int]] | None = None
        """The newest version and its fingerprints."""

    def committed(self, version: int) -> None:
        """Remember the bits of weights that are complete now."""
        checked = self._every and version % self._every == 0
        self._sealed = (version, self._prints()) if checked else None

    def forget(self) -> None:
        """The weights are no more those of a version."""
        self._sealed = None

    def compare(self) -> None:
        """Raises EngineFailedError if the weights are not those that the engine got.

        Called before samples leave the engine: the pool has them written by another process.
        """
        if self._sealed is None:
            return
        version, before = self._sealed
        pairs = zip(before, self._prints(), strict=True)
        if odd := [rank for rank, (sealed, now) in enumerate(pairs) if sealed != now]:
            where = f" of its rank {odd[0]}" if len(before) > 1 else ""
            raise EngineFailedError(f"memory{where} changed a bit of the weights of step {version}")
