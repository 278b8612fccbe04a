"""What the files of a model say before it is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.lfs_pointer import POINTER
from tests.support.tiny_run import Tiny
from trainer.config import model_files


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer.model"])
def test_a_pointer_of_git_lfs_is_named(tiny: Tiny, tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    assert [*model_files.faults(model, tokenizer=True)] == []
    (model / name).write_text(POINTER)
    (fault,) = model_files.faults(model, tokenizer=True)
    assert fault.startswith(f"{model / name} is a Git LFS pointer")
    assert "git lfs pull" in fault
