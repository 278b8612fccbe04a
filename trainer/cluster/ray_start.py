"""Runs Ray's command line (`ray start …`) without the groups of commands that import most.

Ray's program imports all its commands before it runs one, and with them pandas, FastAPI and
aiohttp: a second of CPU time at each start of a node, and memory for as long as the node runs. It
goes on without a group that cannot be imported.
"""

from __future__ import annotations

import sys

LEFT_OUT = ("ray.serve.scripts", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli")


def main() -> None:
    """Run the command that `sys.argv` names, and end the process as Ray ends it."""
    for name in LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]
    from ray.scripts import scripts

    for name in LEFT_OUT:
        del sys.modules[name]
    scripts.main()


if __name__ == "__main__":
    main()
