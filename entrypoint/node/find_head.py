"""Finds the head: by its name, or by the address in its lease if the name does not resolve.

A name may have several addresses, on two networks or in both address families; the head may answer
at some of them. A name server may be silent while the head moves to another machine, and longer.
How long a worker waits is `head_timeout` in `config/settings.py`; `membership.py` waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint.net import dns
from entrypoint.net.wait import NotYetError
from entrypoint.run import lease
from entrypoint.run.unfit_head_note import NoteWatch


@dataclass(slots=True)
class HeadLocator:
    name: str
    """The head's host name or address, from the settings."""
    leases: Path
    known: bool = False
    """The head was found by its name once. Before that, a lease may be an old head's, and a name
    that does not resolve is an error that the user has to see."""
    kept: str = ""
    """The address at which the head has answered last."""
    _note: NoteWatch = field(init=False)

    def __post_init__(self) -> None:
        self._note = NoteWatch(RunFiles(self.leases.parent))

    def find(self) -> list[str]:
        """Return the addresses where the head may be, the likeliest first.

        That is where a worker leads that has taken the head's place. Without one it is where the
        head answered last, then where its lease says that it is. Raises NotYetError if none is
        known now.
        """
        if moved := lease.moved_to(self.leases):
            return [moved]
        leased = lease.address(self.leases)
        try:
            found = dns.addresses(self.name)
        except NotYetError:
            if self.known and leased:
                return [leased]
            raise
        return sorted(found, key=lambda one: (one != self.kept, one != leased))

    def is_at(self, address: str) -> bool:
        """Return whether the head may still be at `address`; true if nothing says otherwise."""
        if moved := lease.moved_to(self.leases):
            return address == moved
        try:
            return address in dns.addresses(self.name)
        except NotYetError:
            return lease.address(self.leases) in ("", address)

    def raise_if_unfit(self) -> None:
        """Raises HeadUnfitError if the head does not start. A head that was found may come back."""
        if not self.known:
            self._note.check()
