"""Memory that outlives the Ray of its node, in the custody of the node's entrypoint.

What a holder of snapshots has is anonymous memory, which the kernel frees when nobody has it open
any more; and Ray ends its actors when it ends, as where its head is lost. So a holder deposits the
descriptors of its segments with the process that started this node's Ray and starts the next one
(SCM_RIGHTS, unix(7)), and the holder of the next Ray withdraws them. No byte is copied.

Where that process ends as well, it writes what it has to files. A trainer that has ended in its own
time has left nothing there: all of it was on disk. Torch-free.
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

from contract import private_dir

log = logging.getLogger(__name__)

VARIABLE = "ROLLCALL_CUSTODY"
"""Where the custodian of this node is asked: a socket's path."""
PATIENCE_SECONDS = 2.0
"""For the custodian, which may be stopped: training does not wait for it."""
MOST_DESCRIPTORS = 253
"""In one message: SCM_MAX_FD of Linux."""
CHUNK_BYTES = 1 << 16
LABEL = ".label"
"""Ends the name of the file that says what a node has written."""


@dataclass(frozen=True, slots=True)
class Deposit:
    """Segments, and what their owner says of them."""

    label: bytes = b""
    names: tuple[str, ...] = ()
    """Of each segment. On another node the same name means the same content."""
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def deposit(owner: str, label: bytes, segments: Mapping[str, int]) -> None:
    """Replace whatever is in custody on this node. Nothing happens where there is no custodian.

    `segments`: name → descriptor. Raises OSError where there is no answer, or for more than
    MOST_DESCRIPTORS.
    """
    if path := os.environ.get(VARIABLE):
        head = {"owner": owner, "names": list(segments)}
        with _asked(path, head, label, list(segments.values())) as answers:
            if answers.recv(1) != b".":
                raise OSError(f"{path} does not take what is to be kept")


def withdraw(owner: str) -> Deposit:
    """What is in custody of this owner's, which stays there; the descriptors are the caller's.

    Empty where there is no such, or no custodian. Raises OSError where it does not answer.
    """
    path = os.environ.get(VARIABLE)
    if not path or not Path(path).exists():
        return Deposit()
    with _asked(path, {"asked for": owner}) as answers:
        label, descriptors = _received(answers)
        return Deposit(label, descriptors=descriptors)


def environment(path: Path) -> Mapping[str, str]:
    """What the node's Ray is to have."""
    return {VARIABLE: str(path)}


class Custody:
    """The custodian, from the start of a `with` block to its end, when all that it has is freed.

    Where it cannot be, that is said in the log, and a lost Ray takes its node's memory along.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[str, Deposit] = {}
        self._changing = Lock()
        self._server: _Server | None = None

    def __enter__(self) -> Custody:
        try:
            private_dir.make(self._path.parent)
            self._path.unlink(missing_ok=True)  # of an earlier life
            self._server = _Server(str(self._path), self)
        except OSError as error:
            log.warning("no memory outlives this node's Ray: %s", error)
            return self
        Thread(target=self._server.serve_forever, name="custody", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            private_dir.remove(self._path.parent)
        self._replace({})

    def save(self, directory: Path, node: str) -> None:
        """Write what is held below `directory`, which other nodes share, under the owner's name.

        Where that fails it is said in the log, and the memory is lost with this process.
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
        """One run at a time has a node: what others have left is let go."""
        self._replace({owner: deposited} if deposited.descriptors else {})

    def copy(self, owner: str) -> Deposit:
        """With descriptors of its own."""
        with self._changing:
            found = self._held.get(owner, Deposit())
            return replace(found, descriptors=tuple(os.dup(one) for one in found.descriptors))

    def _replace(self, held: dict[str, Deposit]) -> None:
        with self._changing:
            before, self._held = self._held, held
        for one in before.values():
            one.close()


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, custody: Custody) -> None:
        super().__init__(path, _Handler)
        self.custody = custody


class _Handler(BaseRequestHandler):
    request: socket.socket
    server: _Server

    def handle(self) -> None:
        """A client that ends in the middle of its words has said nothing."""
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
                self.server.custody.take(asked["owner"], deposited)
                self.request.sendall(b".")
                return
            found = self.server.custody.copy(asked["asked for"])
            try:
                _send(self.request, found.label, found.descriptors)
            finally:
                found.close()


def _asked(
    path: str, question: Mapping[str, object], label: bytes = b"", descriptors: Sequence[int] = ()
) -> socket.socket:
    """The connection on which the answer comes."""
    private_dir.check(Path(path).parent)  # else another user may be who answers
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
    """All that this side has to say. Descriptors travel with the first of the words."""
    if len(descriptors) > MOST_DESCRIPTORS:
        raise OSError(f"{len(descriptors)} segments, and {MOST_DESCRIPTORS} can be handed over")
    first = socket.send_fds(to, [words[:CHUNK_BYTES]], list(descriptors)) if words else 0
    to.sendall(words[first:])
    to.shutdown(socket.SHUT_WR)


def _received(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """All that the other side says, and the descriptors that it sends. Raises OSError; no
    descriptor is left open then."""
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
    """What lies there under its name already is not written again. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, descriptor in zip(deposited.names, deposited.descriptors, strict=True):
        if not (directory / name).exists():
            with (
                mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory,
                _whole_or_not(directory / name) as file,
            ):
                file.write(memory)
    with _whole_or_not(directory / f"{node}{LABEL}") as file:  # last: what it names is there
        file.write(deposited.label)


@contextmanager
def _whole_or_not(path: Path) -> Iterator[IO[bytes]]:
    """A file that has its name once it is durable."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            os.fchmod(file.fileno(), 0o644)  # as of any file of the run
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
