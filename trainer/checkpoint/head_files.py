"""Files of the run directory for processes of nodes that do not share it (`--storage head`).

Only the head's node has the run directory. A process of another node writes its files to scratch
space of its own node. The file store, an actor on the head's node, reads them from there by a
stream, writes them to the run directory and compares checksums. To read a checkpoint, a process
fetches the files that it needs from the file store, once for all processes of its node.

With `--storage shared`, and on the head's node, a process uses the run directory itself.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.manifest import WrittenFile, files_of
from contract.os_errors import with_path
from contract.run_dir import NODE_DIR, RunFiles, sync_directory
from trainer.checkpoint.protocol import Directory, HeadDirectory
from trainer.cluster.tcp_stream import Reader, Server, StreamSource
from trainer.config.config import Config
from trainer.types import TrainingError

PIECE_BYTES = 64 << 20
"""A piece is small enough for Ray's object store."""
AT_ONCE = 16
"""Files that the store receives or reads at the same time."""
PREFIX = "write-"
"""Begins the name of the scratch directory of a process that writes."""
INCOMING = ".{}.incoming"
"""Name of a directory until all its files are there."""


def place(config: Config, path: Path) -> Directory:
    """Return how processes of all nodes reach a directory of the run. For the driver alone."""
    if config.storage == "shared":
        return path
    context = ray.get_runtime_context()
    return HeadDirectory(path, _store(context.gcs_address, context.get_job_id()), _node())


@cache
def _store(cluster: str, job: str) -> Any:
    """Start the file store of this job, on the driver's node."""
    actor = ray.remote(max_concurrency=AT_ONCE, max_restarts=-1, max_task_retries=-1)(FileStore)
    here = NodeAffinitySchedulingStrategy(_node(), soft=False)
    return actor.options(num_cpus=0, scheduling_strategy=here).remote()


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


