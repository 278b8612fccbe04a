"""The file store: an actor on the head's node that has the run directory (`--storage head`).

Processes of other nodes send it their files, and read files of checkpoints from it. The bytes
travel by streams from memory to memory; Ray carries the messages alone.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ray
import xxhash
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.files import umask
from contract.files.os_errors import with_path
from contract.manifest import WrittenFile, files_of
from trainer.checkpoint.file_stream import FileStream
from trainer.checkpoint.protocol import Directory, HeadDirectory
from trainer.cluster import tcp_stream
from trainer.cluster.calls import first_line
from trainer.cluster.tcp_stream import Server, StreamSource
from trainer.config.config import Config
from trainer.models import model_dir

AT_ONCE = 16
"""Requests that the store answers at the same time."""


def place(config: Config, path: Path) -> Directory:
    """Return how processes of all nodes reach a directory of the run. For the driver alone."""
    if config.storage == "shared":
        return path
    context = ray.get_runtime_context()
    return HeadDirectory(path, _store(context.gcs_address, context.get_job_id()), node())


@cache
def _store(cluster: str, job: str) -> Any:
    """Start the file store of this job, on the driver's node."""
    actor = ray.remote(max_concurrency=AT_ONCE, max_restarts=-1, max_task_retries=-1)(FileStore)
    here = NodeAffinitySchedulingStrategy(node(), soft=False)
    return actor.options(num_cpus=0, scheduling_strategy=here).remote()


def node() -> str:
    """Return Ray's id of this node."""
    return str(ray.get_runtime_context().get_node_id())


def is_here(directory: Directory) -> bool:
    """Return whether this process can use the directory's path."""
    return isinstance(directory, Path) or directory.node == node()


@dataclass(frozen=True, slots=True)
class _Served:
    """A file that other nodes read."""

    content: mmap.mmap
    server: Server


class FileStore:
    """The actor. Its methods run in several threads."""

    def __init__(self) -> None:
        self._served: dict[Path, _Served] = {}
        self._indexes: dict[Path, Any] = {}
        self._sent = 0
        """Bytes of files that are served no more."""
        self._changing = threading.Lock()

    def receive(self, path: Path, file: WrittenFile, source: StreamSource | None) -> None:
        """Write a file that another node serves. `source`: None if the file is empty.

        Raises OSError if the disk does not take the file, or if other bytes arrive.
        """
        umask.restore()
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with with_path(path), path.open("wb") as target:
            for piece in FileStream(source, path).pieces(file.bytes) if source else ():
                digest.update(piece)
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != file.sha256:
            raise OSError(errno.EIO, "other bytes arrived than were sent", str(path))

    def begin(self, directory: Path) -> Path:
        """Prepare to replace the model in `directory`. Returns where its files are to arrive."""
        incoming = model_dir.incoming(directory)
        shutil.rmtree(incoming, ignore_errors=True)
        return incoming

    def replace(self, directory: Path) -> None:
        """Bring the model that has arrived to `directory`. The call may be repeated."""
        model_dir.replace(directory)

    def files(self, directory: Path) -> list[WrittenFile]:
        """Return the files of a complete checkpoint. Raises OSError."""
        try:
            return files_of(directory)
        except ValueError as error:
            raise OSError(errno.EIO, str(error), str(directory)) from None

    def serve(self, path: Path) -> StreamSource | None:
        """Serve a file until `end_serving`; None if it is empty. Raises OSError."""
        with self._changing:
            if path not in self._served:
                if (content := mapped(path)) is None:
                    return None
                os.environ.setdefault(tcp_stream.ADDRESS, ray.util.get_node_ip_address())
                self._served[path] = _Served(content, Server(content, port=0))
            return self._served[path].server.source

    def digest(self, path: Path, start: int, size: int) -> str:
        """Return the checksum of a part of a served file. Raises OSError."""
        self.serve(path)
        with memoryview(self._served[path].content) as whole, whole[start : start + size] as part:
            return digest_of(part)

    def index(self, path: Path) -> Any:
        """Return where a file has each tensor (`tensor_ranges.index`). Raises OSError."""
        from trainer.checkpoint import tensor_ranges  # imports torch

        with self._changing, with_path(path):
            if path not in self._indexes:
                self._indexes[path] = tensor_ranges.index(path)
            return self._indexes[path]

    def sent(self) -> int:
        """Return the number of bytes that other nodes have read."""
        with self._changing:
            return self._sent + sum(one.server.sent for one in self._served.values())

    def end_serving(self) -> None:
        """Let go of the files, so that a deletion frees their space."""
        with self._changing:
            for one in self._served.values():
                one.server.close()
                self._sent += one.server.sent
            self._served, self._indexes = {}, {}


def mapped(path: Path) -> mmap.mmap | None:
    """Return the file's content; None if it is empty. Raises OSError."""
    with with_path(path), path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return None
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@contextmanager
def served(path: Path) -> Iterator[StreamSource | None]:
    """Serve a file of this process to the file store in the block; None if it is empty."""
    if (content := mapped(path)) is None:
        yield None
        return
    server = Server(content, port=0)
    try:
        yield server.source
    finally:
        server.close()


def digest_of(part: memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(part)


def answer(reference: Any) -> Any:
    """Return the file store's answer. Raises OSError as the store did, and if there is none."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        why = f"the file store on the head's node does not answer: {first_line(error)}"
        raise OSError(errno.EIO, why) from None
