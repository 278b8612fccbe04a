"""A head's roll call, alone in a process: its control port and its journal, without Ray."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import cast

import psutil

from contract.run_dir import RunFiles
from entrypoint.cluster.access import Keys
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.server import ControlServer
from entrypoint.cluster.serving import Listener
from entrypoint.net.sockets import listen
from entrypoint.node.journal_observer import JournalObserver
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes import process
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal

POLL_SECONDS = 0.05


class NoRay:
    def mark_dead(self, name: str, why: str) -> bool:
        return False


def main() -> int:
    """Prints a row when it listens, when the roll is complete, and when its input is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--token")
    options = parser.parse_args()
    run = RunFiles(options.run)
    journal = Journal(run.journal, "head")
    me = NodeInfo(node="head", address="127.0.0.1", versions={"ray": "2.55.0"})
    registry = NodeRegistry(me, options.workers, "crowd")
    observer = JournalObserver(journal, Inbox(), cast(HeadRay, NoRay()))
    listener = Listener(listen(options.port))
    control = ControlServer(registry, observer, run, Keys(options.token), listener)
    process.raise_open_files_limit()
    own = psutil.Process()
    with control:
        tell({"mib": mib_of(own), "cpu": cpu_of(own)})
        while not control.roll().complete:
            time.sleep(POLL_SECONDS)
        tell({"complete_at": time.time(), "cpu": cpu_of(own)})
        sys.stdin.read()
        tell({"mib": mib_of(own), "cpu": cpu_of(own)})
    return 0


def mib_of(process: psutil.Process) -> float:
    mib: float = process.memory_info().rss / 2**20
    return mib


def cpu_of(process: psutil.Process) -> float:
    seconds: float = sum(process.cpu_times()[:2])
    return seconds


def tell(row: dict[str, float]) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
