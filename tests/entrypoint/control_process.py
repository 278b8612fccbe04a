"""A head's control port alone in a process of its own, with few descriptors and a real console."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.cluster.roll import NodeInfo
from entrypoint.cluster.server import ControlServer
from entrypoint.config.settings import Settings


def main() -> None:
    """Until standard input is closed. Arguments: run directory, port, token, descriptors."""
    run, port, token, descriptors = sys.argv[1:]
    console.set_up(Settings.read({"ROLLCALL_NODE_NAME": "head", "ROLLCALL_RUN_DIR": run}))
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    control = ControlServer(
        me=NodeInfo(node="head", address="127.0.0.2", versions={}),
        expected_workers=1,
        incarnation="first",
        run=RunFiles(Path(run)),
        token=token,
        port=int(port),
        on_stop=lambda why: None,
        on_check_in=lambda info, refusal: None,
    )
    with control:
        sys.stdin.read()


if __name__ == "__main__":
    main()
