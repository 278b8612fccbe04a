"""Models as Hugging Face directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from tests.support.tiny_run import Tiny
from trainer.models import hf_export
from trainer.models.loading import load_causal_lm

FILE = "generation_config.json"


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.9, "top_p": 0.6}, {"do_sample": True, "temperature": 0.9}, {}],
    ids=["sampling without do_sample", "sampling", "neither"],
)
def test_a_generation_config_is_exported_as_the_base_model_had_it(
    tiny: Tiny, tmp_path: Path, sampling: dict[str, object]
) -> None:
    base, exported = tmp_path / "base", tmp_path / "exported"
    shutil.copytree(tiny.model, base)
    had = {"eos_token_id": 1, **sampling}
    (base / FILE).write_text(json.dumps(had))
    model = load_causal_lm(str(base), torch.float32)
    for _ in range(2):
        hf_export.write(model, AutoTokenizer.from_pretrained(base), exported)
    came = json.loads((exported / FILE).read_text())
    assert {name: came.get(name) for name in ("do_sample", "temperature", "top_p")} == {
        name: had.get(name) for name in ("do_sample", "temperature", "top_p")
    }
    assert GenerationConfig.from_pretrained(exported).eos_token_id == 1
    assert load_causal_lm(str(exported), torch.float32).generation_config.top_p == had.get("top_p")


def test_a_model_is_written_beside_what_else_is_in_its_directory(
    tiny: Tiny, tmp_path: Path
) -> None:
    exported = tmp_path / "exported"
    kept = exported / "ckpt" / "global_step_3" / "policy.pt"
    kept.parent.mkdir(parents=True)
    kept.write_text("a checkpoint")
    for name in ("notes.txt", "model-00001-of-00002.safetensors", "pytorch_model.bin"):
        (exported / name).write_text("old")
    (tmp_path / "link").symlink_to(exported)
    model = load_causal_lm(str(tiny.model), torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    files = hf_export.write(model, tokenizer, tmp_path / "link")
    assert kept.read_text() == "a checkpoint"
    names = {path.name for path in exported.iterdir()}
    assert names == {"ckpt", "notes.txt", *(file.name for file in files)}
    assert "model.safetensors" in names
    assert load_causal_lm(str(exported), torch.float32).config.model_type == model.config.model_type
