"""Sheets as text, for who keeps shares while no trainer runs: JSON, with a checksum of itself.

A label lies in files that others may write to, so nothing that is read from it can run: an older
version's pickle, or anything else that is no label of this one, is refused. Torch-free.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import xxhash

from contract import stored_json
from trainer.checkpoint.shard_manifest import Contents, Sheet
from trainer.cluster.shared_memory import Entry

FORMAT = b"rollcall-label-1"
"""Begins the first line, which ends with the checksum of the second."""
PIECE_BYTES = 64 << 20
"""What has a checksum of its own; small enough for the object store."""
NAME = re.compile(r"\w{1,64}", re.ASCII)
DTYPES: Mapping[str, int] = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1},
    **{"float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1},
}
"""torch's name of each kind that a state may have → bytes of an element."""


class LabelError(ValueError):
    """These bytes are no label of this version; the sentence says why."""


def dump(sheets: Iterable[Sheet]) -> bytes:
    """Raises TypeError where a sheet holds what JSON has not."""
    body = json.dumps([_row(sheet) for sheet in sheets]).encode()
    return b"%s %s\n%s" % (FORMAT, _digest(body), body)


def parse(label: bytes) -> list[Sheet]:
    """Raises LabelError."""
    head, _, body = label.partition(b"\n")
    form, _, digest = head.partition(b" ")
    if form != FORMAT:
        raise LabelError("it is of another version, or no label")
    if digest != _digest(body):
        raise LabelError("its checksum differs")
    try:
        rows = stored_json.parsed(body)
        if not isinstance(rows, list):
            raise LabelError("it has no list of sheets")
        return [_sheet(row) for row in rows]
    except LabelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabelError(f"a sheet of it cannot be read: {error!r}") from None


def _digest(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()


def _row(sheet: Sheet) -> dict[str, Any]:
    contents = sheet.contents
    return {
        "attempt": sheet.attempt,
        "step": sheet.step,
        "role": sheet.role,
        "rank": sheet.rank,
        "ranks": sheet.ranks,
        "run_state": sheet.run_state,
        "in_flight": None if sheet.in_flight is None else b64encode(sheet.in_flight).decode(),
        "entries": [[one.name, one.dtype, one.shape, one.offset] for one in contents.entries],
        "scheduler": contents.scheduler,
        "bytes": contents.bytes,
        "digests": sheet.digests,
    }


def _sheet(row: dict[str, Any]) -> Sheet:
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
    return Sheet(
        attempt=row["attempt"],
        step=row["step"],
        role=row["role"],
        rank=row["rank"],
        ranks=dict(ranks),
        run_state=row["run_state"],
        in_flight=None if in_flight is None else b64decode(in_flight, validate=True),
        contents=Contents(
            tuple(_entry(entry, size) for entry in row["entries"]), row["scheduler"], size
        ),
        digests=tuple(row["digests"]),
    )


def _entry(entry: list[Any], size: int) -> Entry:
    name, dtype, shape, offset = entry
    _expect(isinstance(name, str) and name.count("/") >= 2, "a tensor's name")
    _expect(all(map(stored_json.is_count, (offset, *shape))), "a tensor's place")
    _expect(offset + math.prod(shape) * DTYPES[dtype] <= size, "a tensor among its bytes")
    return Entry(name, dtype, tuple(shape), offset)


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise LabelError(f"a sheet of it lacks {what}")
