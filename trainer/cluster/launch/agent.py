"""The ranks of one node, as the driver sees them: an actor of Ray that has a keeper process."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from contract.files import private_dir
from contract.files.child_variables import NODE_MARK
from contract.launch.launcher_flags import PYTHON
from contract.launch.programs import Program
from contract.launch.ranks import RankProcess
from contract.redaction import MASK, SHORTEST_SECRET, cut_between, secret_texts
from trainer.cluster import gloo_interface

CHUNK_BYTES = 2**20
KILLED = -9
"""Exit code of a rank whose keeper was killed: the kernel kills the rank with it."""
KEEP_SIZE, PUNCH_HOLE = 1, 2
LIBC = ctypes.CDLL(None)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


@dataclass(frozen=True, slots=True)
class Look:
    """What is new on one node."""

    output: list[bytes]
    """New output of each process since the requested offset, secrets masked."""
    ends: list[int]
    """Of each process, the offset of what follows."""
    ended: dict[int, int] = field(default_factory=dict)
    """Process number → exit code, negative for a signal; of all that have ended."""


class NodeAgent:
    """Its calls return at once. If its process ends, the keeper kills the ranks."""

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None
        self._outputs: list[IO[bytes]] = []
        """Files without a name: they need no removal, whatever ends this process."""
        self._ends: IO[bytes] | None = None
        self._secrets: list[bytes] = []
        """Of the ranks' environment, the longest first; the head may not know them."""

    def free_port(self, host: str) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])

    def start(
        self,
        processes: Sequence[RankProcess],
        variables: Mapping[str, str],
        address: str,
        directory: str | None,
    ) -> None:
        """Start the ranks. `variables`: of all; `address`: this node's.

        `directory`: where they start; None: in the agent's own.
        """
        base = _environment(address) | dict(variables)
        self._secrets = _longest_first(secret_texts(base))
        self._outputs = [tempfile.TemporaryFile() for _ in processes]  # noqa: SIM115
        self._ends = tempfile.TemporaryFile()  # noqa: SIM115
        descriptors = [file.fileno() for file in self._outputs]
        spec = {
            "cwd": directory,
            "directory_of_node": _directory_of_node(),
            "processes": [
                (_resolved(process.argv), base | dict(process.env), output, process.only_waits)
                for process, output in zip(processes, descriptors, strict=True)
            ],
        }
        self._keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", str(Program.RANK_KEEPER)],
            stdin=subprocess.PIPE,
            stdout=self._ends,
            pass_fds=descriptors,
            env=base,
            start_new_session=True,
        )
        self._write(json.dumps(spec).encode() + b"\n")

    def look(self, offsets: Sequence[int]) -> Look:
        assert self._keeper is not None
        assert self._ends is not None
        over = self._keeper.poll() is not None
        told = os.pread(self._ends.fileno(), CHUNK_BYTES, 0).splitlines()
        ended = {row["process"]: row["code"] for row in map(json.loads, told)}
        # After the ends: then nothing of a rank that has ended is missing.
        pairs = zip(self._outputs, offsets, strict=True)
        output = [_read(file.fileno(), offset) for file, offset in pairs]
        if over:
            ended = dict.fromkeys(range(len(self._outputs)), KILLED) | ended
        whole = [
            data if number in ended and len(data) < CHUNK_BYTES else self._whole(data)
            for number, data in enumerate(output)
        ]
        ends = [offset + len(data) for offset, data in zip(offsets, whole, strict=True)]
        return Look([self._masked(data) for data in whole], ends, ended)

    def _whole(self, data: bytes) -> bytes:
        """Return the beginning of `data` that ends within no secret."""
        return data[: cut_between(data, len(data), self._secrets)]

    def _masked(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, MASK.encode())
        return data

    def stop(self) -> None:
        """Ask the ranks to save and to end."""
        self._write(b"stop\n")

    def end(self) -> None:
        """End the ranks: another one has failed."""
        self._write(b"end\n")

    def _write(self, line: bytes) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(line)
            self._keeper.stdin.flush()
        except BrokenPipeError:  # the ranks have ended
            return


def _read(descriptor: int, offset: int) -> bytes:
    """Return what follows the offset, and free the disk of what comes before, which is copied."""
    if offset:  # a file system without holes keeps it
        LIBC.fallocate(descriptor, KEEP_SIZE | PUNCH_HOLE, 0, offset)
    return os.pread(descriptor, CHUNK_BYTES, offset)


def _longest_first(secrets: Iterable[str]) -> list[bytes]:
    long_enough = (text.encode() for text in secrets if len(text) >= SHORTEST_SECRET)
    return sorted(long_enough, key=len, reverse=True)


NOT_OURS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "OMP_NUM_THREADS",  # Ray's, for a process that reserves no CPU
    }
)
"""Variables of a platform's own ranks, which accelerate's launcher would read."""


def _environment(address: str) -> dict[str, str]:
    """Return the variables of all ranks: the node's own, and gloo's interface."""
    env = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    gloo_interface.choose(env, address)
    return env


def _resolved(argv: Sequence[str]) -> list[str]:
    return [sys.executable if argv[0] == PYTHON else argv[0], *argv[1:]]


def _directory_of_node() -> str | None:
    """Return the node's private directory; None if it has none, as on a Ray that existed before."""
    mark = os.environ.get(NODE_MARK)
    directory = private_dir.of_node(mark) if mark else None
    return str(directory) if directory is not None and directory.is_dir() else None
