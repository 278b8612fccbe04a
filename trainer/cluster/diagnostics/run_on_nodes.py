"""Runs a program on each of some nodes of Ray, and prints what it printed there.

    python -m trainer.cluster.diagnostics.run_on_nodes --nodes ID,ID --within SECONDS -- PROGRAM…

It prints a line of JSON for each node, with `on_node` (the node's id) and

- `exit_code` and `output`, or `error`: why the program did not run there
- `at`: when this process had the answer, in seconds of the epoch, by its own clock

The program's environment has ROLLCALL_NODE_ADDRESS: the node's address in Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

LAST_WORDS = 2000
"""Characters of a failed program's output that are kept."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--within", type=float, required=True)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()

    import ray

    ray.init(log_to_driver=False)
    nodes = options.nodes.split(",")
    for node, row in answers(nodes, options.program, options.within):
        print(json.dumps({"on_node": node, **row, "at": time.time()}), flush=True)
    return 0


def answers(
    nodes: Sequence[str], program: Sequence[str], within: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node's id and answer, as soon as it comes."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(run)
    asked = {
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            # Otherwise Ray hides the GPUs from a task that asks for none.
            runtime_env={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}},
        ).remote(list(program), within): node
        for node in nodes
    }
    deadline = time.monotonic() + within + 5  # the program's own limit comes first
    while asked:
        ready, _ = ray.wait(list(asked), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        node = asked.pop(ready[0])
        try:
            yield node, ray.get(ready[0])
        except ray.exceptions.RayError as error:
            yield node, {"error": " ".join(str(error).split())[-LAST_WORDS:]}
    for node in asked.values():
        yield node, {"error": f"Ray started nothing there within {within:g} s"}


def run(program: list[str], within: float) -> dict[str, Any]:
    """Run the program here."""
    import ray

    here = {"ROLLCALL_NODE_ADDRESS": ray.util.get_node_ip_address()}
    try:
        done = subprocess.run(
            program,
            env={**os.environ, **here},
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)[-LAST_WORDS:]}
    if done.returncode:
        return {"exit_code": done.returncode, "output": (done.stdout + done.stderr)[-LAST_WORDS:]}
    return {"exit_code": 0, "output": done.stdout}


if __name__ == "__main__":
    sys.exit(main())
