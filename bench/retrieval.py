"""Retrieval by words: queries a second and recall, against rank_bm25 on the same corpus.

The corpus is synthetic and the same in every run: passages of 100 words whose ranks follow Zipf's
law, with English's stop words as the most frequent ones. A query is three words of one passage,
which is the right answer. Both sides get the same words of a text, and the same queries. The value
is the ratio of queries a second, one query at a time.

A second corpus of a million passages is indexed by `rollcall prepare index` and opened. `detail`
has the seconds to open it, the memory after the queries, and the seconds and memory of the build.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.result import report
from env.http.arguments import positive

TARGET = 20.0
MEMORY_TARGET, OPEN_TARGET = 4e9, 2.0
WORDS, PASSAGE_WORDS, QUERY_WORDS = 200_000, 100, 3
STOP_WORDS = (
    "the of and a in to is was for as on by with that at it an are be this or not but they will no "
    "there such their then if into these"
)
BLOCK = 10_000
TOPK = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=positive, default=50_000)
    parser.add_argument("--queries", type=positive, default=100)
    parser.add_argument("--large", type=int, default=1_000_000, help="0: without the second corpus")
    parser.add_argument("--measure", nargs=2, metavar=("INDEX", "QUERIES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        index, queries = map(Path, arguments.measure)
        print(json.dumps(opened(index, json.loads(queries.read_text()))))
        return 0
    with tempfile.TemporaryDirectory(prefix="rc-retrieval-") as directory:
        small = both(Path(directory), arguments.passages, arguments.queries)
        large = (
            one(Path(directory), arguments.large, arguments.queries) if arguments.large else None
        )
    print(json.dumps(small), flush=True)
    ratio = small["rollcall"]["queries_per_second"] / small["rank_bm25"]["queries_per_second"]
    recalls = [small[side]["recall_at_10"] for side in ("rollcall", "rank_bm25")]
    fits = large is None or (
        large["server_bytes"] < MEMORY_TARGET and large["open_seconds"] < OPEN_TARGET
    )
    ok = report(
        "retrieval",
        ratio,
        unit="ratio",
        target=TARGET,
        better="higher",
        detail={
            **small,
            "large": large,
            "memory_target": MEMORY_TARGET,
            "open_target": OPEN_TARGET,
        },
        besides=fits and recalls[0] >= recalls[1] - 0.01,
    )
    return 0 if ok else 1


def both(directory: Path, passages: int, queries: int) -> dict[str, Any]:
    """Queries a second and recall of both sides, on one corpus."""
    asked = build(directory / "small", passages, queries)
    ours = in_a_process(directory / "small", asked)
    return {
        "passages": passages,
        "queries": queries,
        "rollcall": ours,
        "rank_bm25": rank_bm25(passages, asked),
    }


def one(directory: Path, passages: int, queries: int) -> dict[str, Any]:
    """The build and the server's memory, of a large corpus."""
    began = time.perf_counter()
    corpus = directory / "large.jsonl"
    asked = write_corpus(corpus, passages, queries)
    written = time.perf_counter()
    peak = prepare(corpus, directory / "large")
    seconds = time.perf_counter() - written
    return {
        "passages": passages,
        "corpus_seconds": round(written - began, 1),
        "build_seconds": round(seconds, 1),
        "build_bytes": peak,
        "index_bytes": sum(
            p.stat().st_size for p in (directory / "large").rglob("*") if p.is_file()
        ),
        **in_a_process(directory / "large", asked),
    }


def build(index: Path, passages: int, queries: int) -> list[str]:
    corpus = index.with_suffix(".jsonl")
    asked = write_corpus(corpus, passages, queries)
    prepare(corpus, index)
    return asked


def prepare(corpus: Path, index: Path) -> int:
    """Run `rollcall prepare index`; the most bytes that it had resident."""
    command = [sys.executable, "-m", "env.prepare", "index"]
    command += ["--corpus", str(corpus), "--out", str(index)]
    process, peak = psutil.Popen(command), 0
    while process.poll() is None:
        peak = max(peak, resident(process))
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"prepare index ended with {process.returncode}")
    return peak


def resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def in_a_process(index: Path, asked: Sequence[str]) -> dict[str, Any]:
    """Open the index in a process of its own and ask it."""
    queries = index.with_suffix(".queries.json")
    queries.write_text(json.dumps(asked))
    command = [sys.executable, "-m", "bench.retrieval", "--measure", str(index), str(queries)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def opened(directory: Path, asked: Sequence[str]) -> dict[str, Any]:
    from env.retrieval.index import Index
    from env.retrieval.types import Query

    began = time.perf_counter()
    index = Index(directory)
    seconds = time.perf_counter() - began

    def ask(query: str) -> list[int]:
        (documents,) = index.search([Query(query, TOPK)])
        return [int(document.id) for document in documents]

    measured = measure(ask, asked)
    return {
        "open_seconds": round(seconds, 3),
        "server_bytes": psutil.Process().memory_info().rss,
        **measured,
    }


def rank_bm25(passages: int, asked: Sequence[str]) -> dict[str, Any]:
    """With the words that the index has: the same analysis of texts and queries."""
    from rank_bm25 import BM25Okapi

    from env.retrieval.bm25 import analyzer

    words = analyzer("english").analyze
    index = BM25Okapi([words(text) for text in itertools.chain.from_iterable(texts(passages))])

    def ask(query: str) -> list[int]:
        scores = index.get_scores(words(query))
        return [int(row) for row in np.argsort(scores)[::-1][:TOPK]]

    return measure(ask, asked)


def measure(ask: Callable[[str], Sequence[int]], asked: Sequence[str]) -> dict[str, Any]:
    """The right answer of the n-th query is the passage of row n."""
    ask(asked[0])
    began = time.perf_counter()
    found = [row in ask(query) for row, query in enumerate(asked)]
    seconds = time.perf_counter() - began
    return {
        "queries_per_second": round(len(asked) / seconds, 2),
        "recall_at_10": sum(found) / len(found),
    }


def write_corpus(path: Path, passages: int, queries: int) -> list[str]:
    """Write the corpus; the queries for its first passages."""
    asked: list[str] = []
    rows = itertools.count()
    draw = np.random.default_rng(1)
    with path.open("w") as file:
        for block in texts(passages):
            for text in block:
                if len(asked) < queries:
                    rare = sorted(set(text.split()) - set(STOP_WORDS.split()))
                    asked.append(" ".join(draw.choice(rare, QUERY_WORDS, replace=False)))
                row = {"id": str(next(rows)), "contents": text}
                file.write(json.dumps(row) + "\n")
    return asked


def texts(passages: int) -> Iterator[list[str]]:
    """Blocks of passages."""
    vocabulary = np.array([*STOP_WORDS.split(), *(f"w{n}" for n in range(WORDS))])
    edges = np.cumsum(1 / np.arange(1, WORDS + 1))
    edges /= edges[-1]
    draw = np.random.default_rng(0)
    for start in range(0, passages, BLOCK):
        shape = (min(BLOCK, passages - start), PASSAGE_WORDS)
        ranks = np.searchsorted(edges, draw.random(shape))
        yield [" ".join(row) for row in vocabulary[np.minimum(ranks, WORDS - 1)]]


if __name__ == "__main__":
    sys.exit(main())
