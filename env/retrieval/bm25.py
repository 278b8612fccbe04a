"""BM25 by tantivy: words are found in files that are mapped into memory, k1 = 1.2 and b = 0.75."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tantivy

from env.retrieval.files import IndexFault
from env.retrieval.passages import Passages

Ranking = list[tuple[int, float]]
"""Rows with their scores, the best first."""
WRITER_BYTES = 256_000_000
LONGEST_WORD = 64
"""Bytes; longer words are not words (base64, URLs) and are left out."""


def analyzer(language: str) -> Any:
    """Text to words: lower case, no stop words, stems. `none`: lower case alone.

    Raises IndexFault for a language that the library does not know.
    """
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    builder = builder.filter(tantivy.Filter.remove_long(LONGEST_WORD))
    builder = builder.filter(tantivy.Filter.lowercase())
    if language != "none":
        try:
            builder = builder.filter(tantivy.Filter.stopword(language))
            builder = builder.filter(tantivy.Filter.stemmer(language))
        except ValueError as error:
            raise IndexFault(
                f"--language {language}: unknown; give english, german, french or another of the "
                "Snowball languages, or none"
            ) from error
    return builder.build()


def build(
    directory: Path, passages: Passages, language: str, report: Callable[[int], None]
) -> None:
    """Add the passages that the index does not have yet; each commit holds whole parts."""
    words = analyzer(language)
    directory.mkdir(exist_ok=True)
    schema = (
        tantivy.SchemaBuilder()
        .add_text_field("contents", tokenizer_name="words", index_option="freq")
        .add_integer_field("row", fast=True)
        .build()
    )
    index = tantivy.Index(schema, path=str(directory))
    index.register_tokenizer("words", words)
    # One thread writes, so that the rows of a segment are in order.
    writer = index.writer(WRITER_BYTES, 1)
    index.reload()
    present, row = index.searcher().num_docs, 0
    for part in passages.parts():
        if row >= present:
            for offset, contents in enumerate(part):
                writer.add_document(tantivy.Document(contents=contents, row=row + offset))
            writer.commit()
        row += len(part)
        report(row)
    writer.wait_merging_threads()
    index.reload()
    if index.searcher().num_docs != len(passages):
        raise IndexFault(f"{directory}: has other passages; give --force to make the index again")


class BM25:
    def __init__(self, directory: Path, language: str) -> None:
        """Raises IndexFault."""
        self._words = analyzer(language)
        # tantivy makes a lock file where it opens an index, and the storage may be read-only.
        with TemporaryDirectory(prefix="rollcall-index-", ignore_cleanup_errors=True) as links:
            try:
                for file in directory.iterdir():
                    if not file.name.endswith(".lock"):
                        Path(links, file.name).symlink_to(file.resolve())
                index = tantivy.Index.open(links)
                # By default a thread watches the files, and makes that lock again while the
                # directory is removed.
                index.config_reader("Manual")
            except (OSError, ValueError) as error:
                raise IndexFault(f"{directory}: not readable: {error}") from error
            self._schema = index.schema
            self._searcher = index.searcher()
        self._threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    @property
    def size(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, queries: Sequence[str], topk: int) -> list[Ranking]:
        return list(self._threads.map(lambda query: self._rank(query, topk), queries))

    def _rank(self, query: str, topk: int) -> Ranking:
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "contents", word, "freq"))
            for word in self._words.analyze(query)
        ]
        if not terms:
            return []
        hits = self._searcher.search(tantivy.Query.boolean_query(terms), topk, count=False).hits
        rows: Any = self._searcher.fast_field_values("row", [address for _, address in hits])
        # Equal scores in the order of the corpus.
        ranking = [(row, score) for row, (score, _) in zip(rows, hits, strict=True)]
        return sorted(ranking, key=lambda hit: (-hit[1], hit[0]))
