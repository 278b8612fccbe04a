"""A stand-in for verl's trainer: its overrides, its log and its files, without models.

In the first attempt it dies at step 7, while checkpoint 8 is half written.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.hf_checkpoints import torch_file
from tests.support.verl_checkpoints import checkpoint


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    directory = Path(given["trainer.default_local_dir"])
    step = 0
    if given["trainer.resume_mode"] == "resume_path":
        step = int(given["trainer.resume_from_path"].split("global_step_")[-1])
    print(f"Setting global step to {step}", flush=True)
    while step < int(given["trainer.total_training_steps"]):
        step += 1
        time.sleep(0.2)
        print(f"step:{step} - critic/rewards/mean:0.{step:02} - timing_s/step:0.2", flush=True)
        if step == 7 and os.environ["ROLLCALL_ATTEMPT"] == "1":
            torch_file(directory / "global_step_8/actor/model_world_size_2_rank_0.pt")
            os._exit(1)
        if step % int(given["trainer.save_freq"]) == 0:
            checkpoint(directory, step)


if __name__ == "__main__":
    main()
