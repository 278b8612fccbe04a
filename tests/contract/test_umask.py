"""Files of a run have their modes, whatever umask a user's function sets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from contract.files import umask
from contract.files.append import append_line
from contract.manifest import WrittenFile
from contract.progress import Phase, PhaseFile
from contract.run_dir import write_atomically
from env.types import RewardRequest, Score
from tests.support.tiny_run import GRPO, Tiny, share_of, train
from trainer.checkpoint import head_files
from trainer.checkpoint.head_file_store import FileStore
from trainer.models import hf_export
from trainer.models.loading import load_causal_lm
from trainer.rollout.rewards import TimedReward


@pytest.fixture
def mode(tmp_path: Path) -> Iterator[int]:
    """The mode that a file of the run gets without a user's function."""
    append_line(tmp_path / "before", b"")
    yield (tmp_path / "before").stat().st_mode
    umask.restore()


@pytest.mark.parametrize("own", [0o777, 0o077, 0])
def test_files_that_are_written_under_another_umask(tmp_path: Path, mode: int, own: int) -> None:
    written = {name: tmp_path / name for name in ("lines", "text", "phase")}
    os.umask(own)
    append_line(written["lines"], b"{}")
    os.umask(own)
    write_atomically(written["text"], "{}")
    os.umask(own)
    PhaseFile(written["phase"]).write(Phase(1, 1, "step"))
    assert {path.stat().st_mode for path in written.values()} == {mode}


@pytest.mark.parametrize("own", [0o777, 0o077])
def test_files_that_ranks_write_under_another_umask(
    tiny: Tiny, tmp_path: Path, mode: int, own: int
) -> None:
    folder = tmp_path.stat().st_mode | 0o055
    model = load_causal_lm(str(tiny.model), torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    os.umask(own)
    hf_export.write(model, tokenizer, tmp_path / "hf")
    os.umask(own)
    with head_files.writing(tmp_path / "hf") as out:
        (out.path / "policy.pt").write_bytes(b"")
    os.umask(own)
    empty = WrittenFile("critic.pt", 0, hashlib.sha256().hexdigest())
    FileStore().receive(tmp_path / "step" / "critic.pt", empty, None)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert {path.stat().st_mode for path in files} == {mode}
    assert {(tmp_path / name).stat().st_mode for name in ("hf", "step")} == {folder}


def test_a_reward_function_leaves_the_umask_as_it_was(mode: int) -> None:
    before = umask.current()

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        os.umask(0o777)
        if not requests[0].prompt:
            raise ValueError("no prompt")
        return []

    timed = TimedReward(reward)
    timed([RewardRequest("ab", "a")])
    assert umask.current() == before
    with pytest.raises(ValueError, match="no prompt"):
        timed([RewardRequest("", "")])
    assert umask.current() == before


@pytest.mark.parametrize("status", ["Name:\tpython\n", None])
def test_a_system_that_does_not_show_the_umask_is_asked_for_it(
    tmp_path: Path, mode: int, status: str | None
) -> None:
    """As gVisor, and macOS, which has no /proc."""
    if status is not None:
        (tmp_path / "status").write_text(status)
    os.umask(0o027)
    assert [umask.current(tmp_path / "status") for _ in range(2)] == [0o027, 0o027]
    assert umask.current() == 0o027


def test_a_run_whose_reward_function_sets_a_umask(tiny: Tiny, run_dir: Path, mode: int) -> None:
    def reward(requests):  # type: ignore[no-untyped-def]
        os.umask(0o777)
        return share_of("1")(requests)

    train(tiny.config(run_dir, max_steps=2, save_steps=1, **GRPO), reward)
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    unreadable = [path for path in files if not path.stat().st_mode & 0o400]
    assert unreadable == []
    folders = [path for path in run_dir.rglob("*") if path.is_dir()]
    assert [path for path in folders if not path.stat().st_mode & 0o500] == []
