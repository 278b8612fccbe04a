"""A head's control port with nodes on its roll, alone in a process, without Ray.

The nodes are on the roll and keep a question open, but send nothing: what the process uses is used
for those who look at the page. A check of every tenth node did not pass; every fortieth is silent.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from contract.run_dir import RunFiles
from entrypoint.cluster.access import Keys
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.server import ControlServer, HeadPhase
from entrypoint.cluster.serving import Listener
from entrypoint.net.sockets import listen
from entrypoint.node.journal_observer import JournalObserver
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes import process
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal

VERSIONS = {
    "python": "3.12.4",
    "ray": "2.55.0",
    "torch": "2.13.0",
    "nccl": "2.28.3",
    "driver": "580.65.06",
    "gpu": "NVIDIA H100 80GB HBM3",
}
FINDINGS = {"host.nofile": "WARN host.nofile: 1024 open files → start with --ulimit nofile=65536"}
INVENTORY = {"cpus": 64, "gpus": 8, "memory_bytes": 2**40, "gpu_memory_bytes": 80 * 2**30}


def main() -> int:
    """Prints a row when it listens; ends when its standard input is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--token")
    options = parser.parse_args()
    run = RunFiles(options.run)
    me = NodeInfo(node="head", address="10.0.0.1", versions=VERSIONS, inventory=INVENTORY)
    registry = NodeRegistry(me, options.workers, "crowd")
    for number in range(options.workers):
        name = f"worker-{number}"
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        found = FINDINGS if number % 10 == 0 else {}
        info = replace(me, node=name, address=address, warnings=tuple(found), findings=found)
        registry.check_in(replace(info, joined=True), "")
        entry = registry.poll_opened(name)
        if number % 40 == 1 and entry is not None:
            registry.poll_closed(entry, hung_up=True)
    observer = JournalObserver(Journal(run.journal, "head"), Inbox(), cast(HeadRay, None))
    listener = Listener(listen(options.port))
    control = ControlServer(registry, observer, run, Keys(options.token), listener)
    control.phase, control.sentence = HeadPhase.TRAINING, "attempt 3 trains"
    process.raise_open_files_limit()
    with control:
        print(json.dumps({"port": options.port}), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
