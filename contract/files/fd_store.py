"""The file descriptor store of a node: memory that outlives the node's Ray.

Replicas of the training state are in anonymous memory, which the kernel frees when no process has
it open. Ray ends its actors when it ends, for instance after the loss of its head. So a replica
store deposits the descriptors of its memory segments with the node's entrypoint (SCM_RIGHTS,
unix(7)), which starts the next Ray. The replica store of the next Ray withdraws them. No byte is
copied.

If the entrypoint ends, too, it writes the segments to files. A trainer that finished or was stopped
has left nothing in the store, because its state is on disk.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingMixIn, UnixStreamServer
from tempfile import NamedTemporaryFile
from threading import Lock, Thread
from typing import IO

from contract.files import child_variables, private_dir

log = logging.getLogger(__name__)

VARIABLE = child_variables.FD_STORE
PATIENCE_SECONDS = 2.0
"""Timeout of each request: training does not wait longer for a suspended entrypoint."""
MOST_DESCRIPTORS = 253
"""Maximum of one message: SCM_MAX_FD of Linux."""
CHUNK_BYTES = 1 << 16
LABEL = ".label"
"""Suffix of the file that lists what a node has written."""


@dataclass(frozen=True, slots=True)
class Deposit:
    """Memory segments, and the label that their owner gave them."""

    label: bytes = b""
    names: tuple[str, ...] = ()
    """Name of each segment. The same name on another node means the same content."""
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def deposit(owner: str, label: bytes, segments: Mapping[str, int]) -> None:
    """Replace everything in the store of this node. Does nothing if the node has no store.

    `segments`: name → descriptor. Raises OSError if the store does not answer, or for more than
    MOST_DESCRIPTORS segments.
    """
    if path := os.environ.get(VARIABLE):
        head = {"owner": owner, "names": list(segments)}
        with _asked(path, head, label, list(segments.values())) as answers:
            if answers.recv(1) != b".":
                raise OSError(f"the descriptor store {path} does not take the segments")


def withdraw(owner: str) -> Deposit:
    """Return the owner's segments, as descriptors that the caller must close. The store keeps its.

    Empty if the owner has none, or the node has no store. Raises OSError if it does not answer.
    """
    path = os.environ.get(VARIABLE)
    if not path or not Path(path).exists():
        return Deposit()
    with _asked(path, {"asked for": owner}) as answers:
        label, descriptors = _received(answers)
        return Deposit(label, descriptors=descriptors)


def environment(path: Path) -> Mapping[str, str]:
    """Return the environment variables of the node's Ray."""
    return {VARIABLE: str(path)}


class FdStore:
    """The store. It serves during a `with` block, whose end frees all segments.

    If it cannot start, it logs a warning, and the loss of Ray loses the node's replicas.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[str, Deposit] = {}
        self._changing = Lock()
        self._server: _Server | None = None

    def __enter__(self) -> FdStore:
        """Begin to serve; a store that serves already goes on."""
        if self._server is not None:
            return self
        try:
            private_dir.make(self._path.parent)
            self._path.unlink(missing_ok=True)  # of an earlier entrypoint
            self._server = _Server(str(self._path), self)
        except OSError as error:
            log.warning("no memory outlives this node's Ray: %s", error)
            return self
        Thread(target=self._server.serve_forever, name="fd_store", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            private_dir.remove(self._path.parent)
        self._replace({})

    def save(self, directory: Path, node: str) -> None:
        """Write the segments to `directory`/OWNER, which all nodes share.

        If that fails, it logs a warning, and the segments are lost with this process.
        """
        with self._changing:
            held = dict(self._held)
            for owner, deposited in held.items():
                try:
                    _write(deposited, directory / owner, node)
                except OSError as error:
                    log.warning("what this node holds in memory is lost: %s", error)
                else:
                    log.info("what this node holds in memory is written to %s", directory)

    def take(self, owner: str, deposited: Deposit) -> None:
        """Replace the segments of all owners: one run at a time has a node."""
        self._replace({owner: deposited} if deposited.descriptors else {})

    def copy(self, owner: str) -> Deposit:
        """Return the owner's segments, with duplicated descriptors."""
        with self._changing:
            found = self._held.get(owner, Deposit())
            return replace(found, descriptors=tuple(os.dup(number) for number in found.descriptors))

    def _replace(self, held: dict[str, Deposit]) -> None:
        with self._changing:
            before, self._held = self._held, held
        for deposited in before.values():
            deposited.close()


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, store: FdStore) -> None:
        super().__init__(path, _Handler)
        self.store = store


class _Handler(BaseRequestHandler):
    request: socket.socket
    server: _Server

    def handle(self) -> None:
        """Answer one request. A request that is incomplete changes nothing."""
        self.request.settimeout(PATIENCE_SECONDS)
        with suppress(OSError, ValueError):
            words, descriptors = _received(self.request)
            head, _, label = words.partition(b"\n")
            try:
                asked = json.loads(head)
            except ValueError:
                Deposit(descriptors=descriptors).close()
                raise
            if "owner" in asked:
                deposited = Deposit(label, tuple(asked["names"]), descriptors)
                self.server.store.take(asked["owner"], deposited)
                self.request.sendall(b".")
                return
            found = self.server.store.copy(asked["asked for"])
            try:
                _send(self.request, found.label, found.descriptors)
            finally:
                found.close()


def _asked(
    path: str, question: Mapping[str, object], label: bytes = b"", descriptors: Sequence[int] = ()
) -> socket.socket:
    """Send a request. Return the connection that the answer arrives on."""
    private_dir.check(Path(path).parent)  # else another user may answer
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(path)
        _send(connection, json.dumps(question).encode() + b"\n" + label, descriptors)
    except BaseException:
        connection.close()
        raise
    return connection


def _send(to: socket.socket, words: bytes, descriptors: Sequence[int]) -> None:
    """Send a whole message. The descriptors are sent with its first bytes."""
    if len(descriptors) > MOST_DESCRIPTORS:
        raise OSError(
            f"{len(descriptors)} segments, but the store takes at most {MOST_DESCRIPTORS}"
        )
    first = socket.send_fds(to, [words[:CHUNK_BYTES]], list(descriptors)) if words else 0
    to.sendall(words[first:])
    to.shutdown(socket.SHUT_WR)


def _received(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """Return the whole message of the other side, and its descriptors.

    Raises OSError, and then leaves no descriptor open.
    """
    first, descriptors, _, _ = socket.recv_fds(connection, CHUNK_BYTES, MOST_DESCRIPTORS)
    words = [first]
    try:
        while more := connection.recv(CHUNK_BYTES) if words[-1] else b"":
            words.append(more)
    except BaseException:
        Deposit(descriptors=tuple(descriptors)).close()
        raise
    return b"".join(words), tuple(descriptors)


def _write(deposited: Deposit, directory: Path, node: str) -> None:
    """Write the segments that the directory lacks, then the label. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, descriptor in zip(deposited.names, deposited.descriptors, strict=True):
        if not (directory / name).exists():
            with (
                mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory,
                _durable_file(directory / name) as file,
            ):
                file.write(memory)
    with _durable_file(directory / f"{node}{LABEL}") as file:  # last: all files that it names exist
        file.write(deposited.label)


@contextmanager
def _durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name once it is durable."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            os.fchmod(file.fileno(), 0o644)  # like the other files of the run
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
