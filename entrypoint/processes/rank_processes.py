"""The ranks on this node, of any program with torch, and where each stands among its collectives.

A rank's process answers by itself (`contract.launch.rank_standing`). One that does not is stopped,
or holds Python's lock for long.
"""

from __future__ import annotations

import json
import socket
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from contract.launch import collectives, rank_standing
from contract.launch.collectives import Standing
from entrypoint.config.settings import Settings
from entrypoint.processes import stacks

ANSWER_SECONDS = 3.0
AT_ONCE = 32
FRESH_SECONDS = 120.0
"""Age up to which a record is one of the attempt that ends: NCCL waits longer for a timeout."""
CHUNK_BYTES, MOST_BYTES = 2**16, 2**26
RAY_TITLE = "ray::"


@dataclass(frozen=True, slots=True)
class RankProcess:
    pid: int
    title: str = ""
    """Ray's title of an actor; "" for other programs."""
    rank: int | None = None
    """None: it does not answer, and its variables do not say it."""
    world: int = 0
    meeting: str = ""
    """Where the ranks of its program have met; "" if it does not answer."""
    standing: Standing | None = None
    """None: it does not answer."""
    ended: bool = False
    """It has ended at a timeout of NCCL, and left its record."""


def of_node(settings: Settings) -> list[RankProcess]:
    """Return the processes of this node that are ranks, or do not say. It takes ANSWER_SECONDS.

    Ranks that have ended at a timeout of NCCL are among them for FRESH_SECONDS.
    """
    processes = sorted(stacks.of_the_job(settings), key=lambda one: one.pid)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda one: _asked(settings.node_mark, one), processes)
        living = [one for one in found if one is not None]
    running = {one.pid for one in processes}
    return [*living, *(one for one in _ended(settings.node_mark) if one.pid not in running)]


def _ended(mark: str) -> Iterator[RankProcess]:
    """Yield the ranks whose records NCCL's watchdog has left a moment ago."""
    for path in sorted(rank_standing.records_of(mark).glob("*-rank_*")):
        pid, _, rank = path.name.partition("-rank_")
        with suppress(OSError, ValueError):
            status = path.lstat()
            fresh = time.time() - status.st_mtime < FRESH_SECONDS
            if not fresh or not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                continue
            standing = collectives.joint([path.read_bytes()], status.st_mtime)
            world = max((len(group.ranks) for group in standing.groups.values()), default=0)
            yield RankProcess(int(pid), "", int(rank), world, "", standing, ended=True)


def _asked(mark: str, running: psutil.Process) -> RankProcess | None:
    """Return what the process says; None if it is no rank, or has no torch."""
    title = stacks.title(running).partition(" ")[2]
    title = title if title.startswith(RAY_TITLE) else ""
    try:
        told = json.loads(b"".join(_answer(mark, running.pid)))
        if not told:
            return None
        records = [record.encode() for record in told["records"]]
        standing = collectives.joint(records, told["now"], told["at"])
        return RankProcess(
            running.pid, title, told["rank"], told["world"], told["meeting"], standing
        )
    except TimeoutError:
        return _silent(running, title)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answer(mark: str, pid: int) -> Iterator[bytes]:
    """Yield the parts of an answer. Raises OSError; TimeoutError if the process does not answer."""
    deadline, left = time.monotonic() + ANSWER_SECONDS, MOST_BYTES
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_SECONDS)
        asking.connect(rank_standing.address(mark, pid))
        if not rank_standing.is_of(asking, (psutil.Process(pid).uids().real,)):
            raise OSError("another user's process has its address")
        while content := asking.recv(CHUNK_BYTES):
            yield content
            left -= len(content)
            asking.settimeout(max(0.001, deadline - time.monotonic()))
            if left < 0:
                raise OSError("the answer is too long")


def _silent(running: psutil.Process, title: str) -> RankProcess:
    """Return a process that does not answer, with the rank that its launcher gave it, if any."""
    given: dict[str, Any] = {}
    with suppress(psutil.Error, KeyError, ValueError):
        environ = running.environ()
        given = {"rank": int(environ["RANK"]), "world": int(environ["WORLD_SIZE"])}
    return RankProcess(running.pid, title, **given)
