"""What another user of the head's machine tries, as the programs of a policy could.

Each attack runs as `nobody`, in processes of their own.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from entrypoint.processes.inbox import FILE_POLL_SECONDS
from tests.cluster.attacks.target import Head
from tests.support.node_cluster import HEAD, Cluster
from tests.support.other_user import as_nobody

CANARY = "canary-8d1f0c5e7a"
"""A value of the job's own variables, which its machines' other users must not learn."""
CANARY_VARIABLE = "HARMLESS_NAME"
"""No mask recognises it: it has to be kept from others' eyes by modes alone."""
WHILE_IT_STARTS = "--serialized-runtime-env-context="
"""With which Ray starts a worker. What stands in for a fork, in the tests' Python, keeps it."""


def swap_working_directories(head: Head) -> Iterator[str]:
    """Another directory in the place of those from which Ray starts the next job's programs."""
    for directory in sorted(rays(head).glob("session_2*/runtime_resources/working_dir_files")):
        away = directory.with_name("away")

        def attack(directory: Path = directory, away: Path = away) -> None:
            directory.rename(away)
            directory.mkdir()
            (directory / "p.py").write_text("print('planted')")

        if not as_nobody(attack):
            yield f"another user's files lie in {directory}"
            (directory / "p.py").unlink()
            directory.rmdir()
            away.rename(directory)


def link_drivers_log(head: Head) -> Iterator[str]:
    """A link to a file of the head's user, where Ray opens the next driver's output."""
    for logs in sorted(rays(head).glob("session_2*/logs")):
        log = logs / "job-driver-run-99.log"
        if not as_nobody(lambda log=log: log.symlink_to(head.cluster.run.token)):  # type: ignore[misc]
            yield f"another user's link is {log}"
            log.unlink()


def read_logs(head: Head) -> Iterator[str]:
    """Files of Ray that another user reads, or that have the job's variables."""
    for file in sorted(rays(head).parent.rglob("*")):
        if file.is_file() and as_nobody(file.read_bytes) == "":
            yield f"another user reads {file}"
        if file.is_file() and CANARY.encode() in file.read_bytes():
            yield f"the job's variables are in {file}"


def speak_to_daemons(head: Head) -> Iterator[str]:
    """Sockets of Ray's daemons."""

    def connect(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as mine:
            mine.connect(str(path))

    for path in sorted(rays(head).glob("session_2*/sockets/*")):
        if not as_nobody(lambda path=path: connect(path)):  # type: ignore[misc]
            yield f"another user is connected to {path}"


def command_lines(head: Head) -> Iterator[str]:
    """Arguments, which every user sees: all but those of which SECURITY.md says it."""
    for process in [head.process, *head.cluster.processes(HEAD)]:
        try:
            line = process.cmdline()
        except psutil.Error:
            continue  # it has ended
        words = " ".join(word for word in line if not word.startswith(WHILE_IT_STARTS))
        for what, secret in (("the token", head.token), ("a job's variable", CANARY)):
            if secret in words:
                yield f"{what} is an argument of {words[:80]}"


def preempt(head: Head) -> Iterator[str]:
    """The file that tells a head that its machine will be taken away."""
    path = Path(head.cluster.environment(HEAD)["ROLLCALL_PREEMPT_FILE"])
    as_nobody(path.touch)
    time.sleep(3 * FILE_POLL_SECONDS)
    try:
        head.cluster.goes_on(within=30)
    except AssertionError:
        yield f"another user's file {path} stops the head"
    finally:
        path.unlink(missing_ok=True)


def rays(head: Head) -> Path:
    """Ray's tree on the head, wherever the head has put it: its daemon says where."""
    for process in head.cluster.processes(HEAD):
        for word in process.cmdline():
            if word.startswith("--raylet_socket_name="):
                return Path(word.partition("=")[2]).parents[2]
    raise AssertionError("no daemon of Ray says where its files are")


def preempt_file(cluster: Cluster) -> Path:
    """A file in a directory in which every user may make files."""
    return Path("/tmp") / f"rollcall-notice-{os.getpid()}-{cluster.layout.ports}"


ATTACKS: tuple[Callable[[Head], Iterator[str]], ...] = (
    swap_working_directories,
    link_drivers_log,
    read_logs,
    speak_to_daemons,
    command_lines,
    preempt,
)
