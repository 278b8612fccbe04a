"""What the fork server imports before it forks Ray's workers."""

from __future__ import annotations

import subprocess
import sys


def test_the_preloaded_modules_do_not_import_ray() -> None:
    """Ray's library reads the job of a worker from the environment when it is loaded."""
    program = "import sys, trainer.cluster.preload; sys.exit('ray._raylet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
