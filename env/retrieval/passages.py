"""Passages: read from a corpus, kept in memory-mapped Arrow files, found by their row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import xxhash

from env.data.rows import PromptError, read_rows
from env.retrieval.files import PART, IndexFault, publish
from env.retrieval.types import Passage

SCHEMA = pyarrow.schema([("id", pyarrow.string()), ("contents", pyarrow.large_string())])
DIGEST = b"digest"


def read_corpus(paths: Sequence[Path]) -> Iterator[Passage]:
    """The passages of JSON Lines or Parquet with `id` and `contents`. Raises IndexFault."""
    for path in paths:
        try:
            for row in read_rows(path, ("id", "contents")):
                yield _passage(row.where, row.fields["id"], row.fields["contents"])
        except PromptError as error:
            raise IndexFault(str(error)) from error


def _passage(where: str, name: object, contents: object) -> Passage:
    if not isinstance(contents, str):
        kind = type(contents).__name__
        raise IndexFault(f"{where}: 'contents' is of type {kind}, where a text is wanted")
    if not contents.strip():
        raise IndexFault(f"{where}: 'contents' is empty")
    return Passage(str(name), contents)


def store(corpus: Iterator[Passage], directory: Path, report: Any) -> tuple[int, str]:
    """Keep `corpus` in files of PART passages; return their number and the corpus' checksum.

    A file that an earlier build has written stays. Raises IndexFault if the corpus has changed
    since. `report(count)` is called after each file with the passages stored so far.
    """
    directory.mkdir(exist_ok=True)
    whole, count, number = xxhash.xxh3_128(), 0, 0
    while part := list(islice(corpus, PART)):
        digest = _digest(part)
        path = directory / f"{number:05}.arrow"
        known = _stored_digest(path) if path.exists() else None
        if known is None:
            _write(part, digest, path)
        elif known != digest:
            raise IndexFault(
                f"{path}: holds other passages than rows {count + 1} to {count + len(part)} of the "
                "corpus: another corpus was given before; give another --out, or --force to make "
                "the index again"
            )
        whole.update(digest)
        count, number = count + len(part), number + 1
        report(count)
    if not count:
        raise IndexFault("the corpus has no passages")
    if (directory / f"{number:05}.arrow").exists():
        raise IndexFault(
            f"{directory}: holds more passages than the {count} of the corpus: another corpus was "
            "given before; give another --out, or --force to make the index again"
        )
    return count, whole.hexdigest()


class Passages:
    """The passages of an index. Opening maps the files; nothing is read before it is asked for."""

    def __init__(self, directory: Path) -> None:
        paths = sorted(directory.glob("*.arrow"))
        try:
            self._parts = [_open(path).get_batch(0) for path in paths]
        except (pyarrow.ArrowException, OSError) as error:
            raise IndexFault(f"{directory}: not readable: {error}") from error
        self._count: int = sum(part.num_rows for part in self._parts)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Passage:
        part, inside = self._parts[row // PART], row % PART
        return Passage(part.column(0)[inside].as_py(), part.column(1)[inside].as_py())

    def parts(self) -> Iterator[list[str]]:
        """The contents, one file at a time."""
        for part in self._parts:
            yield part.column(1).to_pylist()


def _digest(part: Sequence[Passage]) -> bytes:
    hash_ = xxhash.xxh3_128()
    for passage in part:
        for text in (passage.id, passage.contents):
            data = text.encode()
            hash_.update(len(data).to_bytes(8, "little"))
            hash_.update(data)
    return hash_.hexdigest().encode()


def _stored_digest(path: Path) -> bytes | None:
    try:
        return (_open(path).schema.metadata or {}).get(DIGEST)
    except (pyarrow.ArrowException, OSError):
        return None  # a file that a failed disk tore is written again


def _open(path: Path) -> Any:
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))


def _write(part: Sequence[Passage], digest: bytes, path: Path) -> None:
    schema = SCHEMA.with_metadata({DIGEST: digest})
    columns = [[passage.id for passage in part], [passage.contents for passage in part]]
    arrays = [pyarrow.array(c, type=f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    written = path.with_name(f".{path.name}.{os.getpid()}")
    with pyarrow.ipc.new_file(str(written), schema) as file:
        file.write_batch(pyarrow.record_batch(arrays, schema=schema))
    publish(written, path)
