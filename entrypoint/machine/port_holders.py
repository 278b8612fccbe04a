"""Who listens at a TCP port of this machine."""

from __future__ import annotations

import psutil


def holders() -> dict[int, int]:
    """Listening TCP port to process, as far as this user may see."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return {}
    return {
        connection.laddr.port: connection.pid
        for connection in connections
        if connection.laddr and connection.pid and connection.status == psutil.CONN_LISTEN
    }


def name_of(pid: int) -> str:
    """Return a process's name and number. Raises psutil.Error if it has ended."""
    return f"{psutil.Process(pid).name()} (process {pid})"
