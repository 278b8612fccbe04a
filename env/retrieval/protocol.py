"""Search-R1's retrieval protocol: its two bodies, written and read.

request   {"queries": [...], "topk": 3, "return_scores": true}
answer    {"result": [[{"document": {"id": ..., "contents": "title\\ntext"}, "score": ...}]]}

Without `return_scores` the answer has bare documents. Ours alone: `errors`, a list with null or the
reason why a query was not searched; the result of such a query is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env.retrieval.types import Document
from env.types import brief, finite

MAX_QUERY = 4096
"""Characters; a longer text is not a query."""


class RequestError(ValueError):
    """A body that is not a request; the message names the field."""


class AnswerError(ValueError):
    """An answer that has no result for these queries."""


@dataclass(frozen=True, slots=True)
class Request:
    queries: Sequence[str]
    topk: int
    return_scores: bool


def write_request(queries: Sequence[str], topk: int) -> dict[str, Any]:
    return {"queries": list(queries), "topk": topk, "return_scores": True}


def read_request(body: bytes, *, default_topk: int, max_topk: int) -> Request:
    """Raises RequestError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError("the body is not a JSON object with 'queries'")
    queries = fields.get("queries")
    if not isinstance(queries, list):
        raise RequestError(f"'queries' is {brief(queries)}, where a list of texts is wanted")
    for position, query in enumerate(queries):
        if not isinstance(query, str):
            raise RequestError(f"'queries'[{position}] is {brief(query)}, where a text is wanted")
    topk = fields.get("topk")
    topk = default_topk if topk is None else topk
    if not isinstance(topk, int) or isinstance(topk, bool) or not 1 <= topk <= max_topk:
        raise RequestError(f"'topk' is {brief(topk)}; wanted is 1 to {max_topk} (--max-topk)")
    return Request(queries, topk, bool(fields.get("return_scores", False)))


def query_fault(query: str) -> str | None:
    """Why this text cannot be searched for; None if it can."""
    if not query.strip():
        return "the query is empty"
    if len(query) > MAX_QUERY:
        return f"the query has {len(query)} characters, at most {MAX_QUERY} are searched"
    try:
        query.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("unicode_escape").decode()
        return f"the query has {half}, an incomplete Unicode character"
    return None


def write_answer(
    results: Sequence[Sequence[Document]], errors: Sequence[str | None], *, scores: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "result": [[_written(document, scores) for document in found] for found in results]
    }
    return answer | ({"errors": list(errors)} if any(errors) else {})


def read_answer(answer: object, count: int) -> list[tuple[Document, ...] | str]:
    """For each query its documents, or the reason why there are none. Raises AnswerError."""
    fields = answer if isinstance(answer, Mapping) else {}
    results = fields.get("result")
    if not isinstance(results, list) or not all(isinstance(hits, list) for hits in results):
        raise AnswerError(f"no 'result' with a list for each query in {brief(answer)}")
    if len(results) != count:
        raise AnswerError(f"{len(results)} results for {count} queries")
    errors = fields.get("errors") or [None] * count
    if not isinstance(errors, list) or len(errors) != count:
        raise AnswerError(f"'errors' is {brief(errors)}, where {count} items are wanted")
    return [
        str(error) if error else tuple(map(_document, hits))
        for hits, error in zip(results, errors, strict=True)
    ]


def _written(found: Document, with_score: bool) -> dict[str, Any]:
    document = {"id": found.id, "contents": found.contents}
    return {"document": document, "score": found.score} if with_score else document


def _document(hit: object) -> Document:
    scored = hit if isinstance(hit, Mapping) else {}
    fields = scored.get("document", scored)
    contents = fields.get("contents") if isinstance(fields, Mapping) else None
    if not isinstance(contents, str):
        raise AnswerError(f"a document without 'contents': {brief(hit)}")
    score = scored.get("score")
    return Document(contents, finite(score), str(fields.get("id", "")))
