"""Files between a node and the head's run directory. The file store is called in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contract.files.child_variables import NODE_DIR
from contract.journal import attempt_number
from contract.manifest import WrittenFile, write_manifest
from contract.progress import Phase, PhaseFile
from tests.support.tiny_run import Tiny
from tests.support.waiting import eventually
from trainer.checkpoint import (
    file_stream,
    head_file_store,
    head_files,
    head_state,
    restore_progress,
    state,
    tensor_parts,
)
from trainer.checkpoint.protocol import HeadDirectory
from trainer.checkpoint.state import State
from trainer.cluster import tcp_stream
from trainer.cluster.tcp_stream import StreamSource
from trainer.types import Rank, TrainingError, UnknownShardError

CONTENT = bytes(range(256)) * 5000


class Store:
    """Calls the methods of a FileStore as Ray's handle does."""

    def __init__(self) -> None:
        self.inner = head_file_store.FileStore()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Callable[[], Any]:
            self.calls.append(name)
            return lambda: getattr(self.inner, name)(*arguments)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    for module in (head_files, head_state, restore_progress):
        monkeypatch.setattr(module, "answer", lambda call: call())
    monkeypatch.setattr(head_file_store, "node", lambda: "here")
    for module in (file_stream, head_state):
        monkeypatch.setattr(module, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(file_stream, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv(tcp_stream.ADDRESS, "127.0.0.1")
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
    assert [path.name for path in own.rglob("*") if path.is_file()] == [head_files.TURN]


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


def test_a_model_is_replaced_and_what_else_is_in_its_directory_stays(
    store: Store, own: Path, step: Path
) -> None:
    exported = HeadDirectory(step / "hf", store, "the head")
    for names in (["model-1.safetensors", "both"], ["model.safetensors", "both"]):
        with head_files.writing(exported) as out:
            out.send([write(out, name, name.encode()) for name in names], replace=True)
        (step / "hf" / "ckpt").mkdir(exist_ok=True)
    names = sorted(path.name for path in (step / "hf").iterdir())
    assert names == ["both", "ckpt", "model.safetensors"]
    assert [path.name for path in step.iterdir()] == ["hf"]
    store.inner.replace(step / "hf")  # Ray may repeat a call
    assert (step / "hf" / "both").read_bytes() == b"both"


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
        served = store.calls.count("serve")
        with head_files.reading(directory, wanted) as second:
            assert first == second
            assert store.calls.count("serve") == served
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
    assert not list(own.rglob("*.part"))


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
        patch.setattr(head_files, "_delete_unused", lambda _: None)  # as if the reader were killed
        checkpoint(step)
        with head_files.reading(directory, lambda name: name == "critic.pt"):
            pass
    store.inner.end_serving()
    content = (step / "critic.pt").read_bytes()[::-1]
    (step / "critic.pt").write_bytes(content)
    write_manifest(step, 3)
    with head_files.reading(directory, lambda name: name == "critic.pt") as place:
        assert (place / "critic.pt").read_bytes() == content


def test_scratch_of_killed_processes_is_deleted_and_that_of_living_ones_stays(
    store: Store, own: Path, step: Path
) -> None:
    checkpoint(step)
    directory = HeadDirectory(step, store, "the head")
    scratch = own / ".scratch"
    for name in ("write-1", "read-2"):
        (scratch / name / "files").mkdir(parents=True)
        (scratch / name / head_files.HELD).touch()
        (scratch / name / "files" / "policy.pt").write_bytes(CONTENT)
    with (
        head_files.reading(directory, lambda name: name == "critic.pt") as copy,
        head_files.writing(directory) as out,
        head_files.writing(directory) as other,
    ):
        assert (copy / "critic.pt").exists()
        assert out.path.exists()
        assert other.path.exists()
        assert len([*scratch.glob("write-*")]) == 2
        assert [path.name for path in scratch.glob("read-*")] == [copy.parent.name]
    assert not [path for path in scratch.iterdir() if path.is_dir()]


def test_the_store_lets_go_of_the_files_that_it_has_served(
    store: Store, own: Path, step: Path
) -> None:
    checkpoint(step)
    with head_files.reading(HeadDirectory(step, store, "the head"), lambda name: True):
        pass
    sizes = sum(path.stat().st_size for path in step.iterdir() if path.name != "MANIFEST.json")
    eventually(lambda: store.inner.sent() == sizes)  # the server counts after the last byte
    store.inner.end_serving()
    assert store.inner.sent() == sizes
    assert store.inner._served == {}


def saved_by(step: Path, ranks: int, *, in_pieces: bool = False) -> State:
    """Write what `ranks` ranks do, whole tensors or a piece of each. Returns the whole of it."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"layer.{n}": torch.randn(n + 1, 7, generator=generator).bfloat16() for n in range(6)
    }
    adam = {
        name: {
            "step": torch.tensor(3.0),
            **{key: torch.randn(tensor.shape, generator=generator) for key in state.MOMENTS},
        }
        for name, tensor in tensors.items()
    }
    whole = State(model=tensors, adam=adam, scheduler={"base_lrs": [0.5]})
    for index in range(ranks):
        rank = Rank(index, ranks)
        mine = state.share(tensors, rank)
        part = State(
            model={name: tensors[name] for name in mine},
            adam={name: adam[name] for name in mine},
            scheduler=whole.scheduler,
        )
        state.save(step, "policy", _pieces(whole, rank) if in_pieces else part, rank)
    write_manifest(step, 3)
    return whole


def _pieces(whole: State, rank: Rank) -> State:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor_split(tensor.flatten(), rank.world)[rank.index].clone()

    def start(tensor: torch.Tensor) -> int:
        pieces = torch.tensor_split(tensor.flatten(), rank.world)
        return sum(piece.numel() for piece in pieces[: rank.index])

    return State(
        model={name: cut(tensor) for name, tensor in whole.model.items()},
        adam={
            name: {key: cut(one) if one.dim() else one for key, one in held.items()}
            for name, held in whole.adam.items()
        },
        scheduler=whole.scheduler,
        pieces={name: (start(one), tuple(one.shape)) for name, one in whole.model.items()},
    )


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_rank_reads_parts_of_tensors_and_nothing_else(
    store: Store, own: Path, step: Path, in_pieces: bool
) -> None:
    whole = saved_by(step, 3, in_pieces=in_pieces)
    directory = HeadDirectory(step, store, "the head")
    with head_state.opened(directory, "policy") as found:
        found.check_fits(whole.model)
        assert found.scheduler == whole.scheduler
        assert store.inner.sent() == 0
        for name, tensor in whole.model.items():
            assert float(found.adam[name]["step"]) == 3.0
            start, size = tensor.numel() // 3, tensor.numel() // 2
            part = tensor_parts.part_of(found.model[name], start, size)
            assert torch.equal(part, tensor.flatten()[start : start + size])
            moment = whole.adam[name]["exp_avg"]
            assert torch.equal(tensor_parts.whole_of(found.adam[name]["exp_avg"]), moment)
        assert tensor_parts.part_of(found.model["layer.0"], 7, 0).shape == (0,)
    half = sum(tensor.numel() // 2 * 2 for tensor in whole.model.values())
    moments = sum(tensor.numel() * 4 for tensor in whole.model.values())
    # The server counts a part after the last of its bytes has arrived.
    eventually(lambda: store.inner.sent() == half + moments)
    assert not own.exists(), "nothing was written on this node"


def test_a_shard_of_another_version_is_named(store: Store, own: Path, step: Path) -> None:
    saved_by(step, 1)
    content = torch.load(step / "policy.pt", weights_only=True)
    torch.save(content | {"later": {}}, step / "policy.pt")
    write_manifest(step, 3)
    directory = HeadDirectory(step, store, "the head")
    with (
        pytest.raises(UnknownShardError, match=f"{step / 'policy.pt'} has the part 'later'"),
        head_state.opened(directory, "policy"),
    ):
        pass


def test_values_that_were_not_fetched_are_an_error_and_no_zeros(
    store: Store, own: Path, step: Path
) -> None:
    saved_by(step, 1)
    directory = HeadDirectory(step, store, "the head")
    with head_state.opened(directory, "policy") as found, pytest.raises(NotImplementedError):
        torch.zeros(1, 7).copy_(found.model["layer.0"])


def test_a_part_that_arrives_damaged_is_an_error(
    store: Store, own: Path, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_by(step, 1)
    monkeypatch.setattr(store.inner, "digest", lambda *_: "another")
    directory = HeadDirectory(step, store, "the head")
    with (
        head_state.opened(directory, "policy") as found,
        pytest.raises(OSError, match="the checksum of what arrived differs"),
    ):
        tensor_parts.whole_of(found.model["layer.0"])


def test_a_stream_that_breaks_begins_again(
    store: Store, own: Path, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(step)
    read, broken = tcp_stream.Reader.read, []

    def breaks(reader: tcp_stream.Reader, source: Any, offset: int, target: memoryview) -> None:
        if offset and offset not in broken:
            broken.append(offset)
            reader.close()
            raise TrainingError("it broke") from ConnectionError("reset")
        read(reader, source, offset, target)

    monkeypatch.setattr(tcp_stream.Reader, "read", breaks)
    directory = HeadDirectory(step, store, "the head")
    with head_files.reading(directory, lambda name: name == "critic.pt") as copy:
        assert (copy / "critic.pt").read_bytes() == (step / "critic.pt").read_bytes()
    assert broken


def test_a_restore_writes_signs_of_life_and_lines_while_bytes_are_read(
    store: Store, step: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = tiny.config(step.parent)
    sent, reported = [0, 0, 5_000_000_000], Event()
    monkeypatch.setattr(restore_progress, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(store.inner, "sent", lambda: sent.pop(0) if len(sent) > 1 else sent[0])
    write = PhaseFile.write

    def written(file: PhaseFile, phase: Phase) -> None:
        write(file, phase)
        reported.set()

    monkeypatch.setattr(PhaseFile, "write", written)
    with restore_progress.reported(config, HeadDirectory(step, store, "the head"), 3):
        assert reported.wait(60)
    assert Phase.read(config.files.phase) == Phase(attempt_number(), 3, "restore", 5_000_000_000)
    assert "other nodes have read 5.0 GB" in capsys.readouterr().out
    assert store.calls[-1] == "end_serving"
