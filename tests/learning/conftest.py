from __future__ import annotations

from tests.trainer.conftest import run_dir, tiny

__all__ = ["run_dir", "tiny"]
