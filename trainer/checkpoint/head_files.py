"""Files of the run directory for processes of nodes that do not share it (`--storage head`).

Only the head's node has the run directory. A process of another node writes its files to scratch
space of its own node. The file store on the head's node reads them from there by a stream, writes
them to the run directory and compares checksums. To read a checkpoint, a process fetches the files
that it needs from the file store, once for all processes of its node. A rank that needs only parts
of the tensors reads those alone (`head_state`).

With `--storage shared`, and on the head's node, a process uses the run directory itself.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from contract.files import umask
from contract.files.child_variables import NODE_DIR
from contract.manifest import WrittenFile
from contract.run_dir import RunFiles
from trainer.checkpoint.file_stream import FileStream
from trainer.checkpoint.head_file_store import answer, is_here, served
from trainer.checkpoint.protocol import Directory, HeadDirectory

WRITE, READ = "write-", "read-"
"""Begin the names of scratch directories."""
TURN = ".turn"
"""Lock: only one process at a time makes, fills or deletes scratch directories of a node."""
HELD = ".held"
"""Lock in a scratch directory: a process uses it."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """Where a process writes files of a directory of the run."""

    path: Path
    to: HeadDirectory | None
    """None: `path` is the directory itself."""

    def send(self, files: Iterable[WrittenFile], *, replace: bool = False) -> None:
        """Bring the files to the run directory, durably. Raises OSError.

        `replace`: they are a model, and take the place of the model in the directory.
        """
        if self.to is None:
            return
        target, store = self.to.path, self.to.store
        into: Path = answer(store.begin.remote(target)) if replace else target
        for file in files:
            with served(self.path / file.name) as source:
                answer(store.receive.remote(into / file.name, file, source))
        if replace:
            answer(store.replace.remote(target))


@contextmanager
def writing(directory: Directory) -> Iterator[Outbox]:
    """Yield where to write files of `directory`; what is not sent is lost in the end."""
    umask.restore()  # the process may be that of the user's functions
    if isinstance(directory, Path) or is_here(directory):
        yield Outbox(directory if isinstance(directory, Path) else directory.path, None)
        return
    root = _scratch()
    with _locked(root / TURN):
        _sweep(root)
        scratch = Path(tempfile.mkdtemp(prefix=WRITE, dir=root))
        held = _lock(scratch / HELD, fcntl.LOCK_SH)
    try:
        path = scratch / directory.path.name
        path.mkdir()
        yield Outbox(path, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(held)


@contextmanager
def reading(directory: Directory, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield a directory with the checkpoint's files whose names are `wanted`. Raises OSError.

    All processes of a node share a copy, whose name depends on the checksums. The last process to
    use the copy deletes it.
    """
    if isinstance(directory, Path) or is_here(directory):
        yield directory if isinstance(directory, Path) else directory.path
        return
    umask.restore()
    files = answer(directory.store.files.remote(directory.path))
    contents = repr((str(directory.path), [(file.name, file.sha256) for file in files]))
    root = _scratch()
    scratch = root / f"{READ}{hashlib.sha256(contents.encode()).hexdigest()[:16]}"
    copy = scratch / "files"
    held = None
    try:
        with _locked(root / TURN):
            _sweep(root, but=scratch)
            copy.mkdir(parents=True, exist_ok=True)
            held = _lock(scratch / HELD, fcntl.LOCK_SH)
            for file in files:
                if wanted(file.name):
                    _fetch(directory, file, copy / file.name)
        yield copy  # beside other processes: ranks restore together
    finally:
        if held is not None:
            os.close(held)
        with _locked(root / TURN):
            _delete_unused(scratch)


def _fetch(directory: HeadDirectory, file: WrittenFile, to: Path) -> None:
    """Fetch one file, unless another process of this node has. Raises OSError."""
    if to.exists() and to.stat().st_size == file.bytes:
        return
    digest, part = hashlib.sha256(), to.with_name(f".{to.name}.part")
    path = directory.path / file.name
    source = answer(directory.store.serve.remote(path))
    to.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as target:
        for piece in FileStream(source, path).pieces(file.bytes) if source else ():
            digest.update(piece)
            target.write(piece)
    if digest.hexdigest() != file.sha256:
        raise OSError(errno.EIO, "the checksum of what arrived differs", str(path))
    part.rename(to)


def _sweep(root: Path, but: Path | None = None) -> None:
    """Delete the scratch directories of processes that were killed. For the holder of the turn."""
    for scratch in (*root.glob(f"{WRITE}*"), *root.glob(f"{READ}*")):
        if scratch != but:
            _delete_unused(scratch)


def _delete_unused(scratch: Path) -> None:
    with suppress(FileNotFoundError, BlockingIOError):
        lock = _lock(scratch / HELD, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path, kind: int) -> int:
    """Return a descriptor; the lock ends when it is closed, also if the process is killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _scratch() -> Path:
    """Return this node's directory for files that are on their way."""
    own = os.environ.get(NODE_DIR)
    path = RunFiles(Path(own)).scratch if own else Path(tempfile.gettempdir()) / "rollcall-scratch"
    path.mkdir(parents=True, exist_ok=True)
    return path
