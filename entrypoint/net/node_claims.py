"""Which Rollcall nodes share this machine's network, and their worker ports.

A claim is an abstract Unix socket whose name says both. The kernel frees it with its process, and
shows it, as it counts ports, to all processes of the network namespace.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

KIND = "rollcall-node"
LONGEST_NAME = 64
"""Characters of a node's name in a claim, whose name has at most 107 bytes."""
CLAIM = re.compile(rf"@{KIND} (?P<first>\d+)-(?P<last>\d+) (?P<node>.+)$")


@dataclass(frozen=True, slots=True)
class Claim:
    first: int
    last: int
    node: str

    def overlaps(self, other: Claim) -> bool:
        return self.first <= other.last and other.first <= self.last

    def hold(self) -> socket.socket | None:
        """Make the claim until the socket is closed; None if this node has it already."""
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0{KIND} {self.first}-{self.last} {self.node}")
        except OSError:
            claim.close()
            return None
        return claim


def of(node: str, first: int, last: int) -> Claim:
    return Claim(first, last, node[:LONGEST_NAME])


def others(own: Claim, proc: Path = Path("/proc")) -> list[Claim]:
    """Return the claims of other nodes that overlap a node's own."""
    return [one for one in all_claims(proc) if one.node != own.node and one.overlaps(own)]


def all_claims(proc: Path = Path("/proc")) -> list[Claim]:
    """Return the claims of all nodes; none if the kernel does not show them."""
    try:
        lines = (proc / "net" / "unix").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [
        Claim(int(match["first"]), int(match["last"]), match["node"])
        for match in map(CLAIM.search, lines)
        if match
    ]
