"""Dense retrieval by faiss: the inner product of a query's vector with the passages' vectors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from env.retrieval.bm25 import Ranking
from env.retrieval.encoder import Encoder
from env.retrieval.files import PART, IndexFault, publish
from env.retrieval.passages import Passages

FLAT = "Flat"
"""Exact: every vector is compared."""
BATCH = 64
TRAINING_VECTORS = 1_000_000
"""At most so many vectors train an index with clusters."""


def write_vectors(
    directory: Path, passages: Passages, encoder: Encoder, report: Callable[[int], None]
) -> None:
    """A file of vectors for each file of passages; files that are there stay."""
    directory.mkdir(exist_ok=True)
    row = 0
    for number, part in enumerate(passages.parts()):
        path = directory / f"{number:05}.npy"
        if not path.exists():
            vectors = np.empty((len(part), encoder.width), np.float32)
            for start in range(0, len(part), BATCH):
                texts = part[start : start + BATCH]
                vectors[start : start + len(texts)] = encoder.passages(texts)
                report(row + start + len(texts))
            written = path.with_name(f".{path.name}.{os.getpid()}")
            with written.open("wb") as file:
                np.save(file, vectors)
            publish(written, path)
        row += len(part)
        report(row)


def check_factory(factory: str) -> None:
    """Raises IndexFault for a text that faiss does not know."""
    try:
        faiss.index_factory(64, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise IndexFault(
            f"--faiss {factory}: faiss knows no such index; examples: Flat, HNSW64, IVF4096,Flat"
        ) from error


def write_faiss(path: Path, vectors: Path, factory: str) -> None:
    """An index of faiss' own from the vectors. It is built in memory, at once."""
    parts = _mapped(vectors)
    index = faiss.index_factory(parts[0].shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        step = max(1, -(-sum(map(len, parts)) // TRAINING_VECTORS))
        try:
            index.train(np.concatenate([part[::step] for part in parts]))
        except RuntimeError as error:
            raise IndexFault(
                f"--faiss {factory}: too few passages: {_first_line(error)}"
            ) from error
    for part in parts:
        index.add(np.asarray(part))
    written = path.with_name(f".{path.name}.{os.getpid()}")
    faiss.write_index(index, str(written))
    publish(written, path)


def adopt_faiss(source: Path, path: Path, rows: int, width: int) -> None:
    """Copy an index of faiss. Raises IndexFault if it does not fit the passages and the model."""
    index = _read(source)
    if index.ntotal != rows:
        raise IndexFault(
            f"--faiss-index {source}: has {index.ntotal} vectors, the corpus {rows} passages: it "
            "is the index of another corpus"
        )
    if index.d != width:
        raise IndexFault(
            f"--faiss-index {source}: its vectors have {index.d} numbers, the model's {width}: it "
            "comes from another model"
        )
    written = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.copyfile(source, written)
    publish(written, path)


class Dense:
    def __init__(self, vectors: Path, index: Path, encoder: Encoder) -> None:
        """`index`: a file of faiss, which is used if it is there. Raises IndexFault."""
        self._encoder = encoder
        self._index = _read(index) if index.exists() else None
        self._parts = [] if self._index else _mapped(vectors)
        width = self._index.d if self._index else self._parts[0].shape[1] if self._parts else 0
        if width != encoder.width:
            raise IndexFault(
                f"{vectors.parent}: its vectors have {width} numbers, the model's {encoder.width}: "
                "they come from another model"
            )

    @property
    def size(self) -> int:
        return int(self._index.ntotal) if self._index else sum(map(len, self._parts))

    def search(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        vectors = self._encoder.queries(queries)
        topk = min(topk, self.size)
        if self._index:
            scores, rows = self._index.search(vectors, topk)
        else:
            scores, rows = _search_parts(vectors, self._parts, topk)
        return [
            [(int(row), float(score)) for row, score in zip(*hits, strict=True) if row >= 0]
            for hits in zip(rows, scores, strict=True)
        ]


def _search_parts(
    queries: np.ndarray[Any, Any], parts: Sequence[np.ndarray[Any, Any]], topk: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scores and rows of the best passages of all parts; equal scores in the corpus' order."""
    best_scores = np.empty((len(queries), 0), np.float32)
    best_rows = np.empty((len(queries), 0), np.int64)
    for number, part in enumerate(parts):
        scores, rows = faiss.knn(
            queries, np.asarray(part), min(topk, len(part)), metric=faiss.METRIC_INNER_PRODUCT
        )
        best_scores = np.hstack([best_scores, scores])
        best_rows = np.hstack([best_rows, rows + number * PART])
        order = np.lexsort((best_rows, -best_scores))[:, :topk]
        best_scores = np.take_along_axis(best_scores, order, 1)
        best_rows = np.take_along_axis(best_rows, order, 1)
    return best_scores, best_rows


def _mapped(vectors: Path) -> list[np.ndarray[Any, Any]]:
    try:
        return [
            np.load(path, mmap_mode="r", allow_pickle=False)
            for path in sorted(vectors.glob("*.npy"))
        ]
    except (OSError, ValueError) as error:
        raise IndexFault(f"{vectors}: not readable: {error}") from error


def _read(path: Path) -> Any:
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise IndexFault(f"{path}: no index that faiss can read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """faiss' reason, without the place in its source."""
    return str(error).splitlines()[0].rsplit("Error: ", 1)[-1][:200]
