"""Shard manifests as text, for a process that keeps shards while no trainer runs. Torch-free.

A label is JSON with its own checksum. It lies in files that others may write to, so reading it can
run nothing: a pickle of an older version, or anything that is not a label of this one, is refused.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import xxhash

from contract.files import stored_json
from trainer.checkpoint.memory_shards import Contents, ShardManifest
from trainer.cluster.shared_memory import Entry

FORMAT = b"rollcall-label-2"
"""Begins the first line, which ends with the checksum of the second."""
WITHOUT_PIECES = b"rollcall-label-1"
"""The format before, in which all tensors are whole."""
PIECE_BYTES = 64 << 20
"""Each piece has a checksum; a piece is small enough for Ray's object store."""
NAME = re.compile(r"\w{1,64}", re.ASCII)
DTYPES: Mapping[str, int] = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1},
    **{"float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1},
}
"""torch's name of each data type that a state may have → bytes of an element."""


class LabelError(ValueError):
    """The bytes are not a label of this version; the message says why."""


def dump(manifests: Iterable[ShardManifest]) -> bytes:
    """Return the label. Raises TypeError if a manifest has what JSON cannot hold."""
    body = json.dumps([_row(manifest) for manifest in manifests]).encode()
    return b"%s %s\n%s" % (FORMAT, _digest(body), body)


def parse(label: bytes) -> list[ShardManifest]:
    """Return the manifests of a label. Raises LabelError."""
    head, _, body = label.partition(b"\n")
    form, _, digest = head.partition(b" ")
    if form not in (FORMAT, WITHOUT_PIECES):
        raise LabelError("it is of another version, or no label")
    if digest != _digest(body):
        raise LabelError("its checksum differs")
    try:
        rows = stored_json.parsed(body)
        if not isinstance(rows, list):
            raise LabelError("it has no list of shards")
        return [_manifest(row) for row in rows]
    except LabelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabelError(f"a shard of it cannot be read: {error!r}") from None


def _digest(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()


def _row(manifest: ShardManifest) -> dict[str, Any]:
    contents = manifest.contents
    return {
        "attempt": manifest.attempt,
        "step": manifest.step,
        "role": manifest.role,
        "rank": manifest.rank,
        "ranks": manifest.ranks,
        "run_state": manifest.run_state,
        "in_flight": None if manifest.in_flight is None else b64encode(manifest.in_flight).decode(),
        "entries": [[one.name, one.dtype, one.shape, one.offset] for one in contents.entries],
        "scheduler": contents.scheduler,
        "bytes": contents.bytes,
        "pieces": contents.pieces,
        "digests": manifest.digests,
    }


def _manifest(row: dict[str, Any]) -> ShardManifest:
    """Raises LabelError, and what an object of another shape raises."""
    size, ranks, in_flight = row["bytes"], row["ranks"], row["in_flight"]
    _expect(all(isinstance(row[key], str) for key in ("attempt", "role", "run_state")), "a text")
    _expect(all(NAME.fullmatch(name) for name in (row["attempt"], *ranks)), "a name")
    _expect(
        all(map(stored_json.is_count, (row["step"], row["rank"], size, *ranks.values()))), "a count"
    )
    _expect(row["rank"] < ranks[row["role"]], "a rank of its role")
    _expect(isinstance(row["scheduler"], dict), "a scheduler's state")
    _expect(all(isinstance(digest, str) for digest in row["digests"]), "checksums")
    _expect(len(row["digests"]) == max(1, math.ceil(size / PIECE_BYTES)), "all checksums")
    return ShardManifest(
        attempt=row["attempt"],
        step=row["step"],
        role=row["role"],
        rank=row["rank"],
        ranks=dict(ranks),
        run_state=row["run_state"],
        in_flight=None if in_flight is None else b64decode(in_flight, validate=True),
        contents=Contents(
            tuple(_entry(entry, size) for entry in row["entries"]),
            row["scheduler"],
            size,
            {name: _piece(piece) for name, piece in row.get("pieces", {}).items()},
        ),
        digests=tuple(row["digests"]),
    )


def _entry(entry: list[Any], size: int) -> Entry:
    name, dtype, shape, offset = entry
    _expect(isinstance(name, str) and name.count("/") >= 2, "a tensor's name")
    _expect(all(map(stored_json.is_count, (offset, *shape))), "a tensor's place")
    if dtype not in DTYPES:
        raise LabelError(f"a tensor of it has the data type {dtype!r}, which is unknown here")
    _expect(offset + math.prod(shape) * DTYPES[dtype] <= size, "a tensor among its bytes")
    return Entry(name, dtype, tuple(shape), offset)


def _piece(piece: list[Any]) -> tuple[int, tuple[int, ...]]:
    start, shape = piece
    _expect(all(map(stored_json.is_count, (start, *shape))), "a piece's place")
    return start, tuple(shape)


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise LabelError(f"a shard of it lacks {what}")
