"""Finds the head: by its name, or by the address in its lease if the name does not resolve.

A name server may be silent while the head moves to another machine, and longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from entrypoint.net import dns
from entrypoint.net.wait import NotYetError
from entrypoint.run import lease


@dataclass(slots=True)
class HeadLocator:
    name: str
    """The head's host name or address, from the settings."""
    leases: Path
    known: bool = False
    """The head was found by its name once. Before that, a lease may be an old head's, and a name
    that does not resolve is an error that the user has to see."""

    def find(self) -> str:
        """Return the head's address. Raises NotYetError if it is not known now."""
        try:
            return dns.resolve(self.name)
        except NotYetError:
            if self.known and (address := lease.address(self.leases)):
                return address
            raise

    def is_at(self, address: str) -> bool:
        """Return whether the head may still be at `address`; true if nothing says otherwise."""
        try:
            return address in dns.addresses(self.name)
        except NotYetError:
            return lease.address(self.leases) in ("", address)
