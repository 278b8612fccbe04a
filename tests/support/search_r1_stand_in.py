"""A stand-in for Search-R1's trainer: its overrides, its log and its files, without models.

It begins with step 1 in each attempt, as Search-R1 does. In the first attempt it dies at step 8,
when the actor's weights are written and the critic's not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.search_r1_checkpoints import checkpoint


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    place, attempt = Path(given["trainer.default_local_dir"]), os.environ["ROLLCALL_ATTEMPT"]
    for role in ("actor_rollout_ref", "critic"):
        print(f"{role} begins with {given[f'{role}.model.path']}", flush=True)
    for step in range(1, int(given["trainer.total_training_steps"])):
        time.sleep(0.1)
        if step % int(given["trainer.save_freq"]) == 0:
            checkpoint(place, step, "actor")
            if step == 8 and attempt == "1":
                os._exit(1)
            checkpoint(place, step, "critic")
        print(f"step:{step} - critic/rewards/mean:0.{step:02} - timing_s/step:0.1", flush=True)


if __name__ == "__main__":
    main()
