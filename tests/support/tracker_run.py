"""Logs rows by --log_with as two attempts of one run do; run by tests beside the trackers.

python -m tests.support.tracker_run TRACKER RUN_DIRECTORY [EXIT_CODE_OF_THE_SECOND]
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainer.config.config import Config
from trainer.metrics import trackers


def main(name: str, run_dir: Path, last: int) -> None:
    run_dir.mkdir(exist_ok=True)
    trackers.CLOSE_SECONDS = 250.0  # the import of accelerate alone may take 10 s of a busy machine
    config = Config(run_dir=run_dir, log_with=(name,), log_project="sums")
    for attempt, code in ((0, 75), (1, last)):
        (tracker,) = trackers.connect(config, 0)
        for step in (1 + 2 * attempt, 2 + 2 * attempt):
            tracker.log(step, {"train/reward": step / 10, "timing/step": 1.5})
        tracker.close(code)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
