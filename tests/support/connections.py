"""What the other side did to a connection."""

from __future__ import annotations

import socket


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
