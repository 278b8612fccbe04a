"""A training state that stays on the head's node; a rank reads the parts of tensors it needs.

With ZeRO-3 a rank needs only its own part of each tensor. The file store says where in the files
each tensor lies, and the rank reads byte ranges. So all nodes together fetch the checkpoint once,
and a rank holds one tensor's part at a time. Each range is compared with the file store's checksum.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from trainer.checkpoint import state
from trainer.checkpoint.file_stream import PIECE_BYTES, FileStream
from trainer.checkpoint.head_file_store import answer, digest_of
from trainer.checkpoint.protocol import HeadDirectory
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import RemoteTensor
from trainer.checkpoint.tensor_ranges import Content, TensorRange
from trainer.cluster.tcp_stream import Reader


class HeadFile:
    """A file on the head's node."""

    def __init__(self, directory: HeadDirectory, name: str, reader: Reader) -> None:
        self.path = directory.path / name
        self._store = directory.store
        source = answer(self._store.serve.remote(self.path))
        self._stream = FileStream(source, self.path, reader)

    def index(self) -> Content:
        content: Content = answer(self._store.index.remote(self.path))
        return content

    def read(self, start: int, size: int) -> bytearray:
        """Return a range of the file. Raises OSError."""
        content = bytearray(size)
        with memoryview(content) as whole:
            for offset in range(0, size, PIECE_BYTES):
                with whole[offset : offset + PIECE_BYTES] as piece:
                    self._stream.read(start + offset, piece)
                    sent = self._store.digest.remote(self.path, start + offset, len(piece))
                    if digest_of(piece) != answer(sent):
                        why = "the checksum of what arrived differs"
                        raise OSError(errno.EIO, why, str(self.path))
        return content


@contextmanager
def opened(directory: HeadDirectory, role: str) -> Iterator[State]:
    """Yield the state that all ranks of `role` saved, with remote tensors.

    Raises OSError, and what `state.load` raises.
    """
    files = answer(directory.store.files.remote(directory.path))
    names = sorted(file.name for file in files if state.is_of(role, file.name))
    with closing(Reader()) as reader:
        remote = [HeadFile(directory, name, reader) for name in names]
        parts = [state.of_content(_remote(file.index(), file), file.path) for file in remote]
        yield state.merged(parts, role)


def _remote(content: Any, file: HeadFile) -> Any:
    if isinstance(content, dict):
        return {key: _remote(value, file) for key, value in content.items()}
    return (
        RemoteTensor.at(content.shape, content.dtype, file, content.offset)
        if isinstance(content, TensorRange)
        else content
    )
