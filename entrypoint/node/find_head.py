"""Where a worker finds the head: at its name's address, and where its name has none, at that which
its lease tells.

A name server may be silent for as long as the machine of the head changes, and longer.
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
    """What the settings call it, or its address."""
    leases: Path
    known: bool = False
    """Whether it was found by its name once: before, a lease may be that of a head long gone, and a
    name that does not resolve is a fault to be told."""

    def find(self) -> str:
        """Raises NotYetError where it cannot be told now."""
        try:
            return dns.resolve(self.name)
        except NotYetError:
            if self.known and (told := lease.address(self.leases)):
                return told
            raise

    def is_at(self, address: str) -> bool:
        """Whether it is still to be looked for there; so it is taken where nobody can tell."""
        try:
            return address in dns.addresses(self.name)
        except NotYetError:
            return lease.address(self.leases) in ("", address)
