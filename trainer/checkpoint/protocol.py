"""What a checkpoint asks of workers, and what driver and workers send one another. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from contract.manifest import WrittenFile
from trainer.checkpoint.memory_shards import ShardManifest
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.checkpoint.writer import DriverState


@dataclass(frozen=True, slots=True)
class StoreName:
    """The name of a node's replica store. A new process may resolve it, whoever started the store.

    Not so a handle: if its store has died, and the job that started it has ended, Ray cannot
    unpickle it.
    """

    namespace: str
    node: str
    """Ray's id of the node."""


ReplicaPlace = StoreName | SpilledReplicas
"""A place that has shards."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete in-memory checkpoint."""

    driver: DriverState
    shards: tuple[tuple[ShardManifest, tuple[ReplicaPlace, ...]], ...]
    """Each with the places that have it."""

    @property
    def step(self) -> int:
        return self.driver.run.step

    @property
    def place(self) -> str:
        """Where it is restored from, in words."""
        spilled = any(isinstance(places[0], SpilledReplicas) for _, places in self.shards)
        return "files of the nodes' memory" if spilled else "the nodes' memory"


@dataclass(frozen=True, slots=True)
class HeadDirectory:
    """A directory of the run that only the head's node has."""

    path: Path
    store: Any
    """The file store on that node."""
    node: str
    """Ray's id of that node."""


Directory = Path | HeadDirectory
"""A directory of the run as processes of all nodes reach it."""
Source = Directory | Snapshot
"""What a state is restored from: a checkpoint's directory, or a snapshot."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the shards of a step go; the same for all ranks."""

    attempt: str
    step: int
    ranks: dict[str, int]
    """Role → number of its ranks."""
    run_state: str
    in_flight: bytes | None
    ring: tuple[StoreName, ...]
    """A shard goes to its own node's store and to the next one."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of replicating one shard."""

    bytes: int
    fault: str | None = None
    """Why two nodes do not hold it; None if they do."""
    for_good: bool = False
    """The next shard would fail as well."""


class Checkpointable(Protocol):
    """A worker with a training state."""

    def snapshot(self, step: int, needed: Sequence[int] = ()) -> int:
        """Copy the rank's shard of weights, optimizer and schedule, as that of `step`.

        Copies of steps that are not in `needed` may be overwritten. Returns the shard's bytes.
        """

    def save(self, step: int, directory: Directory) -> WrittenFile:
        """Write the copy of `step` to `directory`, durably. May run beside other calls."""

    def replicate(self, to: Targets) -> Receipt:
        """Send the copy of `to.step` to its replica stores. May run beside other calls."""

    def restore(self, source: Source) -> None:
        """Restore the state.

        Raises ModelMismatchError if it is another model's, MissingModelError if there is none,
        UnknownShardError if it is of another version, SnapshotLostError if a shard is gone.
        """

    def restored_rate(self) -> float | None:
        """Return the peak learning rate that the restored state was trained with, if known."""


class Exportable(Checkpointable, Protocol):
    """A worker whose model is written as a Hugging Face model."""

    def export(self, directory: Directory) -> None:
        """Write the model, with its tokeniser, to `directory`."""

    def hold(self) -> None:
        """Copy what `export` would write now, for `export_held`."""

    def export_held(self, directory: Directory) -> list[WrittenFile]:
        """Write that copy and free it. May run beside other calls.

        Returns the files by their names in `directory`; of ranks that do not lead, none.
        """
