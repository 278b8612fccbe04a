"""What the fork server imports before it forks Ray's workers."""

from __future__ import annotations

import subprocess
import sys

from tests.support.forked_workers import FORKED_WITH


def test_the_preloaded_modules_do_not_import_ray() -> None:
    """Ray's library reads the job of a worker from the environment when it is loaded."""
    loaded = FORKED_WITH or imported()
    assert "trainer.cluster.preload" in loaded
    assert "ray._raylet" not in loaded


def imported() -> set[str]:
    """The modules of a new process; a worker of these tests was forked from such a one."""
    program = "import sys, trainer.cluster.preload; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    return set(done.stdout.split())
