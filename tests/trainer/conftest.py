from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from env.prepare.model import TinyModel, write_model
from tests.trainer.harness import Tiny

if TYPE_CHECKING:
    from tests.trainer.benches import Benches


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    root = tmp_path_factory.mktemp("tiny")
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, "0123456789+=", root / "model")
    for name, rows in (("train", range(24)), ("eval", range(24, 28))):
        lines = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in rows]
        (root / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return Tiny(root / "model", root / "train.jsonl", root / "eval.jsonl")


@pytest.fixture(scope="session")
def forgetful(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model with dropout, so that training draws random numbers of its own."""
    model = tmp_path_factory.mktemp("forgetful") / "model"
    shutil.copytree(tiny.model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.3}))
    return replace(tiny, model=model)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    from tests.trainer import benches

    yield from benches.started()
