"""A node's roles, one after another: a worker may become the head, and a lost head a worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from entrypoint import console
from entrypoint.config.role import Head, Worker
from entrypoint.config.settings import Settings
from entrypoint.machine import limits
from entrypoint.machine.gpus import discover
from entrypoint.node import head, heritage, ray_command_line, worker
from entrypoint.node.heritage import Moved, Succession
from entrypoint.processes.inbox import Inbox
from entrypoint.processes.warm_process import WarmProcess

log = logging.getLogger(__name__)

JOINS = (
    "the head of this run is at %s now: this node joins it, and its own job and settings for the "
    "run do not count (`rollcall stop` ends the run)"
)


def serve(
    settings: Settings, role: Head | Worker, findings: Mapping[str, str], inbox: Inbox
) -> int:
    """Be what the settings say, and what becomes of it; return the exit code.

    `findings`: as in NodeInfo.
    """
    with _warm_process(settings, is_head=isinstance(role, Head)):
        return _serve(settings, role, findings, inbox)


def _warm_process(settings: Settings, *, is_head: bool) -> AbstractContextManager[object]:
    """Have the node's processes forked, if it may hold standby ranks.

    A head knows that its run needs them, and the driver is the first. Its imports run while Ray
    starts. A worker is asked by the first standby rank.
    """
    held = ray_command_line.standby_arguments(settings, limits.memory_limit())
    if settings.ray_address or not held:
        return nullcontext()
    return WarmProcess(settings, discover.environment(settings), at_once=is_head)


def _serve(
    settings: Settings, role: Head | Worker, findings: Mapping[str, str], inbox: Inbox
) -> int:
    end: int | Succession | Moved
    if isinstance(role, Head):
        end = head.serve(settings, role, findings, inbox)
    else:
        end = worker.serve(settings, findings, inbox)
    while not isinstance(end, int):
        match end:
            case Succession():
                settings = end.settings
                console.set_up(settings)  # masks the secrets that it has inherited
                console.log_to_file(settings, is_head=True)
                end = head.serve(settings, end.role, findings, inbox, end)
            case Moved(address):
                log.warning(JOINS, address)
                settings = heritage.as_worker(settings, address)
                console.log_to_file(settings, is_head=False)
                end = worker.serve(settings, findings, inbox)
    return end
