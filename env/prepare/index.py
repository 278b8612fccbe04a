"""`rollcall prepare index`: a corpus becomes the index of a retrieval server."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from env import model_code
from env.http.arguments import sub_command
from env.prepare.output import PrepareError

SECONDS_BETWEEN_LINES = 10.0


def add_index(tasks: Any) -> None:
    summary = "the index of a retrieval server, from a corpus"
    parser = sub_command(tasks, "index", summary)
    parser.set_defaults(run=_run)
    option = parser.add_argument
    option("--corpus", type=Path, nargs="+", required=True, help=".jsonl or .parquet: id, contents")
    option("--out", type=Path, required=True, help="directory of the index")
    option("--kind", choices=("bm25", "dense"), default="bm25", help="by words, or by a model")
    option("--language", default="english", help="of bm25's stems and stop words, or none")
    option("--model", type=Path, help="of dense: directory of the embedding model")
    option("--pooling", choices=("mean", "cls"), help="of dense; without it as the model says")
    option("--query-prefix", help="of dense; without it as e5 and bge need it")
    option("--passage-prefix", help="of dense; without it as e5 and bge need it")
    option("--faiss", help="of dense: faiss' index, such as HNSW64; without it Flat")
    option("--faiss-index", type=Path, help="of dense: a ready-made index of faiss to use")
    model_code.add_flag(option)
    option("--force", action="store_true", help="make it again whatever is there")


def _run(arguments: argparse.Namespace) -> bool:
    """Whether anything was to be made. Raises PrepareError."""
    from env.retrieval.build import Plan, build_index
    from env.retrieval.encoder import settings_of
    from env.retrieval.files import IndexFault

    dense = arguments.kind == "dense"
    if dense and arguments.model is None:
        raise PrepareError("--kind dense wants --model DIR, a sentence-embedding model")
    if not dense and (given := _of_dense(arguments)):
        raise PrepareError(f"{', '.join(given)}: only with --kind dense")
    if arguments.faiss and arguments.faiss_index:
        raise PrepareError("--faiss and --faiss-index: give one, what to make or what is made")
    try:
        plan = Plan(
            corpus=arguments.corpus,
            language=arguments.language,
            encoder=settings_of(
                arguments.model,
                pooling=arguments.pooling,
                query_prefix=arguments.query_prefix,
                passage_prefix=arguments.passage_prefix,
            )
            if dense
            else None,
            faiss=arguments.faiss or "Flat",
            faiss_index=arguments.faiss_index,
            trust_remote_code=arguments.trust_remote_code,
        )
        return build_index(plan, arguments.out, _progress, force=arguments.force)
    except IndexFault as error:
        raise PrepareError(str(error)) from error


def _of_dense(arguments: argparse.Namespace) -> list[str]:
    flags = ("model", "pooling", "query_prefix", "passage_prefix", "faiss", "faiss_index")
    given = [flag for flag in flags if getattr(arguments, flag) is not None]
    return [f"--{flag.replace('_', '-')}" for flag in given]


@contextlib.contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; in a log a line every few seconds."""
    from tqdm import tqdm  # the other tasks need no bar

    to = sys.stderr if sys.stderr.isatty() else _Lines(sys.stderr)
    interval = 0.2 if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
    with tqdm(total=total, desc=what, unit=" passages", file=to, mininterval=interval) as bar:
        yield lambda done: bar.update(done - bar.n)


class _Lines:
    """A stream that makes a line of each state of a bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if line := text.strip():
            self._stream.write(f"{line}\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
