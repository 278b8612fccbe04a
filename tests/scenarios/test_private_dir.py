"""Another user of the machine tries to put programs and sockets in the place of a node's own."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.files import fd_store, private_dir
from contract.files.fd_store import FdStore
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node import ray_node
from tests.support.other_user import as_nobody
from tests.support.repository import ROOT


@pytest.fixture
def rays() -> Iterator[Path]:
    """Ray's temporary directory, with the mode that Ray gives it."""
    directory = Path(tempfile.mkdtemp(prefix="ray-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def settings(rays: Path, tmp_path: Path) -> Iterator[Settings]:
    given = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": "victim"}
    settings = replace(read_settings(given), ray_temp_dir=rays)
    yield settings
    directory = ray_node.fd_store_path(settings).parent
    shutil.rmtree(directory, ignore_errors=True)
    if directory.parent != rays:
        shutil.rmtree(directory.parent, ignore_errors=True)


def test_a_node_s_private_files_are_this_user_s_alone_and_outside_ray_s_directory(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(settings.ray_dir))  # as TMPDIR would set it
    path = ray_node.fd_store_path(settings)
    with FdStore(path):
        for directory in (path.parent, path.parent.parent):
            assert directory.stat().st_mode & 0o777 == 0o700
            assert not directory.is_relative_to(settings.ray_dir)


def replace_directory(directory: Path) -> None:
    directory.rename(directory.with_name("away"))
    directory.mkdir()


def test_no_other_user_is_handed_the_memory_of_a_node(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ray_node.fd_store_path(settings)
    monkeypatch.setenv(fd_store.VARIABLE, str(path))
    memory = os.memfd_create("memory")
    os.write(memory, b"weights")

    def attack() -> None:
        replace_directory(path.parent)
        with socket.socket(socket.AF_UNIX) as mine:
            mine.bind(str(path))

    with FdStore(path):
        attacked = as_nobody(attack)
        fd_store.deposit("a run", b"label", {"one": memory})
        (found,) = fd_store.withdraw("a run").descriptors
        assert os.pread(found, 99, 0) == b"weights"
        assert as_nobody(lambda: list(path.parent.iterdir())).startswith("PermissionError")
        parent = path.parent.parent
        assert as_nobody(lambda: replace_directory(parent)).startswith("PermissionError")
    os.close(found)
    os.close(memory)
    assert attacked.startswith("PermissionError")
    assert not path.parent.parent.exists()


@pytest.fixture
def squatted(settings: Settings) -> Iterator[Path]:
    """Another user was there first."""
    directory = ray_node.fd_store_path(settings).parent.parent
    assert as_nobody(lambda: directory.mkdir(mode=0o777)) == ""
    yield directory
    directory.rmdir()


def test_a_directory_that_another_user_has_made_is_refused_by_name(
    settings: Settings,
    squatted: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = ray_node.fd_store_path(settings)
    monkeypatch.setenv(fd_store.VARIABLE, str(path))
    with FdStore(path):
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert f"what is in {squatted}: remove that" in caplog.messages[0]
    assert list(squatted.iterdir()) == []


def test_what_answers_in_a_directory_of_another_user_is_not_asked(
    settings: Settings, squatted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = squatted / "socket"
    monkeypatch.setenv(fd_store.VARIABLE, str(path))
    listener = socket.socket(socket.AF_UNIX)

    def listen() -> None:
        listener.bind(str(path))
        listener.listen()

    assert as_nobody(listen) == ""
    with listener, pytest.raises(PermissionError, match=f"{squatted} is another user's"):
        fd_store.withdraw("a run")
    path.unlink()


def test_a_directory_that_others_may_enter_or_a_link_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    private_dir.make(own)
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o750)
    with pytest.raises(PermissionError, match=r"own is open to other users \(mode 050\): remove"):
        private_dir.make(own)
    own.chmod(0o700)
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(PermissionError, match="link is not a directory: remove it"):
        private_dir.make(tmp_path / "link")
    own.rmdir()
    with pytest.raises(FileNotFoundError):
        private_dir.check(own)


def test_a_temporary_directory_in_which_others_can_rename_is_passed_over(
    tmp_path: Path, rays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_dir, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(rays))
    assert private_dir.of_node("a node").parent == tmp_path
    assert private_dir.of_node("a node") != private_dir.of_node("another")
    rays.chmod(0o1777)
    assert private_dir.of_node("a node").parent == rays
    monkeypatch.setattr(private_dir, "SHARED_MEMORY", rays)
    rays.chmod(0o777)
    said = f"other users can replace .*, as they may rename what is in {rays}: .* set TMPDIR"
    with pytest.raises(PermissionError, match=said):
        private_dir.make(private_dir.of_node("a node"))


POD = "pods/0c9a6f1e-8f4b-4a53-9a2b-3d1a4a2a7c11/volumes/kubernetes.io~empty-dir"
IN_POD = """
mount --bind "$1" "$2"
shift 2
exec setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"
"""
MAKE = """
import sys
from pathlib import Path
from contract.files import private_dir
try:
    private_dir.make(Path(sys.argv[1], "rollcall-1", "ray"))
except private_dir.NotPrivateError as error:
    print(error.remedy)
"""


@pytest.fixture
def volumes() -> Iterator[Path]:
    """A directory whose path every user may follow, as a machine's root has it."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        yield Path(root)


def make_in_a_mount(volumes: Path, source: str, user: int) -> str:
    """What is said in a container that has `source` of the machine, of mode 0777, as its /tmp."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("only root can mount")
    (shown := volumes / "with a space").mkdir(exist_ok=True)
    (there := volumes / source).mkdir(parents=True)
    there.chmod(0o777)
    command = ("unshare", "--mount", "bash", "-ec", IN_POD, "pod", there, shown, str(user))
    done = subprocess.run(
        [*command, sys.executable, "-c", MAKE, shown],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_an_empty_dir_of_a_pod_is_safe_for_the_only_user_in_it(volumes: Path) -> None:
    assert make_in_a_mount(volumes, f"{POD}/tmp", 1000) == ""
    made = volumes / POD / "tmp" / "rollcall-1"
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (1000, 0o700)


def test_root_sets_the_sticky_bit_of_an_empty_dir_for_it_starts_other_users(volumes: Path) -> None:
    assert make_in_a_mount(volumes, f"{POD}/tmp/below", 0) == ""
    assert (volumes / POD / "tmp" / "below").stat().st_mode & 0o7777 == 0o1777
    assert as_nobody(
        lambda: replace_directory(volumes / POD / "tmp" / "below" / "rollcall-1")
    ).startswith("PermissionError")


@pytest.mark.parametrize("user", [0, 1000])
def test_any_other_directory_without_the_sticky_bit_is_refused(volumes: Path, user: int) -> None:
    said = make_in_a_mount(volumes, "volumes/kubernetes.io~empty-dir", user)
    assert said.startswith(f"chmod +t {volumes / 'with a space'}, or set TMPDIR")
    assert list((volumes / "volumes/kubernetes.io~empty-dir").iterdir()) == []
