"""Runs Ray's command line (`ray start …`) without the groups of commands that import most.

Ray's program imports all its commands before it runs one, and with them pandas, FastAPI and
aiohttp: a second of CPU time at each start of a node, and memory for as long as the node runs. It
goes on without a group that cannot be imported. The head's dashboard runs in `ray_dashboard`.
"""

from __future__ import annotations

import sys
from typing import Any

from contract.launch.programs import Program

DASHBOARD = "dashboard.py"
"""How the path of Ray's program ends."""
LEFT_OUT = ("ray.serve.scripts", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli")


def main() -> None:
    """Run the command that `sys.argv` names, and end the process as Ray ends it."""
    for name in LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]
    from ray.scripts import scripts

    for name in LEFT_OUT:
        del sys.modules[name]
    _fork_modules_of_dashboard()
    scripts.main()


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
