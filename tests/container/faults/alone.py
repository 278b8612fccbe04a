"""The training of the stage in one process and in one go, for comparison.

python -m tests.container.faults.alone DATA RUN STEPS
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from contract.run_dir import RunFiles
from tests.container.faults.reward import TASK
from tests.container.faults.stage import LEARNING, SAVING, data_flags, numbers


def train_alone(data: Path, run: Path, steps: int) -> dict[str, bytes]:
    """Every number of the checkpoint after `steps`; with one thread, as a rank has on the stage."""
    command = [sys.executable, "-m", "tests.container.faults.alone", data, run, steps]
    subprocess.run(
        [*map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return numbers(RunFiles(run), steps)


def main() -> None:
    from env.registry import reward_function
    from tests.support.tiny_run import train
    from trainer.config.parse import parse

    data, run, steps = sys.argv[1:]
    flags = [*data_flags(Path(data)), *LEARNING, *SAVING, "--remote_rm_url", TASK]
    config = parse([*flags, "--run_dir", run, "--max_steps", steps])
    train(config, reward_function(TASK))


if __name__ == "__main__":
    main()
