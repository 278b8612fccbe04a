"""Where do people live? Only the passages say it: a policy that does not search can only guess.

The policy's supervised steps show searches in a fifth of the questions, and guesses in the others.
The retrieval server is a service of a node, and is killed in the third step. The tests with
containers have three seeds and 50,000 passages.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import pytest

from entrypoint.config.read import read_settings
from entrypoint.processes import process
from entrypoint.processes.services import Services, mark
from env.registry import reward_function
from env.types import RewardFunction, RewardRequest, Score
from tests.support import people
from tests.support.tiny_run import Tiny, metric_rows, train

pytestmark = [pytest.mark.learning, pytest.mark.timeout(400)]

STEPS = 8


@contextmanager
def retriever(task: Tiny, node: Path, port: int) -> Iterator[tuple[str, list[str], str]]:
    """A retrieval server that a node keeps up: its address, what the node tells, its mark."""
    url, told = f"http://127.0.0.1:{port}/retrieve", list[str]()
    settings = read_settings(
        {
            "RAY_WORKER": "1",
            "ROLLCALL_HEAD_ADDRESS": "10.0.0.2",
            "ROLLCALL_RUN_DIR": str(node),
            "ROLLCALL_NODE_NAME": f"worker-{os.getpid()}",
            "ROLLCALL_RETRIEVER_URL": url,
            "ROLLCALL_RETRIEVER_COMMAND": people.serve(task.prompts.parent, port),
        }
    )
    with Services(
        settings, is_head=False, env=dict(os.environ), tell=lambda said, **_: told.append(said)
    ) as services:
        services.wait_ready(threading.Event())
        yield url, told, mark(settings)


def test_a_few_steps_raise_the_share_of_searches(tmp_path: Path, free_port: int) -> None:
    small = people.make(tmp_path / "people", *people.SMALL, warm_up=200)
    own = {"rollout_batch_size": 16, "train_batch_size": 128, "micro_train_batch_size": 128}
    with retriever(small, tmp_path / "node", free_port) as (url, told, marked):
        flags = people.FLAGS | own | {"max_steps": STEPS, "environment_args": people.arguments(url)}
        config = small.config(tmp_path / "run", **flags)
        train(config, killing(marked, at_call=3))
    assert any("the retriever server ended with 137" in line for line in told)
    rows = metric_rows(config)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert {row["train/reward_failed"] for row in rows} == {0}
    searched, reward = (
        (rows[0][name], fmean(row[name] for row in rows[-3:]))
        for name in ("train/searched", "train/reward")
    )
    assert searched[0] < 0.4
    assert searched[1] > 0.6
    assert reward[1] > reward[0]


def killing(marked: str, at_call: int) -> RewardFunction:
    """Return exact match, which kills the retrieval server at its call of that number, from 1."""
    exact, calls = reward_function("exact-match"), itertools.count(1)

    def score(requests: Sequence[RewardRequest]) -> list[Score]:
        if next(calls) == at_call:
            (server,) = process.find_marked(marked)
            os.kill(server.pid, signal.SIGKILL)
        return exact(requests)

    return score
