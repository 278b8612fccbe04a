"""An index in a directory: opened by its manifest, asked for the best passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from env.retrieval.bm25 import BM25
from env.retrieval.files import FAISS_INDEX, IndexFault, Manifest, read_complete
from env.retrieval.passages import Passages
from env.retrieval.types import Document, Query

if TYPE_CHECKING:
    from env.retrieval.dense import Dense


class Index:
    def __init__(
        self, directory: Path, model: Path | None = None, *, trust_remote_code: bool = False
    ) -> None:
        """`model`: where the embedding model lies now, if not where it lay at the build.

        `trust_remote_code`: run code that it brings along.

        Raises IndexFault for an index that is absent, half-built, damaged or of another model.
        """
        self.manifest = read_complete(directory)
        self._passages = Passages(directory / "passages")
        self._ranker = _ranker(directory, self.manifest, model, trust_remote_code=trust_remote_code)
        counts = {self.manifest.passages, len(self._passages), self._ranker.size}
        if len(counts) > 1:
            raise IndexFault(
                f"{directory}: {len(self._passages)} passages, {self._ranker.size} in the index, "
                f"{self.manifest.passages} in index.json: make the index again with --force"
            )

    def search(self, queries: Sequence[Query]) -> list[list[Document]]:
        """The best passages for each query, in order; fewer if the words are in fewer."""
        topk = max(query.topk for query in queries)
        rankings = self._ranker.search([query.text for query in queries], topk)
        return [
            [self._document(row, score) for row, score in ranking[: query.topk]]
            for query, ranking in zip(queries, rankings, strict=True)
        ]

    def _document(self, row: int, score: float) -> Document:
        passage = self._passages[row]
        return Document(passage.contents, score, passage.id)


def _ranker(
    directory: Path, manifest: Manifest, model: Path | None, *, trust_remote_code: bool
) -> BM25 | Dense:
    if manifest.kind == "bm25":
        if model:
            raise IndexFault(f"--model {model}: {directory} is an index by words, without a model")
        return BM25(directory / "bm25", manifest.settings["language"])
    if manifest.kind != "dense":
        raise IndexFault(f"{directory}: an index of the unknown kind '{manifest.kind}'")
    from env.retrieval.dense import Dense
    from env.retrieval.encoder import Encoder, EncoderSettings, weights_checksum

    settings = EncoderSettings(**manifest.settings["encoder"])
    settings = replace(settings, model=str(model or settings.model))
    if weights_checksum(Path(settings.model)) != settings.weights:
        raise IndexFault(
            f"--model {settings.model}: its weights are not those of the model that made "
            f"{directory}; give --model the directory of that model"
        )
    encoder = Encoder(settings, trust_remote_code=trust_remote_code)
    return Dense(directory / "vectors", directory / FAISS_INDEX, encoder)
