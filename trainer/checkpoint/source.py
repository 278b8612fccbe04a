"""Opens what a rank's state is restored from, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from trainer.checkpoint import head_files, head_state, replica_client, state
from trainer.checkpoint.head_file_store import is_here
from trainer.checkpoint.protocol import HeadDirectory, Snapshot, Source
from trainer.checkpoint.state import State


@contextmanager
def opened(source: Source, role: str, *, in_parts: bool) -> Iterator[State]:
    """Yield the state that all ranks of `role` saved.

    `in_parts`: the caller reads tensors by `part_of`, so they may stay on the head's node. Raises
    SnapshotLostError, OSError.
    """
    if isinstance(source, Snapshot):
        yield replica_client.load(source, role)
    elif in_parts and isinstance(source, HeadDirectory) and not is_here(source):
        with head_state.opened(source, role) as content:
            yield content
    else:
        with head_files.reading(source, partial(state.is_of, role)) as directory:
            yield state.load(directory, role)
