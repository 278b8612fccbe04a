"""`rollcall serve-retriever --index DIR`: passages over HTTP, Search-R1's protocol.

GET /health answers 200 once passages can be had; POST /retrieve searches (see the module protocol).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from env import model_code
from env.http.arguments import Help, Parser, add_limits, limits_of, port, positive
from env.http.batching import Batcher, Limits, QueueFullError
from env.http.service_key import ServiceKeyError, wanted_at
from env.http.serving import (
    listen,
    log_to_stderr,
    read_body,
    refusal,
    run,
    why_not_listening,
)
from env.retrieval.files import IndexFault, Manifest
from env.retrieval.index import Index
from env.retrieval.protocol import RequestError, query_fault, read_request, write_answer
from env.retrieval.types import Document, Query

logger = logging.getLogger("env.retrieval.server")  # also where it runs as __main__

MAX_BODY = 8 * 2**20


class Searchable(Protocol):
    manifest: Manifest

    def search(self, queries: Sequence[Query]) -> list[list[Document]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Topk:
    default: int = 3
    """Passages for a query that does not say how many."""
    most: int = 100


def create_app(index: Searchable, topk: Topk, limits: Limits) -> Starlette:
    """The application; bodies above MAX_BODY bytes get 413."""
    batcher = Batcher(index.search, limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        searching = asyncio.create_task(batcher.run())
        yield
        searching.cancel()

    async def health(_: Request) -> JSONResponse:
        manifest = index.manifest
        about = {"kind": manifest.kind, "passages": manifest.passages, "corpus": manifest.corpus}
        counts = {"waiting": batcher.waiting, "searched": batcher.done}
        return JSONResponse({"status": "ready", **about, **counts})

    async def retrieve(request: Request) -> JSONResponse:
        try:
            body = await read_body(request, MAX_BODY)
            if body is None:
                return refusal(413, f"the body is above {MAX_BODY} bytes; send fewer queries")
            asked = read_request(body, default_topk=topk.default, max_topk=topk.most)
            if len(asked.queries) > limits.max_queue:
                return refusal(413, f"{len(asked.queries)} queries; at most {limits.max_queue}")
            faults = [query_fault(query) for query in asked.queries]
            right = [q for q, fault in zip(asked.queries, faults, strict=True) if not fault]
            found = iter(await batcher.submit([Query(text, asked.topk) for text in right]))
        except RequestError as error:
            return refusal(400, str(error))
        except QueueFullError as error:
            return refusal(429, str(error), {"Retry-After": "1"})
        except Exception as error:  # of the library that searches, or of its files
            logger.error("A search failed: %s: %s", type(error).__name__, error)
            return refusal(500, f"the search failed: {type(error).__name__}: {error}")
        results: list[list[Document]] = [[] if fault else next(found) for fault in faults]
        return JSONResponse(write_answer(results, faults, scores=asked.return_scores))

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/retrieve", retrieve, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    log_to_stderr()
    topk = Topk(default=arguments.topk, most=arguments.max_topk)
    if topk.default > topk.most:
        return _fail(os.EX_USAGE, f"--topk {topk.default} is above --max-topk {topk.most}")
    try:
        trusts = arguments.trust_remote_code
        index = Index(arguments.index, arguments.model, trust_remote_code=trusts)
        listening = listen(arguments.host, arguments.port)
        key = wanted_at(listening)
    except (IndexFault, ServiceKeyError) as error:
        return _fail(os.EX_USAGE, str(error))
    except OSError as error:
        return _fail(os.EX_UNAVAILABLE, why_not_listening(arguments.host, arguments.port, error))
    about = f"{index.manifest.passages} passages ({index.manifest.kind}, {arguments.index})"
    logger.info("%s on %s port %d.", about, *listening.getsockname()[:2])
    run(create_app(index, topk, limits_of(arguments)), listening, key)
    return 0


def _fail(code: int, message: str) -> int:
    print(f"retrieval server: {message}", file=sys.stderr)
    return code


def _parser() -> Parser:
    topk = Topk()
    parser = Parser(
        prog="rollcall serve-retriever",
        description=__doc__,
        formatter_class=Help,
    )
    option = parser.add_argument
    option("--index", type=Path, required=True, help="what `rollcall prepare index` made")
    option("--model", type=Path, help="the embedding model, if it has moved since the build")
    model_code.add_flag(option)
    option("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines")
    option("--port", type=port, default=8000, help="0: any that is free")
    option("--topk", type=positive, default=topk.default, help="passages, if a request names none")
    option("--max-topk", type=positive, default=topk.most, help="passages that may be asked for")
    add_limits(parser, Limits(max_wait=0.002), "queries", "search")
    return parser


if __name__ == "__main__":
    sys.exit(main())
