"""Where the repository and the tests' recorded data lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Also for PYTHONPATH: a test's own modules are not on the search path of Ray's workers."""
DATA = ROOT / "tests/data"
