"""A driver that ends with 64 and its reason, while Ray relays what an actor says."""

from __future__ import annotations

import sys
import time

import ray

REASON = "the saved cursor belongs to other prompts than a.jsonl"
RELAYED = "FileNotFoundError: of an actor"


@ray.remote(num_cpus=0)
class Actor:
    def speak(self) -> None:
        print(RELAYED, file=sys.stderr, flush=True)


def main() -> int:
    ray.init(num_cpus=1, include_dashboard=False)
    actor = Actor.remote()
    ray.get(actor.__ray_ready__.remote())
    print(REASON, file=sys.stderr, flush=True)
    ray.get(actor.speak.remote())
    time.sleep(2)  # until it is relayed
    return 64


if __name__ == "__main__":
    sys.exit(main())
