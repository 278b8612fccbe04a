"""The network interface of gloo, which else takes that of the host's name: often loopback."""

from __future__ import annotations

from collections.abc import MutableMapping

import psutil

VARIABLE = "GLOO_SOCKET_IFNAME"


def choose(variables: MutableMapping[str, str], address: str) -> None:
    """Have gloo use the interface with this address, unless the variables choose one."""
    for name, has in psutil.net_if_addrs().items():
        if address in [one.address for one in has]:
            variables.setdefault(VARIABLE, name)
            return
