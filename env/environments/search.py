"""Search-R1: the policy thinks, searches and answers, in one message.

    <think>…</think><search>query</search><information>Doc 1(Title: …) …</information>…
    <answer>…</answer>

The environment writes the information. The episode ends with the first answer. After an invalid
action the policy is told what is valid.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Protocol

from env.episodes.environment import Environment
from env.episodes.types import EnvironmentFailedError, Reply, Task, Turn
from env.retrieval import client
from env.types import Messages

RETRIEVER_URL = "ROLLCALL_RETRIEVER_URL"
ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> "
    "and </search>. If I want to give the final answer, I should put the answer between <answer> "
    "and </answer>. Let me try again.\n"
)
INSTRUCTION = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every "
    "time you get new information. After reasoning, if you find you lack some knowledge, you can "
    "call a search engine by <search> query </search> and it will return the top searched results "
    "between <information> and </information>. You can search as many times as your want. If you "
    "find no further external knowledge needed, you can directly provide the answer inside "
    "<answer> and </answer>, without detailed illustrations. For example, <answer> Beijing "
    "</answer>. Question: "
)
"""Search-R1's prompt, word for word: its released policies know it."""


class Document(Protocol):
    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


class SearchResult(Protocol):
    """What was found for one query; the best document first."""

    @property
    def status(self) -> str:
        """`ok`, `refused` for a query that cannot be searched for, or `unreachable`."""

    @property
    def documents(self) -> Sequence[Document]: ...

    @property
    def error(self) -> str: ...


class Retriever(Protocol):
    """A client of a retrieval server. It retries outages itself."""

    async def search(self, queries: Sequence[str]) -> Sequence[SearchResult]: ...

    async def close(self) -> None: ...


class Search(Environment):
    """Episodes of questions over the passages of a retriever."""

    stops = ("</search>", "</answer>")

    def __init__(self, retriever: Retriever, *, instruct: bool = False) -> None:
        """`instruct`: put Search-R1's instruction before the question of the task."""
        self._retriever = retriever
        self._instruct = instruct
        self._searched = False

    async def reset(self, task: Task) -> Messages:
        *before, question = task.messages
        if not self._instruct:
            return task.messages
        content = question["content"]
        if isinstance(content, str):
            return [*before, {**question, "content": f"{INSTRUCTION}{content}\n"}]
        first, last = ({"type": "text", "text": text} for text in (INSTRUCTION, "\n"))
        return [*before, {**question, "content": [first, *content, last]}]

    async def step(self, reply: Reply) -> Turn:
        found = ACTION.search(reply.text)
        if found is None:
            return Turn(text=INVALID, metrics=_counts(invalid=True))
        action, content = found.groups()
        if action == "answer" or reply.last:
            return Turn(done=action == "answer", metrics=_counts())
        (result,) = await self._retriever.search([content.strip()])
        if result.status == "refused":
            return Turn(text=INVALID, metrics=_counts(invalid=True))
        if result.status != "ok":
            raise EnvironmentFailedError(f"the retriever failed: {result.error}")
        shown = "".join(
            f"Doc {number}(Title: {document.title}) {document.text}\n"
            for number, document in enumerate(result.documents, 1)
        )
        text = f"\n\n<information>{shown.strip()}</information>\n\n"
        is_first, self._searched = not self._searched, True
        return Turn(text=text, metrics=_counts(searches=True, searched=is_first))

    async def close(self) -> None:
        await self._retriever.close()


def _counts(
    *, searches: bool = False, searched: bool = False, invalid: bool = False
) -> dict[str, float]:
    """Return what is counted of a turn. An episode's `searched` is 1 if it has any search."""
    counts = {"searches": searches, "searched": searched, "invalid_actions": invalid}
    return {name: float(count) for name, count in counts.items()}


def with_retriever(
    url: str = "", *, topk: int = 3, instruct: bool = False, deadline: float = 120.0
) -> Search:
    """Return Search-R1's environment over a retrieval server.

    `url`: one, or several with commas between; by default ROLLCALL_RETRIEVER_URL. `deadline`:
    seconds that one search may take with all its tries. Raises ValueError without an address.
    """
    url = url or os.environ.get(RETRIEVER_URL, "")
    if not url:
        raise ValueError(f"there is no retrieval server: give its url, or set {RETRIEVER_URL}")
    return Search(client.Retriever(url, topk=topk, deadline=deadline), instruct=instruct)
