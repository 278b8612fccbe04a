"""A node's memory for snapshots: it holds shares of its own ranks and of another node's.

It outlives the job that filled it, and computes nothing. A share of a rank of the same node is that
rank's own copy, which lives on here after the rank has died; one from another node is received
piece by piece. A share that is not complete is listed nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainer import shared
from trainer.checkpoint.sheet import Key, Sheet
from trainer.shared import Address, Segment

PIECE_BYTES = 64 << 20
"""Small enough for the object store, large enough not to be felt."""
Bytes = NDArray[np.uint8]


class TornError(Exception):
    """Bytes came that are not those that were sent."""


class NoRoomError(Exception):
    """The node would hold more than it may."""


@dataclass(slots=True)
class _Share:
    segment: Segment
    bytes: int
    received: set[int] = field(default_factory=set)
    """Where the pieces that came begin."""
    sheet: Sheet | None = None
    """None while it is not complete."""


class Holder:
    def __init__(self, budget: float) -> None:
        """`budget`: bytes that it may hold, other processes' copies included."""
        self._budget = budget
        self._shares: dict[Key, _Share] = {}
        self._spare: list[Segment] = []

    def node(self) -> str:
        """What `shared.node` says here."""
        return shared.node()

    def allow(self, budget: float) -> None:
        self._budget = budget

    def attach(self, key: Key, address: Address, size: int) -> None:
        """Hold a copy that a rank of this node has made: no byte is moved.

        Raises NoRoomError, and OSError where the rank has ended.
        """
        self._check_room(key, size)
        self._shares[key] = _Share(shared.adopt(address), size)

    def expect(self, key: Key, size: int) -> None:
        """A share of so many bytes is about to come in pieces. Raises NoRoomError."""
        self._check_room(key, size)
        spare = next((one for one in self._spare if one.address.size == size), None)
        self._spare = []
        self._shares[key] = _Share(spare or Segment(size), size)

    def put(self, key: Key, start: int, piece: Bytes, digest: str) -> None:
        """Raises TornError where the piece is not what was sent."""
        share = self._shares[key]
        place = view(share.segment)[start : start + len(piece)]
        np.copyto(place, piece)
        if digest_of(place) != digest:
            raise TornError(f"{_named(key)}: a piece was torn on its way")
        share.received.add(start)

    def complete(self, sheet: Sheet, *, received: bool) -> None:
        """All of a share is here. Raises TornError where it is not."""
        share = self._shares[sheet.key]
        if received and share.received != {start for start, _ in pieces(share.bytes)}:
            raise TornError(f"{_named(sheet.key)}: a piece never came")
        share.sheet = sheet

    def sheets(self) -> list[Sheet]:
        return [share.sheet for share in self._shares.values() if share.sheet]

    def keep(self, attempt: str, step: int) -> None:
        """Forget all that is older than that attempt's step, or another attempt's."""
        for key in [k for k in self._shares if k[0] != attempt or k[1] < step]:
            segment = self._shares.pop(key).segment
            if not segment.adopted:
                self._spare.append(segment)

    def held(self) -> int:
        """Bytes."""
        return sum(share.bytes for share in self._shares.values())

    def address(self, key: Key) -> Address:
        """Where a process of this node finds a share."""
        return self._shares[key].segment.address

    def piece(self, key: Key, start: int, size: int) -> Bytes:
        return view(self._shares[key].segment)[start : start + size]

    def _check_room(self, key: Key, size: int) -> None:
        self._shares.pop(key, None)
        wanted = self.held() + size
        if wanted > self._budget:
            raise NoRoomError(f"{wanted / 1e9:.2f} GB, and may hold {self._budget / 1e9:.2f} GB")


def view(segment: Segment) -> Bytes:
    return np.frombuffer(segment.buffer, np.uint8)


def digest_of(data: Bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data.data)


def pieces(size: int) -> list[tuple[int, int]]:
    """(beginning, end) of each piece of so many bytes."""
    return [
        (start, min(size, start + PIECE_BYTES)) for start in range(0, max(1, size), PIECE_BYTES)
    ]


def _named(key: Key) -> str:
    _, step, role, rank = key
    return f"share {role}-{rank} of step {step}"
