"""The control port of a worker after a takeover: it leads to the head.

People and programs know the address of the head that was lost. Its machine, once it is a worker,
passes them on, and so does every other worker.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

from contract.options import ConfigError
from entrypoint.config.settings import Settings
from entrypoint.machine import address as address_of
from entrypoint.net import relay, sockets
from entrypoint.node.way_in import WayIn

log = logging.getLogger(__name__)


def to_head(settings: Settings, way: WayIn) -> AbstractContextManager[None]:
    """Pass on what comes to this node's control port, if the head has moved, until the exit.

    A port that another program has stays with that.
    """
    if way.heritage is None or way.heritage.takeovers == 0:
        return nullcontext()
    port = settings.control_port
    try:
        listener = sockets.listen(port, address_of.bound(settings))
    except (OSError, ConfigError) as error:
        log.info("port %d of this node does not lead to the head: %s", port, error)
        return nullcontext()
    log.info("port %d of this node leads to the head at %s", port, way.host)
    return relay.relaying(listener, way.host, port)
