"""The directories of the programs that a policy wrote, if what runs the programs is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from env.rewards import sandbox
from env.rewards.sandbox import Limits
from tests.support.waiting import eventually

REWARD = """
from env.rewards import sandbox
sandbox.run("import time; time.sleep(5)", "", sandbox.Limits(wall_seconds=5.0))
"""


def test_the_directory_of_a_killed_process_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    killed = subprocess.Popen([sys.executable, "-c", REWARD], env=environ)
    while not (found := list(tmp_path.glob(f"{sandbox.PREFIX}*/stdout"))):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    (left,) = (output.parent for output in found)

    def is_free() -> bool:
        with sandbox._lock(left) as is_mine:
            return is_mine

    eventually(is_free)  # the launcher has the lock, too, between its fork and its exec
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with sandbox._directory() as held:
        young = tmp_path / f"{sandbox.PREFIX}young"
        young.mkdir()
        for directory in (left, held):
            os.utime(directory, (0, 0))
        sandbox._remove_abandoned.cache_clear()
        sandbox.run("print(5)", "", Limits())
        assert set(tmp_path.iterdir()) == {held, young}
