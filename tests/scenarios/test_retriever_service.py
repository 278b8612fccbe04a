"""A node keeps the retrieval server up: started, probed, and started again after a kill.

Episodes that search wait for it, and a run repeats to the bit over a kill, a stop and a resume.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.processes import process
from entrypoint.processes.services import Services, mark
from env.prepare.__main__ import main
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.retrieval.client import Retriever, SearchResult
from env.types import RewardRequest, Score
from tests.support.corpora import write_corpus
from tests.support.saved_states import leaves_of
from tests.support.tiny_run import Tiny, metric_rows, share_of, train
from tests.support.waiting import eventually
from trainer.cluster.stop import Stopped, StopRequest

ASKING = """\
from env.environments.search import Search
from env.episodes.types import Reply
from env.retrieval.client import Retriever


class Asking(Search):
    WORDS = ("rain", "Seine", "capital")

    def __init__(self, url):
        super().__init__(Retriever(url, topk=2))

    async def step(self, reply):
        word = self.WORDS[len(reply.text) % len(self.WORDS)]
        return await super().step(Reply(f"<search>{word}</search>", last=reply.last))
"""
"""Searches whatever the policy writes, for one of three words."""


@dataclass(frozen=True)
class Node:
    """A worker with a retrieval server."""

    url: str
    mark: str
    told: list[str]

    def kill_server(self) -> None:
        (server,) = process.find_marked(self.mark)
        os.kill(server.pid, signal.SIGKILL)


@pytest.fixture
def node(tmp_path: Path, free_port: int) -> Iterator[Node]:
    index, url = tmp_path / "index", f"http://127.0.0.1:{free_port}/retrieve"
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    assert main(["index", "--corpus", str(corpus), "--out", str(index)]) == 0
    serve = f"{sys.executable} -m entrypoint serve-retriever --index {index} --port {free_port}"
    settings = read_settings(
        {
            "RAY_WORKER": "1",
            "ROLLCALL_HEAD_ADDRESS": "10.0.0.2",
            "ROLLCALL_RUN_DIR": str(tmp_path / "node"),
            "ROLLCALL_NODE_NAME": f"worker-{os.getpid()}",
            "ROLLCALL_RETRIEVER_URL": url,
            "ROLLCALL_RETRIEVER_COMMAND": serve,
        }
    )
    told: list[str] = []
    with Services(
        settings, is_head=False, env=dict(os.environ), tell=lambda said, **_: told.append(said)
    ) as services:
        services.wait_ready(threading.Event())
        yield Node(url, mark(settings), told)
    assert process.find_marked(mark(settings)) == []


def test_a_worker_joins_when_its_retriever_answers_and_a_kill_loses_no_search(node: Node) -> None:
    async def search() -> SearchResult:
        async with Retriever(node.url) as retriever:
            return (await retriever.search(["Seine"]))[0]

    assert asyncio.run(search()).documents[0].id == "1"
    node.kill_server()
    assert asyncio.run(search()).documents[0].id == "1"
    eventually(lambda: any("the retriever server ended with 137" in line for line in node.told))


def test_a_run_that_searches_repeats_to_the_bit_over_a_kill_and_a_resume(
    tiny: Tiny, node: Node, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    write_model(TinyModel(hidden_size=16, layers=1, heads=2, max_length=1024), None, model)
    (tmp_path / "asking.py").write_text(ASKING)
    flags = {
        "pretrain": model,
        "environment": f"{tmp_path}/asking.py:Asking",
        "environment_args": json.dumps({"url": node.url}),
        "max_turns": 3,
        "max_len": 600,
        "full_determinism": True,
        "advantage_estimator": "group_norm",
        "init_kl_coef": 0,
    }
    one, two = (tiny.config(tmp_path / name, **flags) for name in ("one", "two"))
    train(one, share_of("1"))
    stop, calls = StopRequest(), itertools.count(1)

    def killing(requests: Sequence[RewardRequest]) -> list[Score]:
        if next(calls) == 2:
            node.kill_server()
            stop.requested = True
        return share_of("1")(requests)

    with pytest.raises(Stopped):
        train(two, killing, stop)
    assert metric_rows(two)[-1]["step"] < 4
    train(two, share_of("1"))
    assert leaves_of(one, 4) == leaves_of(two, 4)
    rows = [*metric_rows(one), *metric_rows(two)]
    assert [row["step"] for row in rows] == [1, 2, 3, 4] * 2
    assert {row["train/searched"] for row in rows} == {1}
    assert {row["train/searches"] for row in rows} == {2}  # the last turn searches no more
    assert any("the retriever server ended with 137" in line for line in node.told)
