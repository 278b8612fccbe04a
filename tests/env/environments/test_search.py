"""Search-R1's episodes over a retriever in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from env.environments.load import EnvironmentSpecError, environment_factory
from env.environments.search import INSTRUCTION, INVALID, Search
from env.episodes.chat import PlainChat
from env.episodes.episode import run_episode
from env.episodes.types import EnvironmentFailedError, Episode, Limits, StopReason, Task
from tests.support.chats import Scripted, tokenizer

TASK = Task(0, [{"role": "user", "content": "Who wrote Emma?"}], label="Jane Austen")
LIMITS = Limits(turns=4, prompt=2000, reply=500, observation=500, total=9000)


@dataclass
class Document:
    title: str
    text: str


@dataclass
class Result:
    status: str = "ok"
    documents: Sequence[Document] = ()
    error: str = ""


class Passages:
    def __init__(self, result: Result) -> None:
        self.result = result
        self.queries: list[str] = []
        self.closed = False

    async def search(self, queries: Sequence[str]) -> list[Result]:
        self.queries += queries
        return [self.result for _ in queries]

    async def close(self) -> None:
        self.closed = True


FOUND = Result(documents=[Document("Emma", "a novel by Jane Austen."), Document("Bath", "a city.")])


def episode_of(
    replies: Sequence[str], result: Result = FOUND, **changes: Any
) -> tuple[Episode, Passages]:
    passages, tokens = Passages(result), tokenizer(None)
    environment = Search(passages, instruct=bool(changes.pop("instruct", False)))
    limits = Limits(**{**{f: getattr(LIMITS, f) for f in LIMITS.__slots__}, **changes})
    policy = Scripted(tokens, replies)
    episode = run_episode(environment, TASK, PlainChat(tokens), policy, limits)
    return asyncio.run(episode), passages


def test_a_search_is_answered_in_the_policys_message() -> None:
    replies = ["<think>?</think><search> Emma </search>", "<answer>Jane Austen</answer>"]
    episode, passages = episode_of(replies)
    assert passages.queries == ["Emma"]
    assert passages.closed
    assert episode.stop is StopReason.DONE
    assert episode.text == (
        f"{replies[0]}\n\n<information>Doc 1(Title: Emma) a novel by Jane Austen.\n"
        f"Doc 2(Title: Bath) a city.</information>\n\n{replies[1]}"
    )
    assert episode.metrics["searches"] == 1


@pytest.mark.parametrize(("searches", "share"), [(0, 0), (1, 1), (2, 1)])
def test_an_episode_counts_once_in_the_share_of_those_that_search(
    searches: int, share: int
) -> None:
    episode, _ = episode_of([*["<search>Emma</search>"] * searches, "<answer>x</answer>"])
    assert episode.metrics["searches"] == searches
    assert episode.metrics["searched"] == share


def test_an_invalid_action_is_told() -> None:
    episode, _ = episode_of(["Jane Austen", "<answer>Jane Austen</answer>"])
    assert INVALID in episode.text
    assert episode.metrics["invalid_actions"] == 1


def test_a_query_that_cannot_be_searched_for_is_invalid() -> None:
    episode, _ = episode_of(["<search></search>", "<answer>x</answer>"], Result("refused"))
    assert INVALID in episode.text


def test_the_last_reply_searches_no_more() -> None:
    episode, passages = episode_of(["<search>a</search>", "<search>b</search>"], turns=2)
    assert passages.queries == ["a"]
    assert episode.stop is StopReason.TURNS


def test_an_outage_of_the_retriever_is_a_failure() -> None:
    with pytest.raises(EnvironmentFailedError, match="no usable answer"):
        episode_of(["<search>a</search>"], Result("unreachable", error="no usable answer"))


def test_the_instruction_stands_before_the_question() -> None:
    episode, _ = episode_of(["<answer>x</answer>"], instruct=True)
    assert episode.prompt.startswith("Answer the given question.")
    assert episode.prompt.endswith("Question: Who wrote Emma?\n")


def test_the_instruction_stands_before_a_question_of_parts() -> None:
    parts = [{"type": "text", "text": "Who wrote Emma?"}]
    task = Task(0, [{"role": "user", "content": parts}])
    (message,) = asyncio.run(Search(Passages(FOUND), instruct=True).reset(task))
    shown = [part["text"] for part in message["content"]]
    assert shown == [INSTRUCTION, "Who wrote Emma?", "\n"]


def test_the_registered_search_asks_a_retrieval_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLCALL_RETRIEVER_URL", raising=False)
    with pytest.raises(EnvironmentSpecError, match="set ROLLCALL_RETRIEVER_URL"):
        environment_factory("search", {})
    monkeypatch.setenv("ROLLCALL_RETRIEVER_URL", "http://127.0.0.1:8000/retrieve")
    assert isinstance(environment_factory("search", {"topk": 5})(), Search)
    with pytest.raises(EnvironmentSpecError, match="topk is 0"):
        environment_factory("search", {"topk": 0})
    with pytest.raises(EnvironmentSpecError, match="deadline is nan; wanted are seconds above 0"):
        environment_factory("search", {"deadline": float("nan")})
