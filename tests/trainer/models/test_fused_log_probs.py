"""The kernels of NVIDIA's GPUs, which Triton interprets on a CPU; tests/gpu runs them on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.repository import ROOT
from trainer.models import log_probs
from trainer.models.log_probs import Projection, token_log_probs

TRITON = ROOT / ".triton"


has_triton = pytest.mark.skipif(
    not (TRITON / ".done").exists(), reason="no Triton: make .triton/.done"
)


def told(module: str, *arguments: str, **environ: str) -> Any:
    """What a module of tests/support prints beside Triton, which no other test shall see."""
    path = os.pathsep.join([str(ROOT), str(TRITON)])
    command = [sys.executable, "-m", f"tests.support.{module}", *arguments]
    environ = os.environ | environ | {"PYTHONPATH": path}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@has_triton
@pytest.mark.slow
def test_the_kernels_compute_what_all_logits_would_give() -> None:
    without, with_entropy = told("log_prob_errors", TRITON_INTERPRET="1")
    for errors in (without, with_entropy):
        assert errors["log_probs"] < 1e-5
        assert errors["of_states"] < 5e-3  # the gradients are rounded to bf16
        assert errors["of_weight"] < 5e-3
    assert with_entropy["entropy"] < 1e-5


@has_triton
@pytest.mark.slow
def test_the_kernels_compile_from_ampere_to_blackwell(tmp_path: Path) -> None:
    capabilities = ("80", "89", "90", "100", "120")
    found = told("compiled_kernels", *capabilities, TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 2 * len(capabilities)
    assert all(found.values())


def test_a_gpu_without_working_kernels_computes_with_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here is neither Triton nor a GPU: the trial fails, as it does without a compiler."""
    log_probs._kernels.cache_clear()
    monkeypatch.setattr(log_probs, "is_multiplied_as_it_is", lambda tensor: True)
    states, weight = torch.randn(5, 8).bfloat16(), torch.randn(11, 8).bfloat16()
    chosen, _ = token_log_probs(states, torch.arange(5), Projection(weight), 1.0)
    expected = (states.float() @ weight.float().T).log_softmax(-1)[range(5), range(5)]
    assert torch.allclose(chosen, expected, atol=1e-5)
    assert "an update takes up to twice as long" in caplog.text
    log_probs._kernels.cache_clear()
