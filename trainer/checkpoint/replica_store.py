"""A node's memory for snapshots: it holds shares of its own ranks and of another node's.

It outlives the job that filled it, and computes nothing. A share of a rank of the same node is that
rank's own copy, which lives on here after the rank has died; one from another node is read from its
rank by a stream, memory to memory. A share that is not whole is listed nowhere.

It receives several shares at a time, beside everything else: a stream from a node that was cut off
is silent until it is given up, and meanwhile others are told what is here.

Ray ends it when it ends on the node. What it holds then is in custody of the node's entrypoint, if
that has started the node's Ray, and the holder of the next Ray begins with it.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from contract import fd_store
from trainer.checkpoint import labels
from trainer.checkpoint.labels import PIECE_BYTES, LabelError
from trainer.checkpoint.shard_manifest import Key, Sheet
from trainer.cluster import shared_memory
from trainer.cluster.shared_memory import Address, Segment
from trainer.cluster.tcp_stream import Reader, StreamSource
from trainer.types import TrainingError

log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]


class TornError(Exception):
    """Bytes came that are not those that were sent."""


class NoRoomError(Exception):
    """The node would hold more than it may."""


@dataclass(frozen=True, slots=True)
class _Share:
    """A whole one."""

    segment: Segment
    sheet: Sheet


class _Own(threading.local):
    """Each thread's."""

    def __init__(self) -> None:
        self.reader = Reader()


class Holder:
    def __init__(self, budget: float, owner: str = "", *, goes_on: bool = False) -> None:
        """`budget`: bytes that it may hold, other processes' copies included. `owner`: whose
        shares are in custody; `goes_on`: whether it begins with those that are there."""
        self._budget = budget
        self._owner = owner
        self._shares = _left(owner) if goes_on else {}
        self._coming: dict[Key, int] = {}
        """Bytes of the shares that are under way."""
        self._spare: list[Segment] = []
        self._changing = threading.Lock()
        self._own = _Own()

    def node(self) -> str:
        """What `shared.node` says here."""
        return shared_memory.node()

    def allow(self, budget: float) -> None:
        self._budget = budget

    def attach(self, sheet: Sheet, address: Address) -> None:
        """Hold a copy that a rank of this node has made: no byte is moved.

        Raises NoRoomError, and OSError where the rank has ended.
        """
        with self._changing:
            self._check_room(sheet)
            self._shares[sheet.key] = _Share(shared_memory.adopt(address), sheet)

    def receive(self, sheet: Sheet, source: StreamSource) -> None:
        """Read a rank's copy from another node. Raises NoRoomError; TornError where it differs.

        May run in several threads, for different shares.
        """
        size = sheet.contents.bytes
        with self._changing:
            self._check_room(sheet)
            self._coming[sheet.key] = size
            spare = next((one for one in self._spare if one.address.size == size), None)
            if spare:
                self._spare.remove(spare)
        try:
            segment = spare or Segment(size)
            self._read(sheet, source, view(segment))
            with self._changing:
                self._shares[sheet.key] = _Share(segment, sheet)
        finally:
            with self._changing:
                del self._coming[sheet.key]

    def _read(self, sheet: Sheet, source: StreamSource, place: Bytes) -> None:
        for (start, end), digest in zip(pieces(len(place)), sheet.digests, strict=True):
            piece = place[start:end]
            try:
                self._own.reader.read(source, start, piece.data)
            except TrainingError as error:
                raise TornError(f"{_named(sheet)} did not come: {error.__cause__}") from None
            if digest_of(piece) != digest:
                raise TornError(f"{_named(sheet)} was torn on its way")

    def sheets(self) -> list[Sheet]:
        with self._changing:
            return [share.sheet for share in self._shares.values()]

    def keep(self, attempt: str, step: int) -> None:
        """Forget all that is older than that attempt's step, or another attempt's."""
        with self._changing:
            old = [key for key in self._shares if key[0] != attempt or key[1] < step]
            freed = [self._shares.pop(key).segment for key in old]
            self._spare = [segment for segment in freed if not segment.adopted]
        self._deposit()

    def amend(self, attempt: str, step: int, run_state: str) -> None:
        """Replace what is said of the run at that step."""
        with self._changing:
            for key, share in self._shares.items():
                if key[:2] == (attempt, step):
                    sheet = replace(share.sheet, run_state=run_state)
                    self._shares[key] = replace(share, sheet=sheet)
        self._deposit()

    def let_go(self) -> None:
        """Of everything, also of what is in custody."""
        with self._changing:
            self._shares, self._spare = {}, []
        self._deposit()

    def held(self) -> int:
        """Bytes."""
        return sum(sheet.contents.bytes for sheet in self.sheets())

    def address(self, key: Key) -> Address:
        """Where a process of this node finds a share."""
        return self._shares[key].segment.address

    def piece(self, key: Key, start: int, size: int) -> Bytes:
        return view(self._shares[key].segment)[start : start + size]

    def _deposit(self) -> None:
        # Its own ranks' first: what one node has written, another need not write again.
        with self._changing:
            shares = sorted(self._shares.values(), key=lambda share: not share.segment.adopted)
        segments = {share.sheet.name: share.segment.descriptor for share in shares}
        try:
            label = labels.dump(share.sheet for share in shares)
            fd_store.deposit(self._owner, label, segments)
        except (OSError, TypeError) as error:  # training can do without
            log.warning("what this node holds would not outlive its Ray: %s", error)

    def _check_room(self, sheet: Sheet) -> None:
        """With those of its step that are under way: one of a step before may be so in vain."""
        self._shares.pop(sheet.key, None)
        here = sum(share.sheet.contents.bytes for share in self._shares.values())
        coming = sum(size for key, size in self._coming.items() if key[:2] == sheet.key[:2])
        wanted = here + coming + sheet.contents.bytes
        if wanted > self._budget:
            raise NoRoomError(f"{wanted / 1e9:.2f} GB, and may hold {self._budget / 1e9:.2f} GB")


def _left(owner: str) -> dict[Key, _Share]:
    """What is in custody, of a Ray before this one."""
    try:
        found = fd_store.withdraw(owner)
    except OSError as error:
        log.warning("what a Ray before this one has left cannot be had: %s", error)
        return {}
    if not found.descriptors:
        return {}
    sizes = [os.fstat(one).st_size for one in found.descriptors]
    try:
        sheets = labels.parse(found.label)
        pairs = zip(sheets, sizes, strict=True)
        if not all(sheet.contents.bytes <= size for sheet, size in pairs):
            raise LabelError("a share is shorter than its sheet says")
    except ValueError as error:
        found.close()
        log.warning("what a Ray before this one has left is left out: %s", error)
        return {}
    segments = map(Segment, sizes, found.descriptors)
    return {s.key: _Share(one, s) for s, one in zip(sheets, segments, strict=True)}


def view(segment: Segment) -> Bytes:
    return np.frombuffer(segment.buffer, np.uint8)


def digest_of(data: Bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data.data)


def pieces(size: int) -> list[tuple[int, int]]:
    """(beginning, end) of each piece of so many bytes."""
    return [
        (start, min(size, start + PIECE_BYTES)) for start in range(0, max(1, size), PIECE_BYTES)
    ]


def _named(sheet: Sheet) -> str:
    return f"share {sheet.role}-{sheet.rank} of step {sheet.step}"
