"""A worker ends what a job that is over has left on it, and tells the head."""

from __future__ import annotations

import logging
import threading
import time

from entrypoint.cluster.client import ControlClient, DeclinedError
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.processes import leftovers
from entrypoint.processes.inbox import JobOver

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
LATE_SECONDS = 10.0
"""For Ray to end its workers of the job: a worker that dies leaves its children."""


def end_leftovers(settings: Settings, client: ControlClient, over: JobOver) -> None:
    """Answer the head at once, and again if something is found later."""
    deadline, told = time.monotonic() + LATE_SECONDS, False
    while True:
        last = not leftovers.ray_works(settings, over.at) or time.monotonic() > deadline
        left = leftovers.end(settings, over.at)
        if left:
            log.warning("the job, which has ended, has left %s on this node: ended", left)
        if left or not told:
            _tell(settings, client, over, left)
            told = True
        if last:
            return
        threading.Event().wait(AGAIN_SECONDS)


def _tell(settings: Settings, client: ControlClient, over: JobOver, left: str) -> None:
    try:
        client.tell_left_over(settings.node_name, over.submission_id, left)
    except (wait.NotYetError, WrongTokenError, DeclinedError) as error:
        log.debug("the head does not hear what the job has left here: %s", error)
