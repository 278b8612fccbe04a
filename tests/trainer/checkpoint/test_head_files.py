"""Files between a node and the head's run directory. The file store is called in this process."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contract.manifest import WrittenFile, write_manifest
from contract.run_dir import NODE_DIR
from trainer.checkpoint import head_files, state
from trainer.checkpoint.protocol import HeadDirectory
from trainer.cluster.tcp_stream import StreamSource

CONTENT = bytes(range(256)) * 5000


class Store:
    """Calls the methods of a FileStore as Ray's handle does."""

    def __init__(self) -> None:
        self.inner = head_files.FileStore()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Callable[[], Any]:
            self.calls.append(name)
            return lambda: getattr(self.inner, name)(*arguments)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(head_files, "_answer", lambda call: call())
    monkeypatch.setattr(head_files, "_node", lambda: "here")
    monkeypatch.setattr(head_files, "PIECE_BYTES", 100_000)
    return Store()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This node's own directory."""
    monkeypatch.setenv(NODE_DIR, str(tmp_path / "own"))
    return tmp_path / "own"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    directory = tmp_path / "run" / "global_step_3"
    directory.mkdir(parents=True)
    return directory


def write(out: head_files.Outbox, name: str, content: bytes) -> WrittenFile:
    (out.path / name).write_bytes(content)
    return WrittenFile(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("directory", [Path, lambda path: HeadDirectory(path, None, "here")])
def test_a_process_that_has_the_directory_uses_it(
    store: Store, step: Path, directory: Callable[[Path], Path | HeadDirectory]
) -> None:
    with head_files.writing(directory(step)) as out:
        assert out.path == step
        out.send([write(out, "policy.pt", CONTENT)])
    with head_files.reading(directory(step), lambda name: True) as place:
        assert place == step


def test_files_of_another_node_arrive_by_a_stream_and_nothing_is_left_there(
    store: Store, own: Path, step: Path
) -> None:
    with head_files.writing(HeadDirectory(step, store, "the head")) as out:
        assert out.path.is_relative_to(own)
        out.send([write(out, "policy.pt", CONTENT), write(out, "empty", b"")])
        write(out, "not sent", b"x")
    assert {path.name: path.read_bytes() for path in step.iterdir()} == {
        "policy.pt": CONTENT,
        "empty": b"",
    }
    assert not [path for path in own.rglob("*") if path.is_file()]


def test_other_bytes_than_were_written_are_an_error(store: Store, own: Path, step: Path) -> None:
    with head_files.writing(HeadDirectory(step, store, "the head")) as out:
        file = write(out, "policy.pt", CONTENT)
        (out.path / "policy.pt").write_bytes(CONTENT[:-1] + b"?")
        with pytest.raises(OSError, match="other bytes arrived than were sent"):
            out.send([file])


def test_a_stream_that_breaks_is_an_error_about_the_file(store: Store, step: Path) -> None:
    gone = StreamSource("127.0.0.1", 1, b"")
    with pytest.raises(OSError, match="it did not come from its node") as error:
        store.inner.receive(step / "policy.pt", WrittenFile("policy.pt", 5, "x"), gone)
    assert error.value.filename == str(step / "policy.pt")


def test_a_directory_is_replaced_as_a_whole(store: Store, own: Path, step: Path) -> None:
    exported = HeadDirectory(step / "hf", store, "the head")
    for names in (["old", "both"], ["new", "both"]):
        with head_files.writing(exported) as out:
            out.send([write(out, name, name.encode()) for name in names], replace=True)
    assert sorted(path.name for path in (step / "hf").iterdir()) == ["both", "new"]
    assert [path.name for path in step.iterdir()] == ["hf"]
    store.inner.replace(step / "hf")  # Ray may repeat a call
    assert (step / "hf").exists()


def checkpoint(step: Path) -> None:
    for name in ("policy-0-of-2.pt", "policy-1-of-2.pt", "critic.pt", "run.json"):
        (step / name).write_bytes(name.encode() * 50_000)
    write_manifest(step, 3)


def test_the_files_of_one_role_are_fetched_once_for_all_processes_of_a_node(
    store: Store, own: Path, step: Path
) -> None:
    checkpoint(step)
    directory = HeadDirectory(step, store, "the head")

    def wanted(name: str) -> bool:
        return state.is_of("policy", name)

    with head_files.reading(directory, wanted) as first:
        pieces = store.calls.count("piece")
        with head_files.reading(directory, wanted) as second:
            assert first == second
            assert store.calls.count("piece") == pieces
        for name in ("policy-0-of-2.pt", "policy-1-of-2.pt"):
            assert (first / name).read_bytes() == (step / name).read_bytes()
        assert not (first / "critic.pt").exists()
    assert not list(own.rglob("*.pt"))


def test_a_file_that_arrives_damaged_is_an_error(store: Store, own: Path, step: Path) -> None:
    checkpoint(step)
    content = (step / "critic.pt").read_bytes()
    (step / "critic.pt").write_bytes(content[:-1] + b"?")
    directory = HeadDirectory(step, store, "the head")
    with (
        pytest.raises(OSError, match="the checksum of what arrived differs"),
        head_files.reading(directory, lambda name: name == "critic.pt"),
    ):
        pass


def test_a_checkpoint_without_a_whole_manifest_cannot_be_read(
    store: Store, own: Path, step: Path
) -> None:
    directory = HeadDirectory(step, store, "the head")
    with pytest.raises(FileNotFoundError), head_files.reading(directory, lambda name: True):
        pass
    (step / "MANIFEST.json").write_text("{")
    with (
        pytest.raises(OSError, match="its manifest is damaged"),
        head_files.reading(directory, lambda name: True),
    ):
        pass


def test_a_checkpoint_that_was_written_again_is_fetched_again(
    store: Store, own: Path, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = HeadDirectory(step, store, "the head")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if the reader were killed
        checkpoint(step)
        with head_files.reading(directory, lambda name: name == "critic.pt"):
            pass
    content = (step / "critic.pt").read_bytes()[::-1]
    (step / "critic.pt").write_bytes(content)
    write_manifest(step, 3)
    with head_files.reading(directory, lambda name: name == "critic.pt") as place:
        assert (place / "critic.pt").read_bytes() == content