class FileStore:
    """The actor that reads and writes the run directory for processes of other nodes."""

    def receive(self, path: Path, file: WrittenFile, source: StreamSource | None) -> None:
        """Write a file that another node serves. `source`: None if the file is empty.

        Raises OSError if the disk does not take the file, or if other bytes arrive.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with with_path(path), path.open("wb") as target:
            for piece in _read(source, file.bytes, path) if source else ():
                digest.update(piece)
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != file.sha256:
            raise OSError(errno.EIO, "other bytes arrived than were sent", str(path))

    def replace(self, directory: Path) -> None:
        """Replace `directory` by what has arrived in its place; a crash leaves one of the two."""
        incoming = directory.with_name(INCOMING.format(directory.name))
        if not incoming.exists():  # this call is repeated
            return
        sync_directory(incoming)
        shutil.rmtree(directory, ignore_errors=True)
        incoming.rename(directory)
        sync_directory(directory.parent)

    def begin(self, directory: Path) -> None:
        """Prepare to replace `directory`."""
        shutil.rmtree(directory.with_name(INCOMING.format(directory.name)), ignore_errors=True)

    def files(self, directory: Path) -> list[WrittenFile]:
        """Return the files of a complete checkpoint. Raises OSError."""
        try:
            return files_of(directory)
        except ValueError as error:
            raise OSError(errno.EIO, str(error), str(directory)) from None

    def piece(self, path: Path, start: int, size: int) -> bytes:
        with with_path(path), path.open("rb") as file:
            return os.pread(file.fileno(), size, start)


def _read(source: StreamSource, size: int, path: Path) -> Iterator[memoryview]:
    """Yield the bytes that `source` serves, in pieces. Raises OSError."""
    reader, buffer = Reader(), bytearray(min(size, PIECE_BYTES))
    for start in range(0, size, PIECE_BYTES):
        part = memoryview(buffer)[: min(PIECE_BYTES, size - start)]
        try:
            reader.read(source, start, part)
        except TrainingError as error:
            why = f"it did not come from its node: {error.__cause__}"
            raise OSError(errno.EIO, why, str(path)) from None
        yield part


@dataclass(frozen=True, slots=True)
class Outbox:
    """Where a process writes files of a directory of the run."""

    path: Path
    to: HeadDirectory | None
    """None: `path` is the directory itself."""

    def send(self, files: Iterable[WrittenFile], *, replace: bool = False) -> None:
        """Bring the files to the run directory, durably. Raises OSError.

        `replace`: they are all files of the directory, and take the place of what it has.
        """
        if self.to is None:
            return
        target, store = self.to.path, self.to.store
        if replace:
            _answer(store.begin.remote(target))
        into = target.with_name(INCOMING.format(target.name)) if replace else target
        for file in files:
            with _served(self.path / file.name) as source:
                _answer(store.receive.remote(into / file.name, file, source))
        if replace:
            _answer(store.replace.remote(target))


@contextmanager
def writing(directory: Directory) -> Iterator[Outbox]:
    """Yield where to write files of `directory`; what is not sent is lost in the end."""
    if isinstance(directory, Path) or directory.node == _node():
        yield Outbox(directory if isinstance(directory, Path) else directory.path, None)
        return
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_scratch()))
    try:
        path = scratch / directory.path.name
        path.mkdir()
        yield Outbox(path, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def reading(directory: Directory, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield a directory with the checkpoint's files whose names are `wanted`. Raises OSError.

    All processes of a node share a copy, whose name depends on the checksums. The last process to
    use the copy deletes it.
    """
    if isinstance(directory, Path) or directory.node == _node():
        yield directory if isinstance(directory, Path) else directory.path
        return
    files = _answer(directory.store.files.remote(directory.path))
    contents = repr((str(directory.path), [(file.name, file.sha256) for file in files]))
    copy = _scratch() / f"read-{hashlib.sha256(contents.encode()).hexdigest()[:16]}"
    changing, using = copy.with_suffix(".changing"), copy.with_suffix(".using")
    with _opened(using) as users:
        with _opened(changing) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            copy.mkdir(exist_ok=True)
            for file in files:
                if wanted(file.name):
                    _fetch(directory, file, copy / file.name)
        try:
            yield copy  # beside other processes: ranks restore together
        finally:
            with _opened(changing) as turn, suppress(BlockingIOError):
                fcntl.flock(turn, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(copy, ignore_errors=True)


def _fetch(directory: HeadDirectory, file: WrittenFile, to: Path) -> None:
    """Fetch one file, unless another process of this node has. Raises OSError."""
    if to.exists() and to.stat().st_size == file.bytes:
        return
    digest, part = hashlib.sha256(), to.with_name(f".{to.name}.part")
    path = directory.path / file.name
    with part.open("wb") as target:
        for start in range(0, file.bytes, PIECE_BYTES):
            piece = _answer(directory.store.piece.remote(path, start, PIECE_BYTES))
            digest.update(piece)
            target.write(piece)
    if digest.hexdigest() != file.sha256:
        raise OSError(errno.EIO, "the checksum of what arrived differs", str(path))
    part.rename(to)


@contextmanager
def _opened(lock: Path) -> Iterator[int]:
    """Yield a descriptor of the file; its locks end with the block."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _served(file: Path) -> Iterator[StreamSource | None]:
    """Serve a file to the file store while the block runs; an empty file needs no server."""
    with file.open("rb") as opened:
        if not file.stat().st_size:
            yield None
            return
        content = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    server = Server(content, port=0)
    try:
        yield server.source
    finally:
        server.close()


def _scratch() -> Path:
    """Return this node's directory for files that are on their way."""
    own = os.environ.get(NODE_DIR)
    path = RunFiles(Path(own)).scratch if own else Path(tempfile.gettempdir()) / "rollcall-scratch"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _answer(reference: Any) -> Any:
    """Return the file store's answer. Raises OSError as the store did, and if there is none."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        why = f"the file store on the head's node does not answer: {str(error).splitlines()[0]}"
        raise OSError(errno.EIO, why) from None
