"""Liger's kernels are asked for where they can run; tests/gpu runs them on a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.small_models import model
from trainer.models.liger import use_liger

GPU = torch.device("cuda")


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Liger's function, which needs Triton, was called with."""
    calls: list[dict[str, Any]] = []
    patch = SimpleNamespace(
        MODEL_TYPE_TO_APPLY_LIGER_FN={"llama": None},
        _apply_liger_kernel_to_instance=lambda model, **options: calls.append(options),
    )
    package = SimpleNamespace(monkey_patch=patch)
    monkeypatch.setitem(sys.modules, "liger_kernel", SimpleNamespace(transformers=package))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    return calls


def test_a_model_keeps_its_own_head(applied: list[dict[str, Any]]) -> None:
    use_liger(model("llama"), GPU)
    assert applied == [{"cross_entropy": False, "fused_linear_cross_entropy": False}]


def test_without_a_gpu_or_without_kernels_the_flag_is_said_to_have_no_effect(
    applied: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    use_liger(model("llama"), torch.device("cpu"))
    use_liger(model("gpt_neox"), GPU)
    assert applied == []
    assert "Liger's kernels need a GPU" in caplog.text
    assert "Liger has no kernels for gpt_neox" in caplog.text
