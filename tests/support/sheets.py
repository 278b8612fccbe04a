"""Manifests of shards that lie in this process's memory."""

from __future__ import annotations

from dataclasses import replace

from trainer.checkpoint.labels import PIECE_BYTES
from trainer.checkpoint.memory_shards import Contents, ShardManifest
from trainer.checkpoint.replica_store import digest_of, pieces, view
from trainer.checkpoint.writer import RunState
from trainer.cluster.shared_memory import Segment

RANKS = {"policy": 2, "critic": 1}
SIZE = PIECE_BYTES + 4096
"""Bytes of a share in two pieces."""


def sheet(step: int, role: str, rank: int, attempt: str = "a") -> ShardManifest:
    contents = Contents((), {}, 8)
    return ShardManifest(
        attempt=attempt,
        step=step,
        role=role,
        rank=rank,
        ranks=RANKS,
        run_state=RunState(step=step, seed=0, prompts={}).dump(),
        in_flight=None,
        contents=contents,
        digests=(),
    )


def sheet_of(segment: Segment, step: int) -> ShardManifest:
    data = view(segment)
    digests = tuple(digest_of(data[start:end]) for start, end in pieces(len(data)))
    contents = Contents((), {}, len(data))
    return replace(sheet(step, "policy", 1), contents=contents, digests=digests)
