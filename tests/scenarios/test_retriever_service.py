"""A node keeps the retrieval server up: started, probed, and started again after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from entrypoint.config.read import read_settings
from entrypoint.processes import process
from entrypoint.processes.services import Services, mark
from env.prepare.__main__ import main
from env.retrieval.client import Retriever, SearchResult
from tests.support.corpora import write_corpus
from tests.support.waiting import eventually


def test_a_worker_joins_when_its_retriever_answers_and_a_kill_loses_no_search(
    tmp_path: Path, free_port: int
) -> None:
    index, url = tmp_path / "index", f"http://127.0.0.1:{free_port}/retrieve"
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    assert main(["index", "--corpus", str(corpus), "--out", str(index)]) == 0
    serve = f"{sys.executable} -m entrypoint serve-retriever --index {index} --port {free_port}"
    settings = read_settings(
        {
            "RAY_WORKER": "1",
            "ROLLCALL_HEAD_ADDRESS": "10.0.0.2",
            "ROLLCALL_RUN_DIR": str(tmp_path / "run"),
            "ROLLCALL_NODE_NAME": f"worker-{os.getpid()}",
            "ROLLCALL_RETRIEVER_URL": url,
            "ROLLCALL_RETRIEVER_COMMAND": serve,
        }
    )
    told: list[str] = []

    async def search() -> SearchResult:
        async with Retriever(url) as retriever:
            return (await retriever.search(["Seine"]))[0]

    with Services(settings, is_head=False, env=dict(os.environ), tell=told.append) as services:
        services.wait_ready(threading.Event())
        assert asyncio.run(search()).documents[0].id == "1"
        (server,) = process.find_marked(mark(settings))
        os.kill(server.pid, signal.SIGKILL)
        assert asyncio.run(search()).documents[0].id == "1"
        eventually(lambda: any("the retriever server ended with 137" in line for line in told))
    assert process.find_marked(mark(settings)) == []
