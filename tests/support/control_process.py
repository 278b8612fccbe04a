"""A head's control port alone in a process of its own, with few descriptors and a real console."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from entrypoint import console
from entrypoint.config.read import read_settings
from tests.support.control import control_server


def main() -> None:
    """Until standard input is closed. Arguments: run directory, port, token, descriptors."""
    run, port, token, descriptors = sys.argv[1:]
    console.set_up(read_settings({"ROLLCALL_NODE_NAME": "head", "ROLLCALL_RUN_DIR": run}))
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    with control_server(Path(run), int(port), token):
        sys.stdin.read()


if __name__ == "__main__":
    main()
