"""A driver that writes its journal and progress until it is superseded."""

from __future__ import annotations

DRIVE = """
import os, sys, time
from pathlib import Path
from contract.progress import Progress
from contract.run_dir import RunFiles
from contract.journal import EventSource, append_event
from contract.lease import SupersededError
run = RunFiles(Path(sys.argv[1]))
for step in range(1, 10_000):
    try:
        append_event(run.journal, "step", "a step", {"step": step}, source=EventSource(attempt=1))
        Progress(step=step, total_steps=10_000, samples=0, attempt=1, reward=0.0,
                 reward_first=0.0).write(run.progress)
    except SupersededError:
        sys.exit(73)
    time.sleep(0.001)
"""
