"""A driver that prints why it fails and ends with 64, once Ray has relayed what an actor says."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WORKER = "worker-1"
REASON = "the saved cursor belongs to other prompts than a.jsonl"
RELAYED = ("FileNotFoundError: of the actor", "UserWarning: of the actor", "the actor is last")
RELAY_SECONDS = 60.0


@ray.remote(num_cpus=0)
class Actor:
    def speak(self) -> None:
        error, warning, last = RELAYED
        print(error, file=sys.stderr)
        warnings.warn(warning.partition(": ")[2], stacklevel=1)
        print(last, file=sys.stderr, flush=True)


def main() -> int:
    ray.init(address="auto")
    (node,) = (one["NodeID"] for one in ray.nodes() if one["NodeName"] == WORKER)
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    actor = Actor.options(scheduling_strategy=there).remote()  # type: ignore[attr-defined]
    print(f"\x1b[31m{REASON}\x1b[0m", file=sys.stderr, flush=True)
    ray.get(actor.speak.remote())
    log = Path(os.environ["ROLLCALL_RUN_DIR"]) / "logs" / "attempt-1.log"
    deadline = time.monotonic() + RELAY_SECONDS
    while RELAYED[-1] not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    return 64


if __name__ == "__main__":
    sys.exit(main())
