"""What a lost head has left to run on its machine, and who ends it.

That is the next node that starts there, a worker there that takes its place, or `stop`.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from contract import lease as contract_lease
from contract.files.child_variables import NODE_OWNER
from contract.run_dir import RunFiles
from entrypoint.processes import process
from entrypoint.run import lease, lost_head
from entrypoint.run.succession import Row

END_SECONDS = 5.0
"""Time for killed processes to be gone."""


def end(row: Row) -> int:
    """End what the holder of a lease has left on this machine; return how many processes.

    The holder itself must have ended: one that is only frozen goes on as a worker.
    """
    mark = str(row.get("mark", ""))
    owner = mark.removeprefix(f"{NODE_OWNER}=")
    is_here = row.get("boot_id") == lease.boot_id() and owner not in ("", mark)
    if not is_here or owner == process.identity() or owner in process.other_identities():
        return 0
    found = []
    for pid in set(lost_head.marked(mark)) - _line():
        with suppress(psutil.Error):
            found.append(psutil.Process(pid))
    process.kill(found)
    psutil.wait_procs(found, END_SECONDS)
    return len(found)


def end_of_run(run: RunFiles) -> int:
    """End what the lost head of a run has left here; return how many processes.

    Nothing is ended while the head may live, or a worker is to take its place. Raises OSError.
    """
    silent = contract_lease.silence(run.leases)
    if silent is None or silent < lease.SILENCE_SECONDS or not lease.has_ended(run.leases):
        return 0
    row = lease.look(run.leases)[1]
    if row.get("over") or lost_head.is_awaited(lost_head.failover(run), silent):
        return 0
    return end(row)


def _line() -> set[int]:
    """Return this process and its ancestors: a shell of the job may have typed the command."""
    with suppress(psutil.Error):
        return {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    return {os.getpid()}
