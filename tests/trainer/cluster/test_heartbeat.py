"""Whether who is waited for still lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.cluster import heartbeat as module
from trainer.cluster.heartbeat import GroupHeartbeat, Heartbeat
from trainer.cluster.worker_group import POLL_SECONDS
from trainer.types import SilentRankError


@dataclass
class Answer:
    """To a question, once it has come."""

    come: bool = False
    handle = None

    def result(self) -> None:
        assert self.come

    def ready(self, seconds: float) -> bool:
        return self.come


@dataclass
class Worker:
    """`now`: seconds of its clock."""

    now: float = 0.0
    asked: list[Answer] = field(default_factory=list)

    def ask(self) -> Answer:
        self.asked.append(Answer())
        return self.asked[-1]

    def clock(self) -> float:
        return self.now


def test_one_that_answers_is_asked_again_and_never_silent() -> None:
    worker = Worker()
    heartbeat = Heartbeat(worker.ask, worker.clock)
    for _ in range(100):
        worker.now += 1.0
        assert heartbeat.silence() == 0.0
        for question in worker.asked:
            question.come = True
    assert 30 <= len(worker.asked) <= 100 / POLL_SECONDS


def test_silence_is_counted_from_the_question_that_has_no_answer_and_ends_with_one() -> None:
    worker = Worker()
    heartbeat = Heartbeat(worker.ask, worker.clock)
    assert heartbeat.silence() == 0.0
    assert not worker.asked, "work that is soon done costs no question"
    worker.now = 3.0
    assert heartbeat.silence() == 0.0
    worker.now = 50.0
    assert heartbeat.silence() == 47.0
    worker.asked[0].come = True
    assert heartbeat.silence() == 0.0
    assert len(worker.asked) == 2


@pytest.mark.parametrize(("place", "patience"), [("up", 10.0), ("starting", 30.0)])
def test_a_worker_that_has_started_is_silent_after_a_third_of_the_timeout(
    monkeypatch: pytest.MonkeyPatch, place: str, patience: float
) -> None:
    now, killed = 0.0, list[Any]()
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "ray", SimpleNamespace(kill=killed.append, get=str))
    monkeypatch.setattr(module, "_answered", lambda asked, _: [one for one in asked if one == "up"])
    host = SimpleNamespace(alive=SimpleNamespace(remote=lambda: "no answer"))
    group = GroupHeartbeat("policy", [host], [place], 30.0)
    group.begin()
    now = patience
    group.check()
    now = patience + 1
    with pytest.raises(SilentRankError, match="policy-0"):
        group.check()
    assert killed == [host]
