"""Runs Ray's command line (`ray start …`) with less CPU time and shorter waits.

- Ray's program imports all its commands before it runs one, and with them pandas, FastAPI and
  aiohttp: a second of CPU time at each start of a node, and memory for as long as the node runs. It
  goes on without a group that cannot be imported.
- The head's dashboard runs in `ray_dashboard`.
- Ray's workers are started by the Python that `--python=` names.
- Before a worker starts its daemons, it waits until the head has started its own. Ray asks every
  2 s, and gives up after 40 s, which the head of a busy machine may need.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from contract.launch import warm
from contract.launch.programs import Program

DASHBOARD = "dashboard.py"
"""How the path of Ray's program ends."""
ASK_SECONDS = 0.1
"""Between two questions for the head's node."""
ASKED_SECONDS = 300.0
"""Until a worker gives up. The entrypoint may end it earlier."""
LEFT_OUT = ("ray.serve.scripts", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli")


def main() -> None:
    """Run the command that `sys.argv` names, and end the process as Ray ends it."""
    if sys.argv[1].startswith(warm.OF_WORKERS):
        sys.executable = sys.argv.pop(1).removeprefix(warm.OF_WORKERS)
    for name in LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]
    from ray.scripts import scripts

    for name in LEFT_OUT:
        del sys.modules[name]
    _fork_modules_of_dashboard()
    _find_the_head_sooner()
    scripts.main()


def head_nodes(
    gcs_client: Any, node_selectors: Sequence[Any], timeout_per_retry: float | None = None
) -> list[Any]:
    """Return what Ray's GCS knows of the nodes that match, once there is one.

    Raises ConnectionError if there is none for ASKED_SECONDS. It stands in for Ray's
    `get_all_node_info_until_retrieved`.
    """
    until, why = time.monotonic() + ASKED_SECONDS, "it has none"
    while time.monotonic() < until:
        try:
            asked = gcs_client.get_all_node_info(
                timeout=timeout_per_retry, node_selectors=node_selectors
            )
            if found := list(asked.values()):
                return found
        except Exception as error:  # Ray's own loop takes any for one that may pass
            why = str(error)
        time.sleep(ASK_SECONDS)
    # The entrypoint tries again where words say that time was lacking.
    raise ConnectionError(f"timed out after {ASKED_SECONDS:g} s: Ray's GCS names no head ({why})")


def _find_the_head_sooner() -> None:
    from ray._private import node

    node.get_all_node_info_until_retrieved = head_nodes


def _fork_modules_of_dashboard() -> None:
    from ray._private import ray_constants, services

    start = services.start_ray_process

    def started(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            at = next(i for i, word in enumerate(command) if word.endswith(DASHBOARD))
            command = [*command[:at], "-P", "-m", Program.RAY_DASHBOARD, *command[at:]]
        return start(command, process_type, *args, **kwargs)

    services.start_ray_process = started


if __name__ == "__main__":
    main()
