"""Ray's command line without what only its other commands import."""

from __future__ import annotations

import subprocess
import sys

STARTED = """
import sys
from trainer.cluster import ray_start
sys.argv = ["ray", "start", "--help"]
try:
    ray_start.main()
except SystemExit as end:
    assert end.code == 0, end.code
heavy = {"pandas", "fastapi", "aiohttp", "ray.serve"} & sys.modules.keys()
assert not heavy, heavy
import ray.util.state.state_cli  # what was left out is there for others
"""


def test_ray_start_imports_nothing_of_ray_serve_and_of_data_frames() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--object-manager-port" in done.stdout
