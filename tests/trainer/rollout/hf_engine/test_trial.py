"""An engine tries whether a model's rows depend on their neighbours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.architectures import model
from tests.support.row_differences import differences
from trainer.config import architecture
from trainer.rollout.hf_engine import trial

CPU = torch.device("cpu")


def without_positions(of: Any) -> None:
    forward = of.forward

    def blind(
        input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **given: Any
    ) -> Any:
        return forward(input_ids=input_ids, **given)

    of.forward = blind


def without_mask(of: Any) -> None:
    of.model.register_forward_pre_hook(
        lambda module, args, given: (args, {**given, "attention_mask": None}), with_kwargs=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "qwen2", "mixtral"])
def test_an_ordinary_model_passes(name: str, dtype: torch.dtype) -> None:
    assert trial.fault(model(name).to(dtype), CPU) is None


@pytest.mark.parametrize(("name", "damage"), [("gpt2", without_positions), ("llama", without_mask)])
def test_a_model_whose_rows_see_their_padding_does_not(name: str, damage: Any) -> None:
    of = model(name)
    damage(of)
    assert "depends on the padding" in str(trial.fault(of, CPU))


@pytest.mark.parametrize("name", ["rwkv", "openai-gpt", "mamba2", "lfm2", "recurrent_gemma"])
def test_nor_does_one_with_another_memory_than_keys_and_values(name: str) -> None:
    assert trial.fault(model(name), CPU) is not None


def test_an_engine_begins_with_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "CACHELESS", frozenset())  # as an architecture to come
    found = differences("openai-gpt", tmp_path)["decoded"]
    assert re.match("--rollout_engine hf cannot decode .* depends on the padding", str(found))


def test_a_trial_leaves_the_limits_as_they_were() -> None:
    of = model("qwen2")
    before = (of.config.sliding_window, of.model.layers[1].self_attn.sliding_window)
    assert trial.fault(of, CPU) is None
    assert (of.config.sliding_window, of.model.layers[1].self_attn.sliding_window) == before
