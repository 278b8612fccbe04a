"""What another user of the head's machine tries, as the programs of a policy could.

Each attack runs as `nobody`, in processes of their own.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from entrypoint.processes.inbox import FILE_POLL_SECONDS
from tests.cluster.attack.attacks import Attack, Boundary, by
from tests.cluster.attack.targets import CANARY, Scene
from tests.support.node_cluster import HEAD
from tests.support.other_user import as_nobody


@by(Boundary.OTHER_USER)
def swap_working_directories(scene: Scene) -> Iterator[str]:
    """Another directory in the place of those from which Ray starts the next job's programs."""
    for directory in there(scene, "runtime_resources/working_dir_files"):
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


@by(Boundary.OTHER_USER)
def link_drivers_log(scene: Scene) -> Iterator[str]:
    """A link to a file of the head's user, where Ray opens the next driver's output."""
    for logs in there(scene, "logs"):
        log = logs / "job-driver-run-99.log"
        if not as_nobody(lambda log=log: log.symlink_to(scene.cluster.run.token)):  # type: ignore[misc]
            yield f"another user's link is {log}"
            log.unlink()


@by(Boundary.OTHER_USER)
def read_logs(scene: Scene) -> Iterator[str]:
    """Files of Ray that another user reads, or that have the job's variables."""
    for file in sorted(rays(scene).parent.rglob("*")):
        if file.is_file() and as_nobody(file.read_bytes) == "":
            yield f"another user reads {file}"
        if file.is_file() and CANARY.encode() in file.read_bytes():
            yield f"the job's variables are in {file}"


@by(Boundary.OTHER_USER)
def speak_to_daemons(scene: Scene) -> Iterator[str]:
    """Sockets of Ray's daemons: to speak to them, or to take their place."""

    def connect(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as mine:
            mine.connect(str(path))

    for path in there(scene, "sockets/*"):
        aside = path.with_name("aside")
        if not as_nobody(partial(connect, path)):
            yield f"another user is connected to {path}"
        if not as_nobody(partial(path.rename, aside)):
            aside.rename(path)
            yield f"another user takes the place of {path}"


@by(Boundary.OTHER_USER)
def preempt(scene: Scene) -> Iterator[str]:
    """The file that tells a head that its machine will be taken away."""
    path = Path(scene.cluster.environment(HEAD)["ROLLCALL_PREEMPT_FILE"])
    as_nobody(path.touch)
    time.sleep(3 * FILE_POLL_SECONDS)
    try:
        scene.cluster.goes_on(within=30)
    except AssertionError:
        yield f"another user's file {path} stops the head"
    finally:
        path.unlink(missing_ok=True)


def rays(scene: Scene) -> Path:
    """Ray's tree on the head, wherever the head has put it: its daemon says where."""
    words: list[str] = []
    for process in scene.cluster.processes(HEAD):
        with suppress(psutil.Error):  # it has ended
            words = process.cmdline()
        for word in words:
            if word.startswith("--raylet_socket_name="):
                return Path(word.partition("=")[2]).parents[2]
    raise AssertionError("no daemon of Ray says where its files are")


def there(scene: Scene, pattern: str) -> list[Path]:
    """Return what Ray has of its sessions; raises AssertionError if that is nothing."""
    found = sorted(rays(scene).glob(f"session_2*/{pattern}"))
    assert found, f"Ray has no {pattern}"
    return found


ATTACKS: tuple[Attack[Scene], ...] = (
    swap_working_directories,
    link_drivers_log,
    read_logs,
    speak_to_daemons,
    preempt,
)
