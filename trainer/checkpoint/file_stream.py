"""Reads a file that another node serves, by a stream that begins again when it breaks."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

from trainer.cluster.tcp_stream import Reader, StreamSource
from trainer.types import TrainingError

PIECE_BYTES = 64 << 20
TRIES = 3
PAUSE_SECONDS = 0.5


class FileStream:
    """A connection to the node that has the file. Every method raises OSError."""

    def __init__(self, source: StreamSource, path: Path, reader: Reader | None = None) -> None:
        """`path`: where the file is, for messages. `reader`: one for several files has one
        connection at a time."""
        self._source = source
        self._path = path
        self._reader = reader or Reader()

    def read(self, start: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `start` on."""
        for number in range(1, TRIES + 1):
            try:
                self._reader.read(self._source, start, target)
                return
            except TrainingError as error:
                if number == TRIES:
                    why = f"it did not come from its node: {error.__cause__}"
                    raise OSError(errno.EIO, why, str(self._path)) from None
            time.sleep(PAUSE_SECONDS)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the first `size` bytes in pieces. A piece is valid until the next one."""
        buffer = bytearray(min(size, PIECE_BYTES))
        for start in range(0, size, PIECE_BYTES):
            piece = memoryview(buffer)[: min(PIECE_BYTES, size - start)]
            self.read(start, piece)
            yield piece
