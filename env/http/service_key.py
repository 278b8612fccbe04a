"""The key of the reward and retrieval servers: who asks for it, who sends it, who needs none.

Each node of a cluster has the same key in its environment, and gives it to the servers that it
starts and to the job. A server that others can reach has a key, or is open by ROLLCALL_INSECURE.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket

import httpx

logger = logging.getLogger(__name__)

VARIABLE = "ROLLCALL_SERVICE_KEY"
INSECURE = "ROLLCALL_INSECURE"
OPEN, CLOSED = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
"""Values of ROLLCALL_INSECURE, as every variable of yes or no takes them."""
KEY = re.compile(r"[!-~]{16,}")
"""Characters that an HTTP header can carry, and enough of them to resist guessing."""


class ServiceKeyError(ValueError):
    """The key, or its absence, does not fit the address of the server; a sentence says why."""


def given() -> str:
    """Return the key of this process's environment; "" if there is none."""
    return os.environ.get(VARIABLE, "").strip()


def is_open() -> bool:
    """Return whether ROLLCALL_INSECURE lets everyone in. Raises ServiceKeyError."""
    text = os.environ.get(INSECURE, "").strip()
    if text.lower() not in OPEN + CLOSED:
        raise ServiceKeyError(f"{INSECURE}={text} is neither yes nor no: give 1 or 0")
    return text.lower() in OPEN


def default_host() -> str:
    """Return the address for a server that is told none: all interfaces, with a key or if open.

    Raises ServiceKeyError.
    """
    return "0.0.0.0" if is_open() or given() else "127.0.0.1"


def wanted_at(listening: socket.socket) -> str:
    """Return the key that a server asks for; "" if it is open, or on loopback alone.

    Raises ServiceKeyError if others reach the address and there is no fit key.
    """
    host, key = listening.getsockname()[0], given()
    if is_open():
        logger.warning("%s=1: everyone who reaches %s may use this server.", INSECURE, host)
        return ""
    if ipaddress.ip_address(host).is_loopback:
        return ""
    if not key:
        raise ServiceKeyError(
            f"--host {host}: everyone who reaches this address could use the server. Set "
            f"{VARIABLE} for the server and its clients, listen on 127.0.0.1, or set {INSECURE}=1"
        )
    if not KEY.fullmatch(key):
        raise ServiceKeyError(
            f"{VARIABLE} is not a key: wanted are 16 or more printable characters without a space"
        )
    return key


async def add_key(request: httpx.Request) -> None:
    """Give a request of a client the key of this process, unless it has brought one.

    Only `http` addresses get it: they are the cluster's own. Use it as a hook of httpx.
    """
    key = given()
    if KEY.fullmatch(key) and request.url.scheme == "http":
        request.headers.setdefault("Authorization", f"Bearer {key}")
