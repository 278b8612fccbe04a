"""Checkpoints that are whole as far as their files tell, as transformers' Trainer names them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.support.model_files import write_files


def torch_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:  # the format of torch.save
        archive.writestr("data.pkl", b"x" * 100)


def checkpoint(output: Path, step: int) -> Path:
    path = write_files(output / f"checkpoint-{step}")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        torch_file(path / name)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path
