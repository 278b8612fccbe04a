"""What DeepSpeed does with torch's old names is nothing that a user can change."""

from __future__ import annotations

import subprocess
import sys

WARNS = """
import warnings
import trainer.workers.deepspeed

for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
    warnings.warn(f"`torch.distributed.{name}` is deprecated. Please use", FutureWarning)
warnings.warn("what a user should know", FutureWarning)
"""


def test_a_rank_does_not_repeat_what_torch_says_to_deepspeed() -> None:
    words = [sys.executable, "-W", "default::FutureWarning", "-c", WARNS]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.count("FutureWarning") == 1
    assert "what a user should know" in done.stderr
